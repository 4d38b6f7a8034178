"""Replies are read as they were sent, in whatever pieces they come; what is none ends the connection."""

from __future__ import annotations

import pytest

from policies.limits.redis.replies import NotRedisError, Replies, Reply, ReplyError

SENT = b":-7\r\n+OK\r\n$4\r\n\r\n:1\r\n$-1\r\n*3\r\n:1\r\n$0\r\n\r\n*1\r\n$-1\r\n*0\r\n-ERR no\r\n"
MEANT = [-7, b"OK", b"\r\n:1", None, [1, b"", [None]], []]


@pytest.mark.parametrize("size", [1, 2, 3, 7, len(SENT)])
def test_read_pieces_of_any_size_gives_all_in_order(size: int) -> None:
    """A piece may end within a length, within an array, between the ends of a line."""
    replies, read = Replies(), list[Reply]()
    for begin in range(0, len(SENT), size):
        read += replies.read(SENT[begin : begin + size])

    assert read[:-1] == MEANT
    assert isinstance(read[-1], ReplyError)
    assert str(read[-1]) == "ERR no"


@pytest.mark.parametrize(
    "sent",
    [
        b"HTTP/1.1 200 OK\r\n",
        b"$x\r\n",
        b":\r\n",
        b"\r\n",
        b"$99999999999\r\n",
        b"x" * 70_000,
        b"*1\r\n" * 5000 + b":1\r\n",
    ],
    ids=["http", "length", "no number", "nothing", "huge", "no line", "deep"],
)
def test_read_no_reply_of_a_redis_raises(sent: bytes) -> None:
    """Nothing after it could be trusted."""
    with pytest.raises(NotRedisError):
        Replies().read(sent)
