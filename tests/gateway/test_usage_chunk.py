"""The usage chunk that nobody asked for is taken out, wherever a stream is cut; every other byte stays."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.http.usage_chunk import UsageChunkFilter

USAGE = {"prompt_tokens": 3, "completion_tokens": 1}
HIDDEN = [
    {"choices": [], "usage": USAGE},
    {"id": "c", "choices": [], "usage": USAGE, "x": None},
    {"usage": {"a": {"usage": None}}, "choices": []},
]
KEPT = [
    {"choices": [{"index": 0, "delta": {"content": "hi"}}], "usage": None},
    {"choices": [{"index": 0, "delta": {"content": '"usage":{}, "choices":[]'}}]},
    {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": USAGE},
    {"choices": [], "usage": None},
    {"choices": [], "prompt_filter_results": [{"usage": 1}]},
    {"usage": USAGE},
]
ENDS = ["\n", "\r\n", "\r"]


def _event(value: object, end: str, space: str, separators: tuple[str, str]) -> str:
    return f"data:{space}{json.dumps(value, separators=separators)}{end}{end}"


def _events(values: list[object]) -> st.SearchStrategy[str]:
    return st.builds(
        _event,
        st.sampled_from(values),
        st.sampled_from(ENDS),
        st.sampled_from(["", " "]),
        st.sampled_from([(",", ":"), (", ", ": ")]),
    )


_OTHER = st.sampled_from([": ping\n\n", "data: [DONE]\n\n", "event: x\ndata: {}\n\n", 'data: {"usage": broken\n\n'])
_PARTS = st.lists(
    st.tuples(_events(list(HIDDEN)), st.just(False)) | st.tuples(_events(list(KEPT)) | _OTHER, st.just(True)),
    max_size=8,
)


def _through(pieces: list[bytes], *, hides_usage: bool = True) -> bytes:
    usage_filter = UsageChunkFilter(hides_usage=hides_usage)
    return b"".join([*map(usage_filter.feed, pieces), usage_filter.rest()])


def _cut(data: bytes, places: list[int]) -> list[bytes]:
    borders = [0, *sorted({place % (len(data) + 1) for place in places}), len(data)]
    return [data[start:stop] for start, stop in pairwise(borders) if start < stop]


@given(parts=_PARTS, places=st.lists(st.integers(0, 5000), max_size=12))
def test_filter_takes_out_usage_chunks_and_nothing_else(parts: list[tuple[str, bool]], places: list[int]) -> None:
    """However the stream is cut, and whatever its line ends."""
    stream = "".join(event for event, _ in parts).encode()
    expected = "".join(event for event, is_kept in parts if is_kept).encode()

    assert _through(_cut(stream, places)) == expected
    assert _through(_cut(stream, places), hides_usage=False) == stream


@pytest.mark.parametrize("num_bytes", [60_000, 70_000, 300_000])
@pytest.mark.parametrize("size", [1000, 65_536, 10**9])
def test_filter_passes_long_events_without_keeping_them(num_bytes: int, size: int) -> None:
    """An event too long to be a usage chunk is not held back, and the chunk behind it is still found."""
    long_event = b'data: {"choices":[{"delta":{"content":"%b"}}]}\n\n' % (b"x" * num_bytes)
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":1}}\n\n'
    stream = long_event + usage + b"data: [DONE]\n\n"
    pieces = [stream[at : at + size] for at in range(0, len(stream), size)]

    assert _through(pieces) == long_event + b"data: [DONE]\n\n"


def test_filter_holds_back_an_unfinished_event_only() -> None:
    """Whole events leave at once; half of one waits for its end."""
    usage_filter = UsageChunkFilter()

    assert usage_filter.feed(b'data: {"a":1}\n\ndata: {"b"') == b'data: {"a":1}\n\n'
    assert usage_filter.feed(b":2}\n") == b""
    assert usage_filter.feed(b"\n") == b'data: {"b":2}\n\n'
    assert usage_filter.rest() == b""


def _vllm(fingerprint: str | None, num_choices: int = 1) -> list[bytes]:
    """The events of a vLLM server that was asked for usage: its fingerprint is in the last of them only."""
    head = {"id": "c", "object": "chat.completion.chunk"}
    chunks: list[dict[str, object]] = [{**head, "choices": [{"index": 0, "delta": {"content": "hi"}}]}]
    chunks += [
        {**head, "choices": [{"index": index, "delta": {}, "finish_reason": "stop"}]} for index in range(num_choices)
    ]
    last = {**head, "choices": [], "usage": USAGE}
    chunks.append(last if fingerprint is None else {**last, "system_fingerprint": fingerprint})
    return [f"data: {json.dumps(chunk, separators=(',', ':'))}\n\n".encode() for chunk in chunks] + [
        b"data: [DONE]\n\n"
    ]


@given(places=st.lists(st.integers(0, 2000), max_size=12), num_choices=st.integers(1, 3))
def test_fingerprint_of_a_hidden_usage_chunk_moves_to_the_event_that_finishes(
    places: list[int], num_choices: int
) -> None:
    """As the server would have said it, had nobody asked for usage; every other byte stays, wherever it is cut."""
    events = _vllm("fp-1", num_choices)
    stamped = events[-3].replace(b"data: {", b'data: {"system_fingerprint":"fp-1",')

    shown = _through(_cut(b"".join(events), places))

    assert shown == b"".join((*events[:-3], stamped, events[-1]))


@given(places=st.lists(st.integers(0, 2000), max_size=12))
def test_usage_chunk_without_a_fingerprint_changes_no_other_event(places: list[int]) -> None:
    """What was held comes as it was."""
    events = _vllm(None)

    assert _through(_cut(b"".join(events), places)) == b"".join((*events[:-2], events[-1]))


def test_event_that_finishes_waits_for_the_next_one_only() -> None:
    """It is sent on with whatever comes behind it, and where the stream breaks as well."""
    begins, finishes, _, done = _vllm("fp-1")
    usage_filter = UsageChunkFilter()

    assert usage_filter.feed(begins) == begins
    assert usage_filter.feed(finishes) == b""
    assert usage_filter.whole() == finishes
    assert usage_filter.feed(finishes) == b""
    assert usage_filter.feed(done) == finishes + done
    assert usage_filter.rest() == b""


def _finishing(choice: dict[str, object]) -> bytes:
    chunk = {"id": "c", "choices": [{"index": 0, **choice, "finish_reason": "stop"}]}
    return f"data: {json.dumps(chunk, separators=(',', ':'))}\n\n".encode()


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("text", ["data: {", "SSE lines look like data: {", "\ndata: {", "data:{"])
def test_fingerprint_is_put_in_front_of_the_event_and_never_into_its_text(text: str, end: str) -> None:
    """A text may hold what an event begins with."""
    begins, _, usage, done = (event.replace(b"\n", end.encode()) for event in _vllm("fp-1"))
    finishes = _finishing({"delta": {"content": text}}).replace(b"\n", end.encode())

    shown = _through([begins, finishes + usage, done])

    assert shown == begins + finishes.replace(b"data: {", b'data: {"system_fingerprint":"fp-1",', 1) + done


@pytest.mark.parametrize("odd", [b": {}\n\n", b"x", b"data: {}\n\r\n", b'data: [{"a":0},\n'])
def test_fingerprint_is_left_out_where_the_event_could_not_be_read_with_it(odd: bytes) -> None:
    """Every event stays as it was, or is JSON with the fingerprint."""
    _, finishes, usage, done = _vllm("fp-1")
    stamped = finishes.replace(b"data: {", b'data: {"system_fingerprint":"fp-1",')

    assert _through([odd + finishes + usage, done]) in (odd + finishes + done, odd + stamped + done)


@pytest.mark.parametrize(
    "choice",
    [
        {"delta": {"content": " end"}},
        {"delta": {"role": "assistant", "reasoning_content": "so"}},
        {"delta": {"tool_calls": [{"index": 0, "function": {"arguments": "}"}}]}},
        {"text": " end"},
        {"delta": "odd"},
    ],
)
def test_event_that_finishes_with_words_waits_for_nothing(choice: dict[str, object]) -> None:
    """What a client shows comes when it is said, also where the usage chunk comes late."""
    usage_filter = UsageChunkFilter()

    assert usage_filter.feed(_finishing(choice)) == _finishing(choice)


@pytest.mark.parametrize(
    "choice",
    [
        {"delta": {"content": ""}},
        {"delta": {"role": "assistant", "content": None, "tool_calls": []}},
        {"delta": None},
        {"text": ""},
    ],
)
def test_event_that_only_finishes_is_held(choice: dict[str, object]) -> None:
    """However a server says that there are no more words."""
    assert UsageChunkFilter().feed(_finishing(choice)) == b""
