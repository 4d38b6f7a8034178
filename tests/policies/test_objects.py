"""Which bodies are looked through for objects, and how far."""

from __future__ import annotations

import json
from typing import Any

import pytest

from backends.errors import InvalidRequest
from policies.objects.names import can_name_objects, objects_asked_for


@pytest.mark.parametrize(
    ("body", "can"),
    [
        ({"model": "m", "input": "words of file_id and all"}, False),
        ({"input": [{"content": [{"type": "input_file", "file_id": "file-1"}]}]}, True),
        ({"previous_response_id": "resp_1"}, True),
        ({"input": "é"}, True),
    ],
)
def test_most_bodies_name_nothing(body: dict[str, Any], can: bool) -> None:
    """Their bytes say so: a name with its quotes cannot stand inside of another text, an escape may hide one."""
    assert can_name_objects(json.dumps(body).encode()) == can


def test_what_names_an_object_is_found_in_each_of_its_forms() -> None:
    """A container by its id or as an object that has it, and an answer that another one is compared with."""
    body = {
        "container": {"id": "container_1", "skills": [{"type": "anthropic", "skill_id": "pptx"}]},
        "tools": [{"type": "code_interpreter", "container": {"type": "auto", "file_ids": ["file-1"]}}],
        "prompt_cache_options": {"comparison_response_id": "resp_1"},
    }

    assert sorted(objects_asked_for(body)) == [
        ("comparison_response_id", "resp_1"),
        ("container", "container_1"),
        ("file_ids", "file-1"),
    ]


def test_body_that_takes_too_long_to_look_through_is_refused() -> None:
    """Millions of empty objects would hold every other call up; scalars cost nothing of the sort."""
    numbers = {"file_id": "file-1", "input": list(range(1_000_000))}

    assert list(objects_asked_for(numbers)) == [("file_id", "file-1")]
    with pytest.raises(InvalidRequest, match="too many to look through"):
        list(objects_asked_for({"file_id": "file-1", "input": [{}] * 1_000_000}))
