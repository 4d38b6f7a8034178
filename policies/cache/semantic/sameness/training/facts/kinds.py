"""Kinds of facts, and what their slots are filled with: own writing, a file for each field of life.

A kind: what its slots are of, and wordings by meaning. All wordings of one meaning say the same; another meaning, or
another value in a slot, says something else. `swap`: two slots whose exchange says something else. `[words]`: what
slots of such a name are filled with.
"""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent
_OF_THE_WORLD = "world"
_ASKED_OFTEN = ("agency", "handling", "places", "self_bank", "self_short", "self_soft")

Kind = dict[str, Any]
Wordings = list[list[str]]
"""[meanings][wordings]."""


def all_kinds() -> frozenset[str]:
    """Their names, languages among them."""
    return frozenset(kinds_in_english()) | frozenset(facts_of_the_world())


@cache
def kinds_in_english() -> dict[str, Kind]:
    """By name."""
    kinds: dict[str, Kind] = {}
    for path in _files():
        found = {name: kind for name, kind in _read(path).items() if name != "words"}
        assert not kinds.keys() & found.keys(), f"{path.name}: {kinds.keys() & found.keys()} are known already"
        kinds |= found
    return kinds


@cache
def asked_often() -> frozenset[str]:
    """English kinds that answers of services are full of: who may do what alone, where it is, who does it, how long."""
    return frozenset(name for stem in _ASKED_OFTEN for name in _read(_HERE / f"{stem}.toml") if name != "words")


@cache
def words_of_slots() -> dict[str, list[str]]:
    """By name; some are what answers are wrapped in."""
    words: dict[str, list[str]] = _read(_HERE.parent / "words.toml")
    for path in _files():
        own = _read(path).get("words", {})
        assert not words.keys() & own.keys(), f"{path.name}: {words.keys() & own.keys()} are known already"
        words |= own
    return words


@cache
def facts_of_the_world() -> dict[str, list[Wordings]]:
    """In other languages, by language."""
    return {
        language: [fact["wordings"] for fact in facts]
        for language, facts in _read(_HERE / f"{_OF_THE_WORLD}.toml").items()
    }


def _files() -> list[Path]:
    return sorted(path for path in _HERE.glob("*.toml") if path.stem != _OF_THE_WORLD)


@cache
def _read(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text(encoding="utf-8"))
