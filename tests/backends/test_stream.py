"""The pump: every tap sees every piece in order, and exactly one end, whichever way the stream ends."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.errors import ClientGone, InternalError, SlipstreamError, StreamStalled, TotalTimeout, UpstreamCut
from backends.stream import Receive, Stream, StreamEnd


class ListSource:
    """Hands out pieces, then raises `error` or ends."""

    def __init__(self, pieces: list[bytes], error: SlipstreamError | None = None) -> None:
        self.pieces = list(pieces)
        self.error = error
        self.num_closed = 0

    async def read(self) -> bytes:
        """The next piece."""
        if self.pieces:
            return self.pieces.pop(0)
        if self.error is not None:
            raise self.error
        return b""

    async def aclose(self) -> None:
        """Counted."""
        self.num_closed += 1


class LogTap:
    """Writes what it sees to a log that all taps of a test share."""

    def __init__(self, name: str, log: list[tuple[str, bytes | StreamEnd]]) -> None:
        self.name = name
        self.log = log

    def feed(self, piece: bytes) -> None:
        """One piece."""
        self.log.append((self.name, piece))

    def end(self, how: StreamEnd) -> None:
        """The end."""
        self.log.append((self.name, how))


def tapped(
    source: ListSource, is_complete: Callable[[], bool] | None = None, first: bytes = b""
) -> tuple[Stream, list[tuple[str, bytes | StreamEnd]]]:
    """A stream with two taps, and their common log."""
    log: list[tuple[str, bytes | StreamEnd]] = []
    return Stream(source, [LogTap("a", log), LogTap("b", log)], is_complete, first), log


async def test_stream_read_feeds_taps_in_order_before_the_reader() -> None:
    """Each piece passes tap by tap and only then reaches the reader; the end passes once."""
    stream, log = tapped(ListSource([b"one", b"two"]))

    assert await stream.read() == b"one"
    assert log == [("a", b"one"), ("b", b"one")]
    assert await stream.read() == b"two"
    assert await stream.read() == b""

    assert log[2:] == [("a", b"two"), ("b", b"two"), ("a", StreamEnd.CLEAN), ("b", StreamEnd.CLEAN)]
    assert stream.end is StreamEnd.CLEAN


async def test_stream_with_a_first_piece_hands_it_out_first() -> None:
    """What was read off the source beforehand passes the taps like any other piece."""
    stream, log = tapped(ListSource([b"two"]), first=b"one")

    pieces = [await stream.read() for _ in range(3)]

    assert pieces == [b"one", b"two", b""]
    assert log[0] == ("a", b"one")


@pytest.mark.parametrize(
    ("error", "end"),
    [
        (UpstreamCut("gone"), StreamEnd.UPSTREAM_CUT),
        (StreamStalled("silent"), StreamEnd.STALL),
        (ClientGone("left"), StreamEnd.CLIENT_GONE),
        (TotalTimeout("late"), StreamEnd.ERROR),
        (InternalError("bug"), StreamEnd.ERROR),
    ],
)
async def test_stream_that_fails_ends_as_its_error_says(error: SlipstreamError, end: StreamEnd) -> None:
    """The error reaches the reader as it is, and the taps learn which end that was."""
    stream, log = tapped(ListSource([b"one"], error))
    await stream.read()

    with pytest.raises(SlipstreamError) as raised:
        await stream.read()

    assert raised.value is error
    assert stream.end is end
    assert log[2:] == [("a", end), ("b", end)]


async def test_stream_incomplete_at_its_end_is_cut() -> None:
    """A transport that ends in good order before the answer does is a cut, never a clean end."""
    stream, log = tapped(ListSource([b"data: 1\n\n"]), is_complete=lambda: False)
    await stream.read()

    with pytest.raises(UpstreamCut):
        await stream.read()

    assert stream.end is StreamEnd.UPSTREAM_CUT
    assert log[2:] == [("a", StreamEnd.UPSTREAM_CUT), ("b", StreamEnd.UPSTREAM_CUT)]


async def test_stream_complete_at_its_end_is_clean() -> None:
    """The terminator has been seen, so the end is the end."""
    stream, _ = tapped(ListSource([b"data: [DONE]\n\n"]), is_complete=lambda: True)
    await stream.read()

    assert await stream.read() == b""
    assert stream.end is StreamEnd.CLEAN


class PushingSource(ListSource):
    """A source that can also hand its pieces on."""

    async def push(self, receive: Receive) -> bool:
        """Until there is none left, or a pause is asked for."""
        while piece := await self.read():
            if not receive(piece):
                return True
        return False


def pushed(source: PushingSource, **settings: Any) -> tuple[Stream, list[tuple[str, bytes | StreamEnd]]]:
    """A stream over such a source, with one tap, and its log."""
    log: list[tuple[str, bytes | StreamEnd]] = []
    return Stream(source, [LogTap("a", log)], push=source.push, **settings), log


@pytest.mark.parametrize("is_pushing", [True, False])
@pytest.mark.parametrize("first", [b"", b"zero"])
async def test_stream_forwarded_with_pauses_loses_nothing(is_pushing: bool, first: bytes) -> None:
    """A source that pushes and one that is read give the same pieces, pauses and end, to taps and receiver."""
    source = PushingSource([b"one", b"two", b"three"])
    log: list[tuple[str, bytes | StreamEnd]] = []
    stream = Stream(source, [LogTap("a", log)], first=first, push=source.push if is_pushing else None)
    received: list[bytes] = []

    def receive(piece: bytes) -> bool:
        received.append(piece)
        return piece not in (b"zero", b"two")

    num_pauses = 0
    while await stream.forward(receive):
        num_pauses += 1

    pieces = [*([first] if first else []), b"one", b"two", b"three"]
    assert received == pieces
    assert log == [*(("a", piece) for piece in pieces), ("a", StreamEnd.CLEAN)]
    assert num_pauses == (2 if first else 1)


async def test_stream_forwarded_that_fails_ends_as_its_error_says() -> None:
    """The error comes out of forward, and taps learn of the end."""
    stream, log = pushed(PushingSource([b"one"], StreamStalled("silent")))

    with pytest.raises(StreamStalled):
        await stream.forward(lambda piece: True)

    assert log == [("a", b"one"), ("a", StreamEnd.STALL)]


async def test_stream_forwarded_incomplete_at_its_end_is_cut() -> None:
    """A good end of the transport is a cut where the answer is not whole."""
    stream, log = pushed(PushingSource([b"one"]), is_complete=lambda: False)

    with pytest.raises(UpstreamCut):
        await stream.forward(lambda piece: True)

    assert log[-1] == ("a", StreamEnd.UPSTREAM_CUT)


@pytest.mark.parametrize("how", list(StreamEnd))
async def test_stream_closed_early_ends_as_the_closer_says(how: StreamEnd) -> None:
    """Closing in the middle records the closer's reason once and closes the source."""
    source = ListSource([b"one", b"two"])
    stream, log = tapped(source)
    await stream.read()

    await stream.aclose(how)
    await stream.aclose(StreamEnd.ERROR)

    assert stream.end is how
    assert log[2:] == [("a", how), ("b", how)]
    assert source.num_closed == 2


async def test_stream_closed_without_a_reason_lost_its_client() -> None:
    """Who just lets go of a stream is a client that left."""
    stream, _ = tapped(ListSource([b"one"]))

    await stream.aclose()

    assert stream.end is StreamEnd.CLIENT_GONE


async def test_stream_closed_after_its_end_keeps_that_end() -> None:
    """Closing is release, not a second end."""
    source = ListSource([])
    stream, log = tapped(source)
    await stream.read()

    await stream.aclose()

    assert stream.end is StreamEnd.CLEAN
    assert log == [("a", StreamEnd.CLEAN), ("b", StreamEnd.CLEAN)]
    assert source.num_closed == 1


async def test_stream_cancelled_read_has_not_ended() -> None:
    """Cancelling a reader decides nothing; the owner who closes says how it ended."""

    class SilentSource(ListSource):
        async def read(self) -> bytes:
            await asyncio.get_running_loop().create_future()
            return b""

    stream, log = tapped(SilentSource([]))
    reading = asyncio.create_task(stream.read())
    await asyncio.sleep(0)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading

    assert stream.end is None
    await stream.aclose()
    assert log == [("a", StreamEnd.CLIENT_GONE), ("b", StreamEnd.CLIENT_GONE)]


async def test_stream_tap_added_later_sees_the_rest() -> None:
    """A stage further up may put its own tap on a stream that has begun."""
    stream, log = tapped(ListSource([b"one", b"two"]))
    await stream.read()

    stream.taps.append(LogTap("late", log))
    await stream.read()
    await stream.read()

    assert [seen for name, seen in log if name == "late"] == [b"two", StreamEnd.CLEAN]


@pytest.mark.parametrize("error", [UpstreamCut("x"), StreamStalled("x"), TotalTimeout("x")])
async def test_a_transport_that_fails_behind_the_answer_takes_nothing_from_it(error: SlipstreamError) -> None:
    """`[DONE]` has passed, and what the connection does then is no matter of the client's."""
    stream = Stream(ListSource([b"one"], error), is_over=lambda: True)
    assert await stream.read_all(100) == b"one"
    assert stream.end is StreamEnd.CLEAN

    late = Stream(ListSource([b"one"], InternalError("x")), is_over=lambda: True)
    with pytest.raises(InternalError):
        await late.read_all(100)


@pytest.mark.parametrize("is_over", [True, False])
async def test_who_leaves_behind_the_last_event_has_the_whole_answer(is_over: bool) -> None:
    """Clients stop at `[DONE]`, and the transport may end a moment later; a cut or a stall stays one."""
    for how in (StreamEnd.CLIENT_GONE, StreamEnd.STALL):
        stream = Stream(ListSource([b"one", b"two"]), is_over=lambda: is_over)
        await stream.read()
        await stream.aclose(how)

        assert stream.end is (StreamEnd.CLEAN if is_over and how is StreamEnd.CLIENT_GONE else how)


@given(
    pieces=st.lists(st.binary(min_size=1, max_size=5), max_size=10),
    error=st.sampled_from([None, UpstreamCut("x"), StreamStalled("x"), TotalTimeout("x")]),
    num_reads=st.integers(0, 12),
)
def test_stream_any_reading_ends_each_tap_once(
    pieces: list[bytes], error: SlipstreamError | None, num_reads: int
) -> None:
    """However far a stream is read before it is closed, each tap sees what the reader saw and then one end."""

    async def run() -> None:
        source = ListSource(pieces, error)
        stream, log = tapped(source)
        with contextlib.suppress(SlipstreamError):
            for _ in range(num_reads):
                await stream.read()
        await stream.aclose()

        assert stream.end is not None
        seen = pieces[: len(pieces) - len(source.pieces)]
        assert all([what for who, what in log if who == name] == [*seen, stream.end] for name in "ab")

    asyncio.run(run())
