"""Events as bytes: where they end, what their data is, whatever pieces they come in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.errors import UpstreamGarbage
from backends.sse import (
    DONE_EVENT,
    EventBuffer,
    encode_event,
    event_data,
    find_events,
    has_done,
    split_events,
    whole_events_end,
)

LINE_ENDS = (b"\n", b"\r\n", b"\r")
_TEXT = st.binary(max_size=12).map(lambda raw: raw.replace(b"\n", b"n").replace(b"\r", b"r"))
_LINES = st.one_of(
    st.builds(lambda text: b"data: " + text, _TEXT),
    st.builds(lambda text: b"data:" + text, _TEXT),
    st.builds(lambda text: b": " + text, _TEXT),
    st.builds(lambda text: b"id: " + text, _TEXT),
)


@st.composite
def event_lists(draw: st.DrawFn) -> list[bytes]:
    """Whole events with one kind of line end."""
    end = draw(st.sampled_from(LINE_ENDS))
    lines = draw(st.lists(st.lists(_LINES, min_size=1, max_size=3), max_size=6))
    return [end.join(event) + end + end for event in lines]


@given(events=event_lists())
def test_split_events_of_joined_events_gives_them_back(events: list[bytes]) -> None:
    """Each event comes with its own bytes, nothing is lost between them."""
    assert list(split_events(b"".join(events))) == events


@given(events=event_lists(), sizes=st.lists(st.integers(1, 7), min_size=1, max_size=5))
def test_event_buffer_cut_anywhere_gives_the_same_events(events: list[bytes], sizes: list[int]) -> None:
    """Where the network cuts does not matter; a CR at the very end may still become a CRLF."""
    data = b"".join(events)
    buffer = EventBuffer()
    found: list[bytes] = []
    at = 0
    turn = 0
    while at < len(data):
        size = sizes[turn % len(sizes)]
        found += buffer.feed(data[at : at + size])
        at += size
        turn += 1
    rest = buffer.rest()

    assert found + ([rest] if rest else []) == events


def test_event_buffer_with_an_endless_event_refuses_it() -> None:
    """Memory is bounded."""
    buffer = EventBuffer(max_event_bytes=100)
    buffer.feed(b"data: " + b"x" * 90)

    with pytest.raises(UpstreamGarbage, match="longer than 100 bytes"):
        buffer.feed(b"x" * 20)


@pytest.mark.parametrize(
    ("event", "data"),
    [
        (b"data: a\n\n", b"a"),
        (b"data:a\r\n\r\n", b"a"),
        (b"data:  a\n\n", b" a"),
        (b"data: a\ndata: b\n\n", b"a\nb"),
        (b"event: x\ndata: a\n\n", b"a"),
        (b": comment\n\n", None),
        (b"data\n\n", None),
        (b"data:\n\n", b""),
    ],
)
def test_event_data_follows_the_standard(event: bytes, data: bytes | None) -> None:
    """At most one space after the colon belongs to the syntax; several lines are joined."""
    assert event_data(event) == data


def test_encode_event_reads_back() -> None:
    """What we write is what we read."""
    assert event_data(encode_event(b'{"a":1}')) == b'{"a":1}'


@pytest.mark.parametrize(
    "block", [DONE_EVENT, b"data:[DONE]\r\n\r\n", b'data: {"a":1}\n\ndata: [DONE]\n\n', b"data: [DONE]"]
)
def test_has_done_where_it_is_a_line_of_its_own_is_true(block: bytes) -> None:
    """With and without the space, last or alone."""
    assert has_done(block)


@pytest.mark.parametrize(
    "block",
    [
        b"",
        b'data: {"text":"say data: [DONE] now"}\n\n',
        b'data: {"text":"[DONE]"}\n\n',
        b"xdata: [DONE]\n\n",
        b": [DONE]\n\n",
    ],
)
def test_has_done_where_it_is_only_text_is_false(block: bytes) -> None:
    """A model may write these words; they end nothing."""
    assert not has_done(block)


@given(events=event_lists(), tail=_TEXT)
def test_whole_events_end_stands_behind_the_last_blank_line(events: list[bytes], tail: bytes) -> None:
    """What follows is an unfinished event."""
    data = b"".join(events)

    assert whole_events_end(data + tail) == len(data)


_CHUNKS = st.sampled_from(
    [
        b'{"usage":null}',
        b'{"usage": null,"a":1}',
        b'{"usage":{"n":1}}',
        b'{"a":"\\"usage\\""}',
        b'{"a":1}',
        b'{"usage": 7}',
    ]
)


@given(chunks=st.lists(_CHUNKS, max_size=8), end=st.sampled_from(LINE_ENDS))
def test_find_events_finds_those_whose_field_says_something(chunks: list[bytes], end: bytes) -> None:
    """Null is nothing, and so is the word inside of a text."""
    events = [b"data: " + chunk + end + end for chunk in chunks]
    data = b"".join(events)
    telling = [event for event in events if b'"usage":{' in event or b'"usage": 7' in event]

    found = [data[begin:stop] for begin, stop in find_events(data, b'"usage"', data.find(b'"usage"'))]

    assert found == telling
