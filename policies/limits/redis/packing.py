"""Wants and what was used of them in the units of Redis, and its figures in ours.

Redis counts whole nano-dollars, for the numbers of its scripts are exact up to 2^53 only. What is spent is rounded up
and what may be spent is rounded down, so a budget ends early by at most a nano-dollar a call, and never late.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from policies.limits.counters import Full, Hold, Rate, Slots, Spend, Want

_RATE, _SLOTS, _SPENDING = 0, 1, 2
"""As in `common.lua`."""
_PICO_PER_NANO = 1000
_MOST = 2**53 - 1
_KEPT_AFTER_WINDOW_S = 2 * 86400.0
"""So long after its window a budget is kept, for calls that are settled late and clocks that differ."""

pack = msgspec.msgpack.Encoder().encode
"""Values, as scripts read them: not of bytes, a kind that they do not know."""
unpack = msgspec.msgpack.Decoder(list[int]).decode
"""What a reservation is answered."""


def pack_wants(wants: tuple[Want, ...], wall_s: float) -> bytes:
    """What a script is asked for, and what a hold is kept as."""
    return pack(wants_of(wants, wall_s))


def wants_of(wants: tuple[Want, ...], wall_s: float) -> list[tuple[int | str, ...]]:
    """The same before it is packed."""
    rows: list[tuple[int | str, ...]] = []
    for want in wants:
        key = key_of(want.key)
        if type(want) is Rate:
            rows.append((_RATE, key, want.per_minute, want.capacity, min(want.amount, want.capacity)))
        elif type(want) is Spend:
            most, worst = min(want.most // _PICO_PER_NANO, _MOST), nano_of(want.worst)
            rows.append((_SPENDING, key, most, worst, ttl_of(want, wall_s)))
        else:
            assert type(want) is Slots, "there is no other want"
            rows.append((_SLOTS, key, want.most))
    return rows


def key_of(key: str) -> str:
    """A key that can be sent: half a surrogate pair, which a client may write in its JSON, cannot."""
    return key if key.isascii() else key.encode("utf-8", "backslashreplace").decode()


def nano_of(pico: int) -> int:
    """Whole nano-dollars, rounded up."""
    return min(-(-pico // _PICO_PER_NANO), _MOST)


def ttl_of(want: Spend, wall_s: float) -> int:
    """How many seconds what is counted for its window is kept: a time to go, so Redis's own clock does not matter."""
    return 0 if want.ends_at is None else int(max(0.0, want.ends_at - wall_s) + _KEPT_AFTER_WINDOW_S)


def used_of(hold: Hold, used: Sequence[int]) -> list[str | int]:
    """What a script settles: the hold and what was used of each want."""
    settled: list[str | int] = [hold.id.decode()]
    for want, amount in zip(hold.wants, used, strict=True):
        settled.append(nano_of(amount) if type(want) is Spend else min(amount, _MOST))
    return settled


def left_of(wants: tuple[Want, ...], figures: Sequence[int]) -> tuple[int, ...]:
    """What others can still get, of a script's figures."""
    return tuple(
        [
            want.most - figure * _PICO_PER_NANO if type(want) is Spend else figure
            for want, figure in zip(wants, figures, strict=True)
        ]
    )


def most_of(wants: tuple[Want, ...]) -> tuple[int, ...]:
    """What there is at the most, where nobody knows what is left."""
    return tuple([want.capacity if isinstance(want, Rate) else want.most for want in wants])


def full_of(wants: tuple[Want, ...], reply: Sequence[int], wall_s: float) -> Full:
    """Why a script gave nothing."""
    index, retry_after_ms = reply[1], reply[2]
    retry_after_s: float | None = retry_after_ms / 1000
    if retry_after_ms < 0:
        want = wants[index]
        ends_at = want.ends_at if isinstance(want, Spend) else None
        retry_after_s = None if ends_at is None else max(0.0, ends_at - wall_s)
    return Full(index, retry_after_s, left_of(wants, reply[3:]))


def spent_of(figure: object) -> int:
    """Pico-dollars of a figure of a budget."""
    return int(figure) * _PICO_PER_NANO if isinstance(figure, bytes) else 0


def slots_of(wants: tuple[Want, ...]) -> bool:
    """Whether a slot is among them, which others may be waiting for."""
    return any(type(want) is Slots for want in wants)
