"""What is read off a stream as it passes, whatever pieces it comes in."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.http.meter import StreamMeter
from backends.protocol import Facts, Usage
from backends.sse import DONE_EVENT, encode_event

USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}}


def chunk(text: str = "", finish: str | None = None, index: int = 0, **fields: Any) -> bytes:
    """One chat chunk."""
    choice = {"index": index, "delta": {"content": text}, "finish_reason": finish}
    return encode_event(msgspec.json.encode({"choices": [choice], **fields}))


def usage_chunk() -> bytes:
    """The chunk that holds the usage and nothing else."""
    return encode_event(msgspec.json.encode({"choices": [], "usage": USAGE}))


def meter_of(
    data: bytes, cuts: list[int], num_choices: int = 1, *, responses: bool = False
) -> tuple[StreamMeter, Facts]:
    """A meter that has seen these bytes in pieces of these sizes, over and over."""
    facts = Facts()
    meter = StreamMeter(facts, responses=responses, num_choices=num_choices)
    at = turn = 0
    while at < len(data):
        size = cuts[turn % len(cuts)]
        meter.feed(data[at : at + size])
        at += size
        turn += 1
    return meter, facts


CUTS = st.lists(st.integers(1, 40), min_size=1, max_size=6)


@given(cuts=CUTS, crlf=st.booleans())
def test_meter_of_a_whole_stream_reads_usage_and_completeness(cuts: list[int], crlf: bool) -> None:
    """Any cuts, either line end."""
    data = chunk("he said: [DONE]") + chunk('"usage" "error"') + chunk(finish="stop") + usage_chunk() + DONE_EVENT
    meter, facts = meter_of(data.replace(b"\n", b"\r\n") if crlf else data, cuts)

    assert facts.usage == Usage(7, 3, 2)
    assert meter.is_complete()


@given(cuts=CUTS, keep=st.integers(0, 4))
def test_meter_of_a_stream_that_stops_early_is_incomplete(cuts: list[int], keep: int) -> None:
    """Without a reason to finish and without [DONE] an answer is not whole."""
    meter, _ = meter_of(b"".join([chunk("a"), chunk("b"), chunk('c "finish_reason":"stop"'), chunk("d")][:keep]), cuts)

    assert not meter.is_complete()


@given(cuts=CUTS)
def test_meter_of_two_choices_wants_both_finished(cuts: list[int]) -> None:
    """A server that sends no [DONE] has to finish every choice."""
    one = chunk("a", index=0) + chunk("b", index=1) + chunk(finish="stop", index=0)

    assert not meter_of(one, cuts, 2)[0].is_complete()
    assert meter_of(one + chunk(finish="length", index=1), cuts, 2)[0].is_complete()


@given(cuts=CUTS)
def test_meter_of_an_error_event_is_failed_even_with_done(cuts: list[int]) -> None:
    """Some servers say [DONE] behind an error; the answer is no answer all the same."""
    data = chunk("a") + encode_event(b'{"error":{"message":"out of memory"}}') + DONE_EVENT
    meter, _ = meter_of(data, cuts)

    assert meter.failed
    assert not meter.is_complete()


@given(cuts=CUTS)
def test_meter_with_null_errors_and_usages_on_every_chunk_ignores_them(cuts: list[int]) -> None:
    """OpenAI sends `"usage":null` with every chunk when usage is asked for."""
    data = chunk("a", usage=None, error=None) * 3 + chunk(finish="stop", usage=None) + usage_chunk() + DONE_EVENT
    meter, facts = meter_of(data, cuts)

    assert facts.usage == Usage(7, 3, 2)
    assert meter.is_complete()


@pytest.mark.parametrize(
    ("last", "is_complete"),
    [
        ({"type": "response.completed", "response": {"usage": {"input_tokens": 4, "output_tokens": 2}}}, True),
        ({"type": "response.incomplete", "response": {"usage": {"input_tokens": 4, "output_tokens": 2}}}, True),
        ({"type": "response.failed", "response": {"error": {"message": "x"}, "usage": None}}, False),
        ({"type": "response.output_text.delta", "delta": "response.completed"}, False),
    ],
)
@given(cuts=CUTS)
def test_meter_of_responses_goes_by_the_last_event(last: dict[str, Any], is_complete: bool, cuts: list[int]) -> None:
    """Responses have no [DONE]; their events say how they end."""
    data = encode_event(b'{"type":"response.created"}') + encode_event(msgspec.json.encode(last))
    meter, facts = meter_of(data, cuts, responses=True)

    assert meter.is_complete() is is_complete
    if is_complete:
        assert facts.usage == Usage(4, 2, 0)


def test_meter_of_a_long_line_stays_bounded() -> None:
    """A line without an end does not pile up."""
    meter, _ = meter_of(b"data: " + b"x" * 1_000_000, [4096])

    assert sum(map(len, meter._parts)) <= 128 * 1024
