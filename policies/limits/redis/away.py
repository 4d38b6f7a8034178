"""What this process may give while Redis is away: its share of every limit, and of what was left of every budget.

The share is by the number of processes that counted together when Redis was last seen, so together they give what they
give with Redis. It is forgotten when Redis is back, which is told then what calls hold and have spent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from backends.clock import Clock
from policies.limits.counters import Full, Hold, Rate, Slots, Spend, Want
from policies.limits.memory import MemoryCounters

_MAX_BUDGETS = 10_000
"""Of which it is known what was left."""
_ANY = 2**62


class OwnShare:
    """Counts in this process from the first call that Redis does not answer until `forget`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._left: dict[str, int] = {}
        self._counters: MemoryCounters | None = None
        self._holds: dict[bytes, tuple[Hold, int]] = {}

    def see_left(self, wants: tuple[Want, ...], left: tuple[int, ...]) -> None:
        """What Redis says is left of budgets."""
        for want, amount in zip(wants, left, strict=True):
            if type(want) is Spend:
                if want.key not in self._left and len(self._left) >= _MAX_BUDGETS:
                    del self._left[next(iter(self._left))]
                self._left[want.key] = amount

    async def reserve(self, id: bytes, wants: tuple[Want, ...], num_replicas: int, held: Iterable[Hold]) -> Hold | Full:
        """Of this process's share of each. `held` are the calls under way, whose slots are taken."""
        if self._counters is None:
            self._counters = MemoryCounters(self._clock)
            for hold in held:
                taken = tuple([Slots(want.key, _ANY) for want in hold.wants if type(want) is Slots])
                await self._reserve(self._counters, hold.id, taken, num_replicas)
        shares = tuple([self._share_of(want, num_replicas) for want in wants])
        answer = await self._reserve(self._counters, id, shares, num_replicas)
        left = tuple(
            [
                amount // num_replicas if type(want) is Rate else amount
                for want, amount in zip(wants, answer.left, strict=True)
            ]
        )
        if isinstance(answer, Hold):
            return Hold(id, wants, left)
        return msgspec.structs.replace(answer, left=left)

    def settle(self, hold: Hold, used: Sequence[int]) -> None:
        """The call is over."""
        own, num_replicas = self._holds.pop(hold.id, (None, 0))
        if own is None or self._counters is None:
            return
        if len(own.wants) < len(hold.wants):
            # It began with Redis, and only its slots count here.
            self._counters.settle(own, (0,) * len(own.wants))
            return
        self._counters.settle(
            own,
            [
                amount * num_replicas if type(want) is Rate else amount
                for want, amount in zip(hold.wants, used, strict=True)
            ],
        )

    def forget(self) -> None:
        """Redis counts again."""
        self._counters = None
        self._holds.clear()

    async def _reserve(
        self, counters: MemoryCounters, id: bytes, wants: tuple[Want, ...], num_replicas: int
    ) -> Hold | Full:
        answer = await counters.reserve(wants)
        if isinstance(answer, Hold):
            self._holds[id] = (answer, num_replicas)
        return answer

    def _share_of(self, want: Want, num_replicas: int) -> Want:
        if type(want) is Rate:
            # Of a bucket it is as much when each call weighs so many times as much, and nothing is rounded.
            return Rate(want.key, want.per_minute, want.capacity, want.amount * num_replicas)
        if type(want) is Slots:
            return Slots(want.key, want.most // num_replicas)
        assert type(want) is Spend, "there is no other want"
        left = max(0, self._left.get(want.key, want.most))
        return Spend(want.key, left // num_replicas, want.worst, want.ends_at)
