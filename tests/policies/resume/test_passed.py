"""What is kept of a stream that could go on: no more than its bounds, whatever an upstream sends."""

from __future__ import annotations

import msgspec

from backends.operations import Operation
from backends.resume import Resume, encode_mark
from policies.resume.passed import PassedStream

TAKERS = frozenset({"b"})


def event(content: str) -> bytes:
    """A chunk that says this."""
    return (
        b"data: " + msgspec.json.encode({"id": "a", "choices": [{"index": 0, "delta": {"content": content}}]}) + b"\n\n"
    )


def test_upstream_that_stops_marking_is_passed_on_and_not_gone_on_with() -> None:
    """A mark promises further ones; without them a stream is held to a bound, and can go on again behind the next."""
    passed = PassedStream(Operation.CHAT, tells_text=False)
    begin = passed.feed(event("x") + encode_mark(Resume(id="a", tokens=(1,))))
    piece = event("y" * 10_000)

    shown = [passed.feed(piece) for _ in range(105)]

    assert begin == event("x")
    assert shown[0] == b""
    assert b"".join(shown) == piece * 105
    assert passed.broken("tokens", TAKERS) is None
    passed.feed(encode_mark(Resume(tokens=(2,))))
    again = passed.broken("tokens", TAKERS)
    assert again is not None
    assert again.begun.tokens == (1, 2)


def test_text_without_end_is_not_kept() -> None:
    """Beyond a MiB an answer passes, and that is all."""
    passed = PassedStream(Operation.CHAT, tells_text=True)
    piece = event("z" * 100_000)

    for _ in range(10):
        assert passed.feed(piece) == piece
    kept = passed.broken("text", TAKERS)
    assert kept is not None
    assert len(kept.text) == 1_000_000
    passed.feed(piece)

    assert passed.broken("text", TAKERS) is None


def test_tokens_without_end_are_not_kept() -> None:
    """No model has an answer of a million tokens."""
    passed = PassedStream(Operation.CHAT, tells_text=False)
    mark = event("x") + encode_mark(Resume(id="a", tokens=tuple(range(250_000))))

    for _ in range(4):
        passed.feed(mark)
    assert passed.broken("tokens", TAKERS) is not None
    for _ in range(3):
        passed.feed(mark)

    assert passed.broken("tokens", TAKERS) is None
    assert passed.num_tokens == 1_250_000
