"""What a call may come to at most: whatever its body says, it is never less than an upstream may make of it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.operations import Operation
from policies.limits.worst import MostOutput, most_output, refers_elsewhere, unmetered_part

FIELDS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "max_new_tokens", "n_predict")
_NUMBERS = st.integers(1, 10**6)
_ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
_NAMES = st.sampled_from((*FIELDS, "n", "best_of", "n_cmpl", "prompt", "background", "tools", "web_search_options"))
_BODIES = st.dictionaries(_NAMES, _ANY, max_size=8)
_OPERATIONS = st.sampled_from(list(Operation))


@given(
    st.dictionaries(st.sampled_from(FIELDS), _NUMBERS, min_size=1),
    st.integers(1, 200),
    st.integers(1, 200),
    st.integers(1, 50),
)
def test_largest_limit_times_choices_times_prompts(
    limits: dict[str, int], n: int, best_of: int, num_prompts: int
) -> None:
    """Of `best_of` answers all are written, and `n` of them returned."""
    body = {**limits, "n": n, "best_of": best_of, "prompt": ["a"] * num_prompts}

    most = most_output(body, Operation.COMPLETION)

    assert most == (max(limits.values()), max(n, best_of), num_prompts)
    assert most.total == max(limits.values()) * max(n, best_of) * num_prompts


def test_chats_that_are_asked_together_and_other_names_of_choices_multiply() -> None:
    """vLLM's `/chat/completions/batch` and `prompt_embeds`, and llama.cpp's `n_cmpl`."""
    chat = [{"role": "user", "content": "hi"}]
    picture = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]

    assert most_output({"messages": [chat] * 3, "max_tokens": 7}, Operation.PASSTHROUGH).total == 21
    assert most_output({"messages": [chat] * 3}, Operation.PASSTHROUGH) == (None, 1, 3)
    assert most_output({"messages": chat, "max_tokens": 7, "n_cmpl": 4}, Operation.CHAT).total == 28
    assert most_output({"prompt": ["a"], "prompt_embeds": ["b64"] * 3}, Operation.COMPLETION) == (None, 1, 4)
    assert not refers_elsewhere({"messages": [chat, chat]}, Operation.PASSTHROUGH)
    assert refers_elsewhere({"messages": [chat, picture]}, Operation.PASSTHROUGH)


@given(_BODIES, _OPERATIONS)
def test_any_body_has_a_bounded_most(body: dict[str, Any], operation: Operation) -> None:
    """It never raises, and a sum of what it says stays an integer that is not absurd."""
    most = most_output(body, operation)

    assert most.tokens is None or 0 <= most.tokens <= 10**9
    assert 1 <= most.choices <= 10**9
    assert 1 <= most.prompts <= max(1, len(body.get("prompt") or "") if isinstance(body.get("prompt"), list) else 1)
    unmetered_part(body, operation)
    refers_elsewhere(body, operation)


@given(_BODIES, st.sampled_from(FIELDS), _ANY)
def test_a_further_field_never_makes_it_less(body: dict[str, Any], name: str, value: Any) -> None:
    """Whichever of them the upstream reads."""
    body.pop(name, None)
    before, after = (most_output(each, Operation.CHAT) for each in (body, {**body, name: value}))

    if before.tokens is not None:
        assert after.tokens is None or after.tokens >= before.tokens
    elif any(body.get(other) is not None for other in FIELDS):
        assert after.tokens is None


@pytest.mark.parametrize(
    ("value", "tokens"),
    [
        (100, 100), ("100", 100), (" 100 ", 100), ("+100", 100), (99.5, 100), (True, 1), (10**30, 10**9),
        (None, None), (-1, None), ("", None), ("1e9", None), ("9" * 30, None), (float("inf"), None),
        (float("nan"), None), ([], None), ({}, None), (0, 0),
    ],
)  # fmt: skip
def test_a_limit_is_read_as_the_laxest_upstream_does(value: Any, tokens: int | None) -> None:
    """Text that is a number is one; what is none, or is negative, bounds nothing."""
    assert most_output({"max_tokens": value}, Operation.CHAT).tokens == tokens
    if value is not None and tokens is None:
        assert most_output({"max_tokens": value, "max_completion_tokens": 5}, Operation.CHAT).tokens is None


@pytest.mark.parametrize(
    ("body", "operation", "most"),
    [
        (None, Operation.PASSTHROUGH, (None, 1, 1)),
        ({}, Operation.RESPONSES, (None, 1, 1)),
        ({"input": ["a", "b"], "max_tokens": 9}, Operation.EMBEDDING, (0, 1, 1)),
        ({"prompt": [1, 2, 3]}, Operation.COMPLETION, (None, 1, 1)),
        ({"prompt": [[1], [2]], "n": "3"}, Operation.COMPLETION, (None, 3, 2)),
        ({"n": 0, "best_of": -4}, Operation.COMPLETION, (None, 1, 1)),
    ],
)
def test_what_is_not_said_is_not_known(body: Any, operation: Operation, most: MostOutput) -> None:
    """An embedding writes nothing, a list of tokens is one prompt."""
    assert most_output(body, operation) == most


@pytest.mark.parametrize(
    ("body", "operation", "part"),
    [
        ({"background": True}, Operation.RESPONSES, "background"),
        ({"background": 1}, Operation.PASSTHROUGH, "background"),
        ({"background": False}, Operation.RESPONSES, None),
        ({"background": "True"}, Operation.PASSTHROUGH, "background"),
        ({"background": "transparent"}, Operation.PASSTHROUGH, None),
        ({"background": True}, Operation.CHAT, None),
        ({"tools": [{"type": "function"}, {"type": "web_search_preview_2025_03_11"}]}, Operation.RESPONSES, "tools"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, Operation.PASSTHROUGH, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "web_search"}}]}, Operation.CHAT, None),
        ({"tools": [None, {"type": 5}, []]}, Operation.CHAT, None),
        ({"tools": [{"type": "code_interpreter"}]}, Operation.RESPONSES, "tools"),
        ({"tools": [{"type": "openrouter:web_search"}]}, Operation.CHAT, "tools"),
        ({"tools": [{"type": "x_search"}]}, Operation.RESPONSES, "tools"),
        ({"tools": [{"type": "memory_of_somebody"}]}, Operation.PASSTHROUGH, "tools"),
        ({"tools": [{"google_search": {}}]}, Operation.CHAT, "tools: google_search"),
        ({"tools": [{}]}, Operation.CHAT, "tools"),
        ({"tools": [{"name": "a", "input_schema": {}}]}, Operation.PASSTHROUGH, None),
        ({"tools": [{"type": "custom", "name": "a"}, {"type": "local_shell"}]}, Operation.RESPONSES, None),
        ({"tools": [{"type": "text_editor_20250728", "name": "e"}]}, Operation.PASSTHROUGH, None),
        ({"tools": [{"type": "mcp", "server_url": "https://x"}]}, Operation.RESPONSES, None),
        ({"tools": "web_search"}, Operation.CHAT, None),
        ({"models": ["dear"]}, Operation.CHAT, "models"),
        ({"fallbacks": ["dear"]}, Operation.CHAT, "fallbacks"),
        ({"speed": "fast"}, Operation.PASSTHROUGH, "speed"),
        ({"inference_geo": "us"}, Operation.PASSTHROUGH, None),
        ({"inference_geo": "us", "service_tier": "standard_only"}, Operation.PASSTHROUGH, None),
        ({"inference_geo": "us", "service_tier": "priority"}, Operation.PASSTHROUGH, "inference_geo"),
        ({"inference_geo": "us", "speed": "fast"}, Operation.PASSTHROUGH, "speed"),
        ({"inference_geo": "global"}, Operation.PASSTHROUGH, None),
        ({"inference_geo": "eu"}, Operation.PASSTHROUGH, "inference_geo"),
        ({"inference_geo": ["us"]}, Operation.PASSTHROUGH, "inference_geo"),
        ({"prompt": {"id": "pmpt_1"}}, Operation.RESPONSES, "prompt"),
        ({"prompt": ["a"]}, Operation.COMPLETION, None),
        ({"web_search_options": {}}, Operation.CHAT, "web_search_options"),
        ({"search_parameters": {"mode": "on"}}, Operation.CHAT, "search_parameters"),
        (None, Operation.PASSTHROUGH, None),
    ],
)
def test_parts_that_no_answer_tells_of(body: Any, operation: Operation, part: str | None) -> None:
    """What goes on in the background, and tools that a provider takes money for by the use."""
    found = unmetered_part(body, operation)

    assert found is None if part is None else found is not None and found.startswith(part)


PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBO"}}
TEXT = {"type": "text", "text": "hi"}


@pytest.mark.parametrize(
    ("body", "refers"),
    [
        (None, False),
        ({"messages": [{"role": "user", "content": "previous_response_id"}]}, False),
        ({"messages": [{"role": "user", "content": [TEXT, TEXT]}]}, False),
        ({"messages": [{"role": "user", "content": [TEXT, PICTURE]}]}, True),
        ({"messages": [{"role": "user", "content": [{"type": "file", "file": {"file_id": "f"}}]}]}, True),
        ({"messages": [{"content": [{"type": "tool_result", "content": [{"type": "image", "source": {}}]}]}]}, True),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result", "content": [TEXT]}]}]}, False),
        ({"messages": [{"content": [{"type": ["text"]}]}]}, True),
        ({"messages": [{"role": "user", "content": {"type": "image_url"}}]}, True),
        ({"messages": [{"role": "assistant", "audio": {"id": "audio_1"}}]}, True),
        ({"messages": [{"role": "assistant", "audio": None, "content": "hi"}]}, False),
        ({"input": [{"id": "msg_1"}]}, True),
        ({"input": "hi", "tools": [{"type": "mcp"}]}, True),
        ({"input": "hi", "tools": [{"type": "web_fetch_20250910"}]}, True),
        ({"input": "hi", "tools": [{"type": "function"}, None]}, False),
        ({"input": "hi", "previous_response_id": "resp_1"}, True),
        ({"input": "hi", "previous_response_id": None}, False),
        ({"input": "hi", "conversation": {"id": "conv_1"}}, True),
        ({"context_management": {"edits": [{"type": "clear_thinking_20251015"}, None]}}, False),
        ({"context_management": {"edits": [{"type": "compact_20260112"}]}}, True),
        ({"context_management": [{"type": "compaction", "compact_threshold": 1000}]}, True),
        ({"compaction": {"type": "summarize"}}, True),
        ({"prompt": ["hi", "ho"]}, False),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, True),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "https://x"}]}]}, True),
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": [{"type": "input_file"}]}]}, True),
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": "42"}]}, False),
        ({"input": ["a", [1, 2]]}, False),
    ],
)
def test_a_prompt_may_be_longer_than_its_bytes_say(body: Any, refers: bool) -> None:
    """Pictures, files and what was said before: a few bytes name as much as a context holds."""
    assert refers_elsewhere(body, Operation.RESPONSES) is refers
    assert not refers_elsewhere(body, Operation.EMBEDDING)
