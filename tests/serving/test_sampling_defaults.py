"""What a model's folder says of sampling: taken where a call says nothing, and refused where it makes no sense."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from backends.engine.errors import ModelError
from backends.serving.sampling_defaults import sampling_defaults


def written(folder: Path, **fields: Any) -> Path:
    """The folder, with these fields in its file."""
    (folder / "generation_config.json").write_text(json.dumps(fields), encoding="utf-8")
    return folder


def test_nothing_is_said_without_the_file(tmp_path: Path) -> None:
    """A folder may lack it."""
    assert sampling_defaults(tmp_path) == {}


def test_makers_words_are_taken(tmp_path: Path) -> None:
    """As a chat model's file has them; what is none of them is nobody's default here."""
    folder = written(tmp_path, do_sample=True, temperature=0.6, top_p=0.95, top_k=20, eos_token_id=2, max_length=99)

    assert sampling_defaults(folder) == {"temperature": 0.6, "top_p": 0.95, "top_k": 20}


def test_models_that_draw_nothing_are_greedy(tmp_path: Path) -> None:
    """Where it says so itself; a file that says nothing of it leaves the API's default."""
    assert sampling_defaults(written(tmp_path, do_sample=False, top_p=0.9)) == {"temperature": 0.0, "top_p": 0.9}
    assert sampling_defaults(written(tmp_path, eos_token_id=2)) == {}


@pytest.mark.parametrize(
    ("field", "value"),
    [("temperature", -1), ("temperature", "hot"), ("top_p", 0), ("top_p", 2), ("top_k", 1.5), ("min_p", True)],
)
def test_what_makes_no_sense_is_named(tmp_path: Path, field: str, value: Any) -> None:
    """At the start, and not by each call."""
    with pytest.raises(ModelError, match=rf"generation_config\.json.*'{field}'"):
        sampling_defaults(written(tmp_path, **{field: value}))
