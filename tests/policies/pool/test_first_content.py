"""What counts as the first content of a stream, and what as none."""

from __future__ import annotations

import msgspec
import pytest

from backends.errors import UpstreamErrorEvent
from backends.protocol import Operation
from backends.sse import encode_event
from policies.pool.first_content import has_content


def chunk(**delta: object) -> bytes:
    """One event of a streamed chat."""
    return encode_event(msgspec.json.encode({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}))


ROLE = chunk(role="assistant", content="")


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
