"""Wants as scripts read them, and a script's figures in our units.

Scripts count whole nano-dollars, for their numbers are exact up to 2^53 only. What is spent is rounded up and what may
be spent is rounded down, so a budget ends early by at most a nano-dollar a call, and never late.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from policies.limits.counters import Full, Rate, Spend, SpentBefore, Want

_PICO_PER_NANO = 1000
_MOST = 2**63 - 1

_encode = msgspec.msgpack.Encoder().encode
unpack = msgspec.msgpack.Decoder(list[int]).decode
"""What a reservation is answered."""


def pack_wants(wants: tuple[Want, ...]) -> bytes:
    """What a script is asked for, and what a hold is kept as."""
    try:
        return _encode(wants)
    except (UnicodeEncodeError, OverflowError):
        return _encode(tuple(map(_packable, wants)))


def pack_holds(holds: Sequence[tuple[bytes, tuple[Want, ...]]]) -> bytes:
    """What calls hold, by the id of the hold."""
    return _encode([(hold_id.decode(), tuple(map(_packable, wants))) for hold_id, wants in holds])


def pack_used(settled: Sequence[tuple[str, Sequence[int]]]) -> bytes:
    """What calls have used, by the id of the hold."""
    try:
        return _encode(settled)
    except OverflowError:
        return _encode([(hold_id, [min(amount, _MOST) for amount in used]) for hold_id, used in settled])


def pack_spent(amounts: Sequence[SpentBefore]) -> bytes:
    """Pico-dollars by the key of a budget, and when its window ends."""
    return _encode([(key_of(each.key), min(each.spent, _MOST), each.ends_at) for each in amounts])


def key_of(key: str) -> str:
    """A key that can be sent: half a surrogate pair, which a client may write in its JSON, cannot."""
    return key if key.isascii() else key.encode("utf-8", "backslashreplace").decode()


def left_of(wants: tuple[Want, ...], figures: list[int]) -> tuple[int, ...]:
    """What others can still get, of a script's figures, which it changes."""
    for index, want in enumerate(wants):
        if type(want) is Spend:
            figures[index] = want.most - figures[index] * _PICO_PER_NANO
    return tuple(figures)


def most_of(wants: tuple[Want, ...]) -> tuple[int, ...]:
    """What there is at the most, where nobody knows what is left."""
    return tuple([want.capacity if isinstance(want, Rate) else want.most for want in wants])


def full_of(wants: tuple[Want, ...], answer: list[int], wall_s: float) -> Full:
    """Why a script gave nothing."""
    _, index, retry_after_ms, *figures = answer
    retry_after_s: float | None = retry_after_ms / 1000
    if retry_after_ms < 0:
        want = wants[index]
        ends_at = want.ends_at if isinstance(want, Spend) else None
        retry_after_s = None if ends_at is None else max(0.0, ends_at - wall_s)
    return Full(index, retry_after_s, left_of(wants, figures))


def spent_of(figure: object) -> int:
    """Pico-dollars of a figure of a budget."""
    return int(figure) * _PICO_PER_NANO if isinstance(figure, bytes) else 0


def _packable(want: Want) -> Want:
    changed: dict[str, int | str] = {"key": key_of(want.key)}
    if isinstance(want, Spend):
        changed |= {"most": min(want.most, _MOST), "worst": min(want.worst, _MOST)}
    elif isinstance(want, Rate):
        changed["amount"] = want.taken
    return msgspec.structs.replace(want, **changed)
