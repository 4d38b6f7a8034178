"""What counts as the first content of a stream, and what as none."""

from __future__ import annotations

import time

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.errors import UpstreamErrorEvent
from backends.operations import Operation
from backends.protocol import Reply
from backends.sse import encode_event
from backends.stream import Stream
from policies.pool.attempts.first_content import JudgedEvents, wait_content
from tests.support.calls import make_call
from tests.support.policy.pool import Pieces


def chunk(**delta: object) -> bytes:
    """One event of a streamed chat."""
    return encode_event(msgspec.json.encode({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}))


ROLE = chunk(role="assistant", content="")


def has_content(arrived: bytes, operation: Operation) -> bool:
    """Of what arrived at once."""
    return JudgedEvents(operation).has_content(arrived)


@pytest.mark.parametrize(
    "said",
    [
        chunk(content="an "),
        chunk(content=" "),
        chunk(content='an "error": of mine'),
        chunk(reasoning_content="well"),
        chunk(tool_calls=[{"index": 0, "function": {"name": "f"}}]),
        chunk(refusal="no"),
        encode_event(b'{"choices": [{"index": 0, "delta": {"content": "spaced"}}]}'),
        encode_event(b'{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}'),
        encode_event(b"half a JSON {"),
        b"data: [DONE]\n\n",
    ],
)
def test_has_content_of_what_says_something(said: bytes) -> None:
    """Alone, behind the role, and only once the event is whole."""
    assert has_content(said, Operation.CHAT)
    assert has_content(ROLE + said, Operation.CHAT)
    assert not has_content(ROLE + said[:-1], Operation.CHAT)


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b": ping\n\n",
        ROLE,
        chunk(content=None, role="assistant"),
        chunk(content="", tool_calls=[]),
        encode_event(b'{"choices":[],"prompt_filter_results":[{"prompt_index":0}]}'),
        encode_event(b'{"choices":[],"usage":{"prompt_tokens":1}}'),
    ],
)
def test_has_content_of_what_says_nothing(said: bytes) -> None:
    """Servers send these before they begin to work."""
    assert not has_content(said, Operation.CHAT)


def test_has_content_of_an_error_before_any_content_raises() -> None:
    """Also where the same piece has words behind it."""
    error = encode_event(b'{"error":{"message":"out of memory"}}')

    with pytest.raises(UpstreamErrorEvent, match="out of memory"):
        has_content(ROLE + error + chunk(content="an "), Operation.CHAT)
    assert has_content(chunk(content="an ") + error, Operation.CHAT)


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        ({"type": "response.created"}, False),
        ({"type": "response.in_progress"}, False),
        ({"type": "response.output_item.added", "item": {"type": "reasoning"}}, True),
        ({"type": "response.output_text.delta", "delta": "an "}, True),
    ],
)
def test_has_content_of_responses_goes_by_the_type(event: dict[str, object], expected: bool) -> None:
    """All but the first ones mean that the model is at work."""
    assert has_content(encode_event(msgspec.json.encode(event)), Operation.RESPONSES) is expected


EVENTS = [
    ROLE,
    b": ping\n\n",
    b": p\r\n\r\n",
    b": p\r\r",
    chunk(content="an "),
    encode_event(b'{"error":{"message":"no"}}'),
]


@given(events=st.lists(st.sampled_from(EVENTS), max_size=6), places=st.lists(st.integers(0, 800), max_size=12))
def test_what_comes_in_pieces_is_judged_like_what_comes_at_once(events: list[bytes], places: list[int]) -> None:
    """Wherever it is cut, inside of a blank line too: the first event that decides does so once it is whole."""
    stream = b"".join(events)
    judged = JudgedEvents(Operation.CHAT)

    for place in (*sorted(place for place in places if place < len(stream)), len(stream)):
        outcomes = []
        for judge in (judged, JudgedEvents(Operation.CHAT)):
            try:
                outcomes.append(str(judge.has_content(stream[:place])))
            except UpstreamErrorEvent as error:
                outcomes.append(error.message)
        assert outcomes[0] == outcomes[1]
        if outcomes[0] != "False":
            return


@pytest.mark.parametrize(("said", "size"), [(b": ping\n\n" * 5000, 8), (ROLE * 400, len(ROLE))])
@pytest.mark.timed
async def test_each_event_is_looked_at_once_however_small_the_pieces_are(said: bytes, size: int) -> None:
    """A server that says nothing in 5000 comments costs as many looks, not the square of that."""

    async def wait_cost_s(*pieces: bytes) -> float:
        stream = Stream(Pieces(*pieces, chunk(content="an ")))
        reply = Reply(200, [(b"content-type", b"text/event-stream")], stream=stream)
        began = time.thread_time()
        await wait_content(reply, make_call(), 60.0)
        return time.thread_time() - began

    pieces = [said[at : at + size] for at in range(0, len(said), size)]
    # What a piece costs by itself, whatever came before it.
    apart_s = min([sum([await wait_cost_s(piece) for piece in pieces[-500:]]) / 500 for _ in range(3)])

    assert min([await wait_cost_s(*pieces) for _ in range(3)]) < 10 * apart_s * len(pieces)
