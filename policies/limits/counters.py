"""What a call asks of the counters of limits and budgets, and the port behind which they are kept.

A call asks several counters at once and gets what it asks of all of them or of none. What it gets is held until the
call is settled with what it has used. A counter is named by a key; who asks says with each call how it is bounded, so a
store knows no rules and a reload changes none of its state. A key is of one kind for ever. Wants that are packed are
arrays with their kind before their fields, as scripts in a shared store read them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

import msgspec

INVENTED = "~"
"""Clients choose what stands in a key behind the first of these, so there may be any number of such keys; what stands
before it says of whom. No name of a policy has one."""


class Rate(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=0):
    """Of a bucket that fills with `per_minute` and holds at most `capacity`, both at least 1: `amount` now.

    An amount above the capacity waits for a full bucket and takes the level below zero, for those behind it wait for
    what it will use; but for no more than a minute's, since it is its caller's word. Settled, the level falls by what
    was used beyond that, or rises by what was not, at most to the capacity. A key that nobody has asked for has a full
    bucket.
    """

    key: str
    per_minute: int
    capacity: int
    amount: int

    @property
    def taken(self) -> int:
        """How much of the bucket is taken for it."""
        return min(self.amount, max(self.capacity, self.per_minute))


class Slots(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=1):
    """One of `most` calls that may be under way at once."""

    key: str
    most: int


class Spend(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=2):
    """Of a budget of `most` pico-dollars: `worst`, the most that the call can cost.

    Admitted where spent + held + worst <= most, or where nothing is held and spent < most: a call that is alone may be
    larger than what is left, so a budget is used to its end and overspent by at most that one call. The key names the
    window too; `ends_at` is when that is over, in Unix seconds, None where it never is.
    """

    key: str
    most: int
    worst: int
    ends_at: float | None = None


Want: TypeAlias = Rate | Slots | Spend


class Hold(msgspec.Struct, frozen=True, gc=False):
    """What a call holds until it is settled. `left` says for each want what others can still get: slots; what a bucket
    has, below 0 where that has to flow in first; pico-dollars, below 0 where a call was let in alone that is larger
    than the rest.
    """

    id: bytes
    wants: tuple[Want, ...]
    left: tuple[int, ...]
    is_counted: bool = True
    """False where the store is away and the call goes on all the same: settling it does nothing."""
    own: Any = None
    """What the store that has made it keeps with it."""


class Full(msgspec.Struct, frozen=True, gc=False):
    """Why a call gets nothing: the first want that does not fit, and in how many seconds it can (None: never; 1 where
    others only hold what is missing, for nobody knows how long). `left` as in `Hold`, before the call.
    """

    index: int
    retry_after_s: float | None
    left: tuple[int, ...]


class Away(msgspec.Struct, frozen=True, gc=False):
    """The store does not answer, and the policy says that nobody goes on without it."""


class SpentBefore(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Pico-dollars that were spent under a budget's key without being counted under it yet."""

    key: str
    spent: int
    ends_at: float | None


class SharedStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """An immutable snapshot of counters that several processes share."""

    is_away: bool
    """Whether the store is taken to be away."""
    outages: int
    """How often it was."""
    replicas: int
    """Processes that count together, as last seen; 0: none was ever."""
    held: int
    """Calls under way here."""
    waiting: int
    """Settlements that the store has not been told of."""
    swept: int
    """Calls of processes that died, counted as spent by whomever, as this one was told: each of them is told to one."""
    without: int
    """Calls that were answered without the store."""
    dropped: int
    """Amounts that were never told to it, for too many waited."""


class UsageCounters(Protocol):
    """Where the counters are: in this process, or shared by several."""

    async def open(self) -> None:
        """Acquire what counting needs. A store that is away is none the less opened."""

    async def aclose(self) -> None:
        """Give everything back. Safe to call twice."""

    async def reserve(self, wants: tuple[Want, ...]) -> Hold | Full | Away:
        """All of these or none. Cancelled, it holds nothing in the end."""

    def reserve_nowait(self, wants: tuple[Want, ...]) -> Hold | Full | None:
        """The same where that can be told at once; None, and nothing is held, where somebody has to be asked."""

    def settle(self, hold: Hold, used: Sequence[int]) -> None:
        """The call is over; neither waits nor raises, called once for each hold.

        `used` is for each want the amount that the call has used: of a bucket its tokens (or 1 for a request), of a
        budget pico-dollars; for slots it is not read. What a window has held is settled in that window, also after it.
        """

    async def spent(self, keys: Sequence[str]) -> Sequence[tuple[int, int]] | Away:
        """Pico-dollars spent and held under these keys of budgets, for whoever wants to see them."""

    def statistics(self) -> SharedStatistics | None:
        """A snapshot; None where they are not shared."""
