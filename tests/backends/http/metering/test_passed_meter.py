"""What an answer has used that only passes through: every API's words, cut anywhere, and what only looks like it."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.charges.usage import Usage
from backends.http.metering.passed_meter import passed_taps
from backends.operations import Metering, Operation, Terms
from backends.protocol import Facts
from backends.stream import StreamEnd
from tests.support.calls import make_call

JSON = b"application/json"
EVENTS = b"text/event-stream; charset=utf-8"
CACHED = {
    "input_tokens": 10,
    "cache_read_input_tokens": 500,
    "cache_creation_input_tokens": 40,
    "output_tokens": 1,
}
SUMMED_UP = {"type": "compaction", "input_tokens": 180_000, "output_tokens": 3500}
FLEX = {"service_tier": "flex"}
PICTURE = {"type": "image_generation.completed", "b64_json": "B" * 150_000}
PICTURED = {"usage": {"input_tokens": 5, "output_tokens": 600}}
SPOOF = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}


def metered(raw: bytes, kind: bytes, cuts: list[int], *, how: StreamEnd = StreamEnd.CLEAN) -> Facts:
    """Facts of a POST whose answer passed in pieces that were cut there."""
    call = make_call(operation=Operation.PASSTHROUGH)
    facts = call.facts
    (tap,) = passed_taps(call, kind, is_coded=False)
    places = sorted({0, len(raw), *(cut % (len(raw) + 1) for cut in cuts)})
    for begin, end in pairwise(places):
        tap.feed(raw[begin:end])
    tap.end(how)
    return facts


def events(*each: dict[str, Any] | str) -> bytes:
    """These as a stream."""
    lines = []
    for event in each:
        name = f"event: {event['type']}\n" if isinstance(event, dict) and "type" in event else ""
        lines.append(f"{name}data: {event if isinstance(event, str) else json.dumps(event)}\n\n")
    return "".join(lines).encode()


WHOLE: list[tuple[dict[str, Any], Usage | None]] = [
    ({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}}, Usage(7, 3)),
    (
        {"usage": {"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 5}}},
        Usage(7, 3, 5),
    ),
    ({"object": "response.compaction", "usage": {"input_tokens": 9, "output_tokens": 2}}, Usage(9, 2)),
    ({"results": [{"index": 0, "document": {"text": "x"}}], "usage": {"total_tokens": 56}}, Usage(56)),
    ({"usage": {"total_tokens": 56, "prompt_tokens": 56}, "data": [0.1, 2]}, Usage(56)),
    ({"data": [{"b64_json": "A" * 200_000}], "usage": {"input_tokens": 50, "output_tokens": 4160}}, Usage(50, 4160)),
    (
        {
            "text": "hi",
            "usage": {
                "type": "tokens",
                "input_tokens": 14,
                "output_tokens": 45,
                "total_tokens": 59,
                "input_token_details": {"text_tokens": 4, "audio_tokens": 10},
            },
        },
        Usage(14, 45, audio_input_tokens=10),
    ),
    # A conversation is summed up after a hundred uses of tools, and nothing else is written.
    (
        {"usage": {**CACHED, "output_tokens": 0, "iterations": [{"type": "message", **CACHED}] * 100 + [SUMMED_UP]}},
        Usage(180_550, 3500, 500, 40),
    ),
    ({"usage": {"input_tokens": 4}, "service_tier": "priority"}, Usage(4, service_tier="priority")),
    ({"usage": {"input_tokens": 4}, "service_tier": ["x"]}, Usage(4)),
    ({"text": "hi", "usage": {"type": "duration", "seconds": 9}}, None),
    ({"usage": None}, None),
    ({"usage": {}}, None),
    ({"usage": [1]}, None),
    ({"usage": {"prompt_tokens": -5, "total_tokens": 10**12}}, None),
    ({"input_tokens": 2095}, None),
    ({"content": [{"type": "tool_use", "input": {"usage": SPOOF}}], "usage": {"input_tokens": 900}}, Usage(900)),
    ({"content": [{"type": "text", "text": '"usage":{"input_tokens":1}'}]}, None),
]
STREAMS: list[tuple[bytes, Usage | None]] = [
    (
        events({"choices": [{}], "usage": None}, {"choices": [], "usage": SPOOF}, "[DONE]"),
        Usage(1, 1),
    ),
    (
        events(
            {"type": "response.created", "response": {"usage": None}},
            {"type": "response.completed", "response": {**FLEX, "usage": {"input_tokens": 8, "output_tokens": 6}}},
        ),
        Usage(8, 6, service_tier="flex"),
    ),
    (events({"type": "transcript.text.done", "usage": {"input_tokens": 3, "output_tokens": 4}}), Usage(3, 4)),
    (
        events({**PICTURE, **PICTURED}),
        Usage(5, 600),
    ),
    (
        events({**PICTURED, **PICTURE}, "[DONE]"),
        Usage(5, 600),
    ),
    (events({"type": "thread.run.completed", "usage": {"prompt_tokens": 2, "completion_tokens": 3}}), Usage(2, 3)),
    (events({"delta": {"usage": SPOOF}}, "[DONE]"), None),
    (b": keep-alive\n\n" + events("not json, but it has \"usage\": 3"), None),
]  # fmt: skip
MESSAGE = [
    {"type": "message_start", "message": {"type": "message", "usage": CACHED}},
    *({"type": "content_block_delta", "delta": {"type": "text_delta", "text": "hi"}} for _ in range(30)),
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 77}},
    {"type": "message_stop"},
]
_CUTS = st.lists(st.integers(0, 10**6), max_size=6)


@given(st.sampled_from(WHOLE), _CUTS, st.sampled_from([None, 2]))
def test_whole_answer(case: tuple[dict[str, Any], Usage | None], cuts: list[int], indent: int) -> None:
    """OpenAI's words, rerank's total, pictures, sound; nothing of what a model wrote into a tool's input."""
    body, expected = case

    assert metered(json.dumps(body, indent=indent).encode(), JSON, cuts).usage == expected


@given(st.sampled_from(STREAMS), _CUTS, st.sampled_from([b"\n", b"\r\n"]))
def test_stream(case: tuple[bytes, Usage | None], cuts: list[int], line_end: bytes) -> None:
    """Usage in the event that has it, however long that is and wherever it is cut."""
    raw, expected = case

    facts = metered(raw.replace(b"\n", line_end), EVENTS, cuts)

    assert (facts.usage, facts.is_usage_partial) == (expected, False)
    assert facts.stream_end is StreamEnd.CLEAN


@given(_CUTS)
def test_stream_of_the_messages_api_adds_up(cuts: list[int]) -> None:
    """What is read from and written to the cache is told at the beginning, and the output at the end."""
    usage = metered(events(*MESSAGE), EVENTS, cuts).usage

    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) == (550, 77, 500)


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        ({"input_tokens": 0, "output_tokens": 77}, Usage(550, 77, 500, 40)),
        ({"input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": 0}, Usage(550, 1, 500, 40)),
        ({"input_tokens": 200, "cache_read_input_tokens": 310, "output_tokens": 77}, Usage(550, 77, 310, 40)),
    ],
    ids=["no prompt", "nothing", "another part of it is cached"],
)
def test_stream_of_the_messages_api_that_tells_less_at_its_end(last: dict[str, int], expected: Usage) -> None:
    """Servers that speak it after Anthropic do: what was told before is not taken back."""
    usage = metered(events(*MESSAGE[:-2], {**MESSAGE[-2], "usage": last}), EVENTS, []).usage

    assert usage == expected


@pytest.mark.parametrize("num_events", [1, 2, 12, 31])
def test_stream_of_the_messages_api_that_breaks_off_counts_what_came(num_events: int) -> None:
    """The beginning tells one token of output; leaving early is no way to have the others for nothing."""
    facts = metered(events(*MESSAGE[:num_events]), EVENTS, [], how=StreamEnd.CLIENT_GONE)

    assert facts.usage is not None
    assert (facts.usage.prompt_tokens, facts.usage.completion_tokens) == (550, max(1, num_events - 1))
    assert facts.is_usage_partial


def test_whole_message_with_its_cache() -> None:
    """Of one hour and of five minutes are both part of the prompt."""
    usage = metered(json.dumps({"type": "message", "usage": CACHED}).encode(), JSON, []).usage

    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) == (550, 1, 500)


@pytest.mark.parametrize("method", ["GET", "HEAD", "DELETE"])
def test_what_is_read_again_is_not_metered_again(method: str) -> None:
    """A stored response tells its usage each time."""
    assert passed_taps(make_call(operation=Operation.PASSTHROUGH, method=method), JSON, is_coded=False) == []


def test_what_cannot_be_read_or_is_free_is_not_looked_at() -> None:
    """Compressed, or neither JSON nor events; what is changed of a stored answer tells what making it has used."""
    call = make_call(operation=Operation.PASSTHROUGH)
    free = make_call(operation=Operation.PASSTHROUGH, terms=Terms(Metering.FREE))

    assert passed_taps(call, JSON, is_coded=True) == []
    assert passed_taps(call, b"audio/mpeg", is_coded=False) == []
    assert passed_taps(free, JSON, is_coded=False) == []
