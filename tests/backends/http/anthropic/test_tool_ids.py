"""Ids of tool calls that other servers have made up, and results that find their calls again."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from backends.http.anthropic.request import read_messages
from backends.http.anthropic.tool_ids import ToolIds

TAKEN = re.compile(r"[a-zA-Z0-9_-]+")


def test_ids_that_can_stay_stay() -> None:
    """Those of OpenAI, vLLM and Claude itself."""
    ids = ToolIds()
    for made in ("call_abc", "chatcmpl-tool-0f", "toolu_01"):
        assert ids.of_call(made) == made
        assert ids.of_result(made) == made


@pytest.mark.parametrize("id", ["functions.weather:0", "", "a b", "ü", "x" * 10_000 + "!"])
def test_another_id_becomes_one_that_is_taken_and_its_result_finds_it(id: str) -> None:
    """The same each time, as prompt caches go by it."""
    ids, again = ToolIds(), ToolIds()
    made = ids.of_call(id)

    assert TAKEN.fullmatch(made)
    assert len(made) < 64
    assert ids.of_result(id) == made
    assert again.of_call(id) == made


def test_ids_that_would_be_alike_when_mended_stay_apart() -> None:
    """`a.b` is not `a:b`, nor is it `a_b`."""
    ids = ToolIds()
    made = [ids.of_call(each) for each in ("a.b", "a:b", "a_b")]

    assert len(set(made)) == 3
    assert [ids.of_result(each) for each in ("a_b", "a.b", "a:b")] == [made[2], made[0], made[1]]


def test_calls_of_one_id_in_one_answer_have_their_results_in_order() -> None:
    """Servers that give no ids at all."""
    ids = ToolIds()
    made = [ids.of_call(""), ids.of_call("")]

    assert len(set(made)) == 2
    assert [ids.of_result(""), ids.of_result("")] == made


def test_an_id_that_comes_again_in_a_later_answer_is_another_one() -> None:
    """Also where a call of the first answer never had its result."""
    ids = ToolIds()
    first = [ids.of_call("call_0"), ids.of_call("call_1")]
    assert ids.of_result("call_0") == first[0]
    second = [ids.of_call("call_0"), ids.of_call("call_1")]

    assert len({*first, *second}) == 4
    assert [ids.of_result("call_1"), ids.of_result("call_0")] == second[::-1]


def test_a_conversation_begun_elsewhere_goes_on() -> None:
    """Kimi's ids, and a line end before the call, as models say it."""

    def call(position: int) -> dict[str, Any]:
        function = {"name": "weather", "arguments": json.dumps({"day": position})}
        return {"id": "functions.weather:0", "type": "function", "function": function}

    messages: list[dict[str, Any]] = [{"role": "user", "content": "Weather?"}]
    for position in range(2):
        messages.append({"role": "assistant", "content": "\n\n", "tool_calls": [call(position)]})
        messages.append({"role": "tool", "tool_call_id": "functions.weather:0", "content": " "})
    _, turns = read_messages(messages)

    blocks = [block for turn in turns[1:] for block in turn["content"]]
    assert [block["type"] for block in blocks] == ["tool_use", "tool_result"] * 2
    made = [blocks[0]["id"], blocks[2]["id"]]
    assert len(set(made)) == 2
    assert all(map(TAKEN.fullmatch, made))
    assert [blocks[1]["tool_use_id"], blocks[3]["tool_use_id"]] == made
    assert "content" not in blocks[1]
