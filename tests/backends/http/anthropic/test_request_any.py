"""Any sequence of messages and any fields: a Messages request or InvalidRequest, never anything else."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from backends.errors import InvalidRequest
from backends.http.anthropic.request import build_request, read_messages
from tests.support.calls import make_call

_PNG_URL = "data:image/png;base64,iVBORw0KGgo="
_SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
_JSON = st.recursive(
    _SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
)
_PARTS = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "text", "image_url", "file", "refusal", "input_audio"]) | _JSON},
    optional={
        "text": st.text(max_size=5) | _JSON,
        "refusal": st.text(max_size=5),
        "image_url": st.fixed_dictionaries({"url": st.sampled_from([_PNG_URL, "http://a/b", "x"]) | _JSON}) | _JSON,
        "file": st.fixed_dictionaries({"file_data": st.sampled_from(["data:application/pdf;base64,JQ=="]) | _JSON}),
    },
)
_CALLS = st.fixed_dictionaries(
    {"id": st.sampled_from(["", "call_1", "f.g:0"]) | st.text(max_size=5)},
    optional={
        "type": st.just("function"),
        "function": st.fixed_dictionaries(
            {"name": st.text(max_size=5), "arguments": st.sampled_from(["{}", '{"a":1}', "", "{", "[]"]) | _JSON}
        )
        | _JSON,
    },
)
_WELL_FORMED = st.one_of(
    st.fixed_dictionaries(
        {
            "role": st.sampled_from(["system", "user", "assistant"]),
            "content": st.text(min_size=1, max_size=5).filter(str.strip),
        }
    ),
    st.fixed_dictionaries(
        {
            "role": st.just("tool"),
            "tool_call_id": st.sampled_from(["", "call_1", "f.g:0"]) | st.text(max_size=5),
            "content": st.text(max_size=5),
        }
    ),
)
_MESSAGES = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "developer", "user", "assistant", "tool", "function"]) | _JSON},
    optional={
        "content": st.text(max_size=5) | st.lists(_PARTS, max_size=3) | _JSON,
        "tool_calls": st.lists(_CALLS, max_size=2) | _JSON,
        "tool_call_id": st.text(max_size=5) | _JSON,
        "thinking_blocks": st.lists(
            st.fixed_dictionaries(
                {"type": st.sampled_from(["thinking", "redacted_thinking"])},
                optional={name: st.text(max_size=3) | _JSON for name in ("thinking", "signature", "data")},
            )
        )
        | _JSON,
        "name": st.none() | st.text(max_size=3),
        "refusal": st.none() | st.text(max_size=3),
    },
)


@given(st.lists(_WELL_FORMED | _MESSAGES, max_size=6))
def test_read_messages_any_sequence_alternates_or_is_refused(messages: list[Any]) -> None:
    """Nothing but InvalidRequest escapes. What is accepted alternates, holds no empty turn, no text that says nothing,
    no turn that only thinks, and ids of calls that the Messages API takes.
    """
    try:
        system, turns = read_messages(messages)
    except InvalidRequest:
        return

    roles = [turn["role"] for turn in turns]
    assert all(first != second for first, second in pairwise(roles))
    assert all(turn["content"] for turn in turns)
    blocks = [*system, *(block for turn in turns for block in turn["content"])]
    assert all(block["type"] != "text" or block["text"].strip() for block in blocks)
    assert all("thinking" not in turn["content"][-1]["type"] for turn in turns)
    made = [block["id"] for block in blocks if block["type"] == "tool_use"]
    assert len(made) == len(set(made))
    told = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
    assert all(re.fullmatch("[a-zA-Z0-9_-]+", each) for each in made + told)


@given(st.lists(_WELL_FORMED, min_size=1, max_size=8))
def test_read_messages_well_formed_sequence_keeps_every_text_in_order(messages: list[dict[str, Any]]) -> None:
    """Merging turns neither loses nor reorders what was said."""
    spoken = [message["content"] for message in messages if message["role"] in ("user", "assistant")]
    if not any(message["role"] != "system" for message in messages):
        return

    system, turns = read_messages(messages)

    blocks = [block for turn in turns for block in turn["content"]]
    assert [block["text"] for block in blocks if block["type"] == "text"] == spoken
    assert [block["text"] for block in system] == [m["content"] for m in messages if m["role"] == "system"]
    assert sum(block["type"] == "tool_result" for block in blocks) == sum(m["role"] == "tool" for m in messages)


_FIELDS = [
    "audio", "logit_bias", "max_completion_tokens", "max_tokens", "messages", "metadata", "modalities", "n",
    "output_config", "parallel_tool_calls", "prediction", "reasoning_effort", "response_format", "safety_identifier",
    "stop", "system", "temperature", "thinking", "tool_choice", "tools", "top_k", "top_p", "user",
]  # fmt: skip


@given(st.dictionaries(st.sampled_from(_FIELDS), _JSON, max_size=4))
def test_build_request_any_fields_make_json_or_are_refused(fields: dict[str, Any]) -> None:
    """Nothing but InvalidRequest escapes, whatever a field holds."""
    try:
        body = build_request(make_call(extra=fields), 4096)
    except InvalidRequest:
        return

    assert msgspec.json.decode(body)["model"] == "test-model"
