"""Value types of configuration files: units are asked for, and secrets never show."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.config import ByteSize, Config, Duration, Secret, format_duration

HIDDEN = "sk-very-secret-4711"


class Section(Config):
    """A section with one field of each type."""

    wait: Duration = 1.0
    room: ByteSize = 1024
    key: Secret | None = None


def parse(**fields: Any) -> Section:
    """The section, read as a file's."""
    return Section.model_validate(fields, context={"environ": {"API_KEY": HIDDEN, "EMPTY": ""}})


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("250ms", 0.25),
        ("2s", 2.0),
        ("1.5s", 1.5),
        ("5m", 300.0),
        ("1h", 3600.0),
        ("7d", 604800.0),
        (" 2 s ", 2.0),
        ("0s", 0.0),
    ],
)
def test_duration_with_a_unit_is_seconds(text: str, seconds: float) -> None:
    """Every unit, fractions and blanks."""
    assert parse(wait=text).wait == pytest.approx(seconds, rel=1e-12)


@pytest.mark.parametrize("value", [5, 1.5, "5", "s", "-1s", "1 week", "1s2", "1e3s", "", None, True, "1S"])
def test_duration_without_a_plain_unit_is_refused(value: object) -> None:
    """A bare number could mean anything, so it means nothing."""
    with pytest.raises(pydantic.ValidationError, match="a duration needs a number and a unit"):
        parse(wait=value)


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [("0B", 0), ("512KiB", 524288), ("1.5MiB", 1572864), ("1GiB", 1073741824), ("2kB", 2000), ("1 GB", 10**9)],
)
def test_size_with_a_unit_is_bytes(text: str, num_bytes: int) -> None:
    """Binary and decimal units, and fractions."""
    assert parse(room=text).room == num_bytes


@pytest.mark.parametrize("value", [512, "512", "1KB", "1kb", "-1B", "1 KiBs", None])
def test_size_without_a_plain_unit_is_refused(value: object) -> None:
    """No unit, or one that could be read in two ways."""
    with pytest.raises(pydantic.ValidationError, match="a size needs a number and a unit"):
        parse(room=value)


def test_size_beyond_any_number_is_refused() -> None:
    """An absurd size is a validation error like any other."""
    with pytest.raises(pydantic.ValidationError):
        parse(room="9" * 400 + "B")


@given(seconds=st.integers(0, 3650 * 86400))
def test_duration_in_whole_seconds_survives_formatting(seconds: int) -> None:
    """What is printed reads back as the same number."""
    assert parse(wait=format_duration(float(seconds))).wait == seconds


@given(milliseconds=st.integers(0, 999_999))
def test_duration_in_milliseconds_survives_formatting(milliseconds: int) -> None:
    """What is printed reads back as the same number."""
    text = f"{milliseconds}ms"
    seconds = parse(wait=text).wait

    assert parse(wait=format_duration(seconds)).wait == pytest.approx(seconds, rel=1e-12)


@given(text=st.from_regex(r"[0-9]{1,4}(\.[0-9]{1,3})?(ms|s|m|h)", fullmatch=True))
def test_duration_of_any_form_survives_formatting(text: str) -> None:
    """Whatever may stand in a file can be printed and read back."""
    seconds = parse(wait=text).wait

    assert parse(wait=format_duration(seconds)).wait == pytest.approx(seconds, rel=1e-12)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.25, "250ms"), (2.0, "2s"), (90.0, "90s"), (120.0, "2m"), (3600.0, "1h"), (604800.0, "7d")]
)
def test_format_duration_takes_the_largest_exact_unit(seconds: float, text: str) -> None:
    """The shortest exact way to write it."""
    assert format_duration(seconds) == text


def test_secret_from_the_environment_is_resolved() -> None:
    """env:NAME is looked up in the environment that the loader hands in."""
    key = parse(key="env:API_KEY").key

    assert key is not None
    assert key.get_secret_value() == HIDDEN


def test_secret_from_a_file_is_resolved_without_its_line_end(tmp_path: Path) -> None:
    """file:PATH is read, blanks around it dropped."""
    path = tmp_path / "key"
    path.write_text(f"{HIDDEN}\n", encoding="utf-8")

    key = parse(key=f"file:{path}").key

    assert key is not None
    assert key.get_secret_value() == HIDDEN


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ("env:MISSING", "the environment variable MISSING is not set"),
        ("env:EMPTY", "the environment variable EMPTY is not set"),
        ("file:/no/such/file", "the secret file /no/such/file cannot be read"),
        (HIDDEN, "never in the file itself"),
        (4711, "never in the file itself"),
    ],
)
def test_secret_that_cannot_be_resolved_is_refused(value: object, complaint: str) -> None:
    """The message says what is missing."""
    with pytest.raises(pydantic.ValidationError, match=complaint):
        parse(key=value)


def test_secret_file_that_is_empty_is_refused(tmp_path: Path) -> None:
    """An empty key would be sent as one."""
    path = tmp_path / "key"
    path.write_text(" \n", encoding="utf-8")

    with pytest.raises(pydantic.ValidationError, match="is empty"):
        parse(key=f"file:{path}")


def test_secret_never_shows() -> None:
    """Neither repr nor str nor a dump shows it."""
    section = parse(key="env:API_KEY")
    dump = section.model_dump(mode="json")

    assert HIDDEN not in f"{section!r} {section} {section.model_dump()} {section.model_dump_json()} {dump}"
    assert dump == {"wait": 1.0, "room": 1024, "key": "**********"}


def test_secret_pasted_by_mistake_is_not_in_the_reasons() -> None:
    """The reasons of a validation error do not repeat a key written where a reference belongs."""
    with pytest.raises(pydantic.ValidationError) as refused:
        parse(key=HIDDEN)

    assert HIDDEN not in str(refused.value.errors(include_input=False))


def test_secret_pasted_by_mistake_is_not_in_the_error_text() -> None:
    """Nor does its text, which ends up in logs and tracebacks."""
    with pytest.raises(pydantic.ValidationError) as refused:
        parse(key=HIDDEN)

    assert HIDDEN not in str(refused.value)


def test_config_unknown_key_is_refused() -> None:
    """A typing error is never silence."""
    with pytest.raises(pydantic.ValidationError, match="Extra inputs are not permitted"):
        parse(wiat="2s")


def test_config_is_frozen() -> None:
    """A reload builds a new object; nothing changes an old one."""
    section = parse()

    with pytest.raises(pydantic.ValidationError, match="frozen"):
        section.wait = 2.0


def test_config_schema_describes_units() -> None:
    """Editors are told the form of each value."""
    properties = Section.model_json_schema()["properties"]

    assert properties["wait"]["pattern"] == r"^\d+(\.\d+)?\s*(ms|s|m|h|d)$"
    assert properties["room"]["examples"] == ["512KiB", "64MiB"]
    assert properties["key"]["anyOf"][0]["pattern"] == r"^(env|file):.+$"


def test_secret_file_that_is_none_is_refused(tmp_path: Path) -> None:
    """What is no file, or no secret by its size, is named, and never waited for."""
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "large").write_bytes(b"x" * 100_000)
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    said = {"fifo": "a pipe with nothing in it", "large": "larger than 65536 bytes", "bytes": "not UTF-8 text"}
    for name, problem in said.items():
        with pytest.raises(pydantic.ValidationError, match=problem):
            parse(key=f"file:{tmp_path / name}")
    with pytest.raises(pydantic.ValidationError, match="it is a device"):
        parse(key="file:/dev/zero")
