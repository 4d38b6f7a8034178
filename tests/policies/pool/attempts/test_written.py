"""How many tokens a whole answer is taken for that does not tell."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from policies.pool.attempts.written import written_tokens

_TEXT = "twenty-four letters here"
_CALL = {"id": "call_1", "type": "function", "function": {"name": "four", "arguments": '{"a": "twenty letters"}'[:20]}}
_LOGPROBS = {"content": [{"token": "a", "logprob": -0.1, "top_logprobs": [{"token": "b", "logprob": -3.0}] * 20}] * 9}


def _chat(*messages: dict[str, Any], **fields: Any) -> dict[str, Any]:
    choices = [
        {"index": index, "message": {"role": "assistant", **message}, "finish_reason": "stop", **fields}
        for index, message in enumerate(messages)
    ]
    return {"id": "chatcmpl-" + "x" * 40, "object": "chat.completion", "model": "m", "choices": choices}


def _response(*items: dict[str, Any]) -> dict[str, Any]:
    return {"id": "resp_" + "x" * 40, "object": "response", "instructions": "i" * 400, "output": items}


@pytest.mark.parametrize(
    ("answer", "num_tokens"),
    [
        (_chat({"content": _TEXT}), 6),
        (_chat({"content": _TEXT}, logprobs=_LOGPROBS), 6),
        (_chat({"content": _TEXT}, {"content": _TEXT}), 12),
        (_chat({"content": _TEXT, "reasoning_content": _TEXT}), 12),
        (_chat({"content": [{"type": "text", "text": _TEXT}]}), 6),
        (_chat({"content": None, "refusal": _TEXT}), 6),
        (_chat({"content": None, "tool_calls": [_CALL]}), 6),
        (_chat({"content": "é" * 12}), 6),
        (_chat({"content": "a"}), 1),
        ({"object": "text_completion", "choices": [{"text": _TEXT, "index": 0}]}, 6),
        (_response({"type": "message", "content": [{"type": "output_text", "text": _TEXT}]}), 6),
        (_response({"type": "reasoning", "summary": [{"type": "summary_text", "text": _TEXT}]}), 6),
        (_response({"type": "function_call", "name": "four", "arguments": "x" * 20}), 6),
    ],
    ids=[
        *("chat", "logprobs", "two choices", "thought", "parts", "refusal", "tool", "two bytes a letter", "a letter"),
        *("completion", "response", "summary", "tool of a response"),
    ],
)
def test_text_counts_and_not_what_is_around_it(answer: dict[str, Any], num_tokens: int) -> None:
    """Of every choice, and of all that a model writes."""
    assert written_tokens(msgspec.json.encode(answer)) == num_tokens


@pytest.mark.parametrize(
    "body",
    [
        b"y" * 40,
        msgspec.json.encode(_chat({"content": None, "audio": {"data": "A" * 4000}})),
        msgspec.json.encode(_chat({"content": 7})),
        msgspec.json.encode(_chat(*[{"content": "a"}] * 10_000)),
    ],
    ids=["no JSON", "sound", "another shape", "long"],
)
def test_answer_of_which_no_text_is_read_counts_with_all_its_bytes(body: bytes) -> None:
    """It is never taken for nothing."""
    assert written_tokens(body) == len(body) // 4


def test_nothing_is_no_token() -> None:
    """An answer without a body."""
    assert written_tokens(b"") == 0
