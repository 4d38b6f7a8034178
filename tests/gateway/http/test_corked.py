"""What is written to a connection goes out in its order, whatever of it is held back."""

from __future__ import annotations

import asyncio
import contextlib
import socket

from hypothesis import given
from hypothesis import strategies as st

from gateway.http.corked import CorkedTransport

STEPS = st.lists(st.sampled_from(["write", "head", "rest", "hold", "release", "turn", "close"]), max_size=20)


async def _sent(steps: list[str]) -> tuple[bytes, bytes, bool]:
    """What a peer gets from these steps, what was written before the first close, and whether it was closed."""
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_accepted_socket(asyncio.Protocol, ours)
    corked = CorkedTransport(transport, loop)
    written = b""
    is_open = True
    for number, step in enumerate(steps):
        data = b"%b%d " % (b"HTTP/1.1 " if step == "head" else b"x", number)
        match step:
            case "write" | "head":
                corked.write(data)
            case "rest":
                corked.write_rest(data)
            case "hold":
                corked.hold()
            case "release":
                corked.release()
            case "close":
                corked.close()
                is_open = False
            case "turn":
                await asyncio.sleep(0)
        if step in ("write", "head", "rest"):
            written += data
        if not is_open:
            assert corked.is_closing()
            break
    corked.release()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    got = b""
    with contextlib.suppress(BlockingIOError):
        while piece := theirs.recv(65536):
            got += piece
    is_closed = transport.is_closing()
    transport.abort()
    theirs.close()
    await asyncio.sleep(0)
    return got, written, is_closed


@given(STEPS)
def test_all_that_is_written_is_sent_in_its_order(steps: list[str]) -> None:
    """Held heads, ends and closes among it."""
    got, written, is_closed = asyncio.run(_sent(steps))

    assert got == written
    assert is_closed == ("close" in steps)


async def test_end_is_out_only_when_it_is_released() -> None:
    """And is never sent to who has left."""
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_accepted_socket(asyncio.Protocol, ours)
    corked = CorkedTransport(transport, loop)

    corked.write_rest(b"begin ")
    corked.hold()
    corked.write_rest(b"end")
    await asyncio.sleep(0)
    assert theirs.recv(100) == b"begin "
    corked.release()
    assert theirs.recv(100) == b"end"
    corked.hold()
    corked.write_rest(b"more")
    corked.lose()
    corked.release()
    corked.write_rest(b"and more")
    await asyncio.sleep(0)
    with contextlib.suppress(BlockingIOError):
        assert theirs.recv(100) == b""
    transport.abort()
    theirs.close()
