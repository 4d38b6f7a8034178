"""The registry of backend types: entry points only, ours and anyone's by the same road."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from backends.errors import ConfigurationError
from backends.registry import GROUP, Kind, Registry

_THIRD_PARTY = """
from backends.registry import Kind
from backends.scripted.script import Scripted, ScriptedConfig

KIND = Kind(config=ScriptedConfig, build=Scripted)
NOT_A_KIND = "hello"
"""


def point(value: str) -> EntryPoint:
    """An entry point as an installed package declares it."""
    return EntryPoint(name="mine", value=value, group=GROUP)


@pytest.fixture
def third_party(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module outside this project that offers a backend type."""
    name = "a_package_of_yours"
    (tmp_path / f"{name}.py").write_text(_THIRD_PARTY, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, name, raising=False)
    return name


def test_registry_names_are_the_installed_types() -> None:
    """The built-ins are there because they are installed, sorted."""
    names = Registry().names()

    assert {"anthropic", "openai", "scripted"} <= set(names)
    assert names == sorted(names)


def test_registry_third_party_entry_point_is_a_kind(third_party: str) -> None:
    """A package's own type is found and loaded like a built-in."""
    kind = Registry({"mine": point(f"{third_party}:KIND")}).kind("mine")

    assert isinstance(kind, Kind)


def test_registry_loads_an_entry_point_only_when_asked(third_party: str) -> None:
    """A broken or heavy package costs nothing to those who do not use it."""
    registry = Registry({"broken": point("no_such_package_at_all:KIND"), "mine": point(f"{third_party}:KIND")})

    assert registry.names() == ["broken", "mine"]
    assert third_party not in sys.modules
    assert registry.kind("mine")


def test_registry_unknown_name_lists_the_known_ones() -> None:
    """A wrong name says what would be right."""
    with pytest.raises(ConfigurationError) as refused:
        Registry().kind("carrier-pigeon")

    assert 'unknown backend type "carrier-pigeon"' in refused.value.message
    assert all(name in refused.value.message for name in Registry().names())
    assert "Did you mean" not in refused.value.message


@pytest.mark.parametrize(("typo", "meant"), [("opanai", "openai"), ("scriptd", "scripted")])
def test_registry_typing_error_gets_a_hint(typo: str, meant: str) -> None:
    """A name that is nearly right gets the right one."""
    with pytest.raises(ConfigurationError, match=f'Did you mean "{meant}"'):
        Registry().kind(typo)


def test_registry_entry_point_that_is_no_kind_is_refused(third_party: str) -> None:
    """An entry point to something else is the operator's error, named with the type."""
    registry = Registry({"mine": point(f"{third_party}:NOT_A_KIND")})

    with pytest.raises(ConfigurationError, match=rf'{third_party}:NOT_A_KIND of backend type "mine" is not a Kind'):
        registry.kind("mine")
