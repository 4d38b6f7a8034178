"""Embedding calls of many callers in one upstream call, each with its own answer, usage, error and end.

A stage of a route's stack, between its caches and its pool. An idle backend gets a call at once and as it came; what
comes while it is busy goes together when it is free. What may share a call is `merge.py`, when it goes `window.py`.
"""

from __future__ import annotations

import asyncio
from functools import partial

import msgspec

from backends.clock import Clock
from backends.errors import Draining, Overloaded, SlipstreamError, TotalTimeout, UpstreamGarbage
from backends.protocol import Backend, Call, Facts, Reply
from policies.batching.batch_time import BatchTime
from policies.batching.merge import Inputs, group_of, inputs_of, merged, parted, portions_of, usage_of
from policies.batching.settings import BatchingPolicy
from policies.batching.tally import BatchingCounts, BatchingTally
from policies.batching.window import BatchLimits, BatchWindow
from policies.cache.coalesce import again
from policies.stage import Stage

_ONE_INPUTS_FAULT = frozenset({400, 413, 422, 500})
"""Statuses that one bad input among good ones brings about, as does an answer that is none (a proxy's own page for
413): the callers part until it is alone with its error."""


class BatchingStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """What there is now: groups of calls that may go together, inputs that wait, upstream calls that hold a place."""

    groups: int
    waiting: int
    in_flight: int


class _Seat:
    """One caller. `answer` is its reply or what is to be raised; None tells it to go upstream by itself."""

    __slots__ = ("answer", "arrived_at", "batch", "call", "inputs", "num_bytes", "size")

    def __init__(self, call: Call, inputs: Inputs, arrived_at: float) -> None:
        self.call = call
        self.inputs = inputs
        self.size = len(inputs)
        self.num_bytes = len(call.raw)
        self.arrived_at = arrived_at
        self.batch: _Batch | None = None
        self.answer: asyncio.Future[Reply | BaseException | None] = asyncio.get_running_loop().create_future()

    def tell(self, outcome: Reply | BaseException | None) -> None:
        """Once, and not to who has left."""
        if not self.answer.done():
            self.answer.set_result(outcome)


class _Group:
    """Calls that may go together, and when they go."""

    __slots__ = ("key", "window")

    def __init__(self, key: bytes, limits: BatchLimits) -> None:
        self.key = key
        self.window: BatchWindow[_Seat] = BatchWindow(limits)


class _Batch:
    """One upstream call. With a single seat that caller makes it, else `task` does, for all who sit there."""

    __slots__ = ("facts", "group", "holds_place", "patience", "seats", "task")

    def __init__(self, group: _Group, seats: list[_Seat]) -> None:
        self.group = group
        self.seats = seats
        self.facts = Facts()
        self.holds_place = True
        self.patience: asyncio.TimerHandle | None = None
        self.task: asyncio.Task[None] | None = None


class EmbeddingBatches(Stage):
    """Sends embedding calls on together where that keeps nobody waiting for longer than the backend is busy.

    `inner` is opened and closed with it. `max_in_flight` holds where the policy says nothing: upstream calls at once.
    """

    def __init__(self, inner: Backend, policy: BatchingPolicy, clock: Clock, *, max_in_flight: int) -> None:
        super().__init__(inner)
        self._headers_read = inner.capabilities.headers
        self._limits = BatchLimits(
            max_batch=policy.max_batch,
            max_bytes=policy.max_bytes,
            max_in_flight=policy.max_in_flight or max_in_flight,
            max_waiting=policy.max_waiting,
        )
        self._patience_s = policy.patience
        self._clock = clock
        self._groups: dict[bytes, _Group] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._time = BatchTime()
        self._tally = BatchingTally()
        self._is_closed = False

    async def aclose(self) -> None:
        """End every shared call, then close the backend within. Safe to call twice."""
        self._is_closed = True
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await super().aclose()

    def batching_statistics(self) -> BatchingStatistics:
        """A snapshot of the windows."""
        windows = [group.window for group in self._groups.values()]
        return BatchingStatistics(
            groups=len(windows),
            waiting=sum(window.num_waiting for window in windows),
            in_flight=sum(window.in_flight for window in windows),
        )

    def take_tally(self) -> BatchingCounts:
        """What has happened since the last time."""
        return self._tally.take()

    async def send(self, call: Call) -> Reply:
        """Answer the call alone or with others; what cannot be shared goes straight on.

        Raises: what the backend within raises; Overloaded where too many wait, or where the answer would be late;
        TotalTimeout at this call's own deadline; Draining where `aclose` ends a shared call, or the wait for one.
        """
        inputs = inputs_of(call, max_batch=self._limits.max_batch, max_bytes=self._limits.max_bytes)
        if inputs is None or self._is_closed:
            return await self._inner.send(call)
        seat = _Seat(call, inputs, self._clock.now())
        group = self._join(seat)
        try:
            reply = await self._outcome(seat)
            if reply is None:
                self._tally.calls["alone"] += 1
                began_at = self._clock.now()
                reply = await self._inner.send(call)
                if reply.status == 200:
                    self._time.learn(seat.size, self._clock.now() - began_at)
            else:
                self._tally.calls["merged"] += 1
            return reply
        finally:
            self._leave(group, seat)

    def _join(self, seat: _Seat) -> _Group:
        """Raises: Overloaded."""
        key = group_of(seat.call, seat.inputs, self._headers_read)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = _Group(key, self._limits)
        if not group.window.has_room(seat.size):
            self._tally.calls["refused"] += 1
            raise Overloaded(
                f"{group.window.num_waiting} inputs wait already; batching.max_waiting is {self._limits.max_waiting}",
                retry_after_s=self._drain_s(group),
            )
        group.window.add(seat)
        self._release(group)
        return group

    async def _outcome(self, seat: _Seat) -> Reply | None:
        """The reply to this caller; None where it is to go by itself."""
        answer = seat.answer
        if not answer.done():
            left_s = seat.call.deadline - self._clock.now()
            timer = asyncio.get_running_loop().call_later(left_s, _give_up, seat)
            try:
                await answer
            finally:
                timer.cancel()
        outcome = answer.result()
        if isinstance(outcome, SlipstreamError):
            raise again(outcome)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def _leave(self, group: _Group, seat: _Seat) -> None:
        """However it went. The last one to leave ends the upstream call."""
        batch = seat.batch
        if batch is None:
            group.window.leave(seat)
            return
        batch.seats.remove(seat)
        if batch.seats:
            return
        if batch.task is None:
            self._finish(batch)
        else:
            batch.task.cancel()

    def _release(self, group: _Group) -> None:
        """Send off whatever can go."""
        loop = asyncio.get_running_loop()
        now = self._clock.now()
        while True:
            seats, late = group.window.release(self._is_late)
            for seat in late:
                self._tally.calls["late"] += 1
                seat.tell(Overloaded("it waited, and could not be answered any more before its deadline"))
            if not seats:
                break
            batch = _Batch(group, seats)
            batch.patience = loop.call_later(self._patience_s, self._lose_patience, batch)
            self._tally.sent(sum(seat.size for seat in seats))
            for seat in seats:
                seat.batch = batch
                self._tally.waited(now - seat.arrived_at)
            if self._is_closed:
                for seat in seats:
                    seat.tell(_draining())
            elif len(seats) == 1:
                seats[0].tell(None)
            else:
                batch.task = loop.create_task(self._ask(batch))
                self._tasks.add(batch.task)
                batch.task.add_done_callback(partial(self._settle, batch))
        if group.window.is_empty and self._groups.get(group.key) is group:
            del self._groups[group.key]

    def _is_late(self, seat: _Seat) -> bool:
        """Whether it can be answered in time no more. Never of one that has not waited."""
        now = self._clock.now()
        return seat.arrived_at < now and now + self._time.expected_s(seat.size) > seat.call.deadline

    def _drain_s(self, group: _Group) -> float:
        """How long those who wait there will take."""
        batches = group.window.num_waiting / self._limits.max_batch / self._limits.max_in_flight
        return batches * self._time.expected_s(self._limits.max_batch)

    async def _ask(self, batch: _Batch) -> None:
        """Make the upstream call of several callers, and tell each what came of it."""
        seats = list(batch.seats)
        began_at = self._clock.now()
        inputs = [seat.inputs for seat in seats]
        try:
            reply = await self._inner.send(merged([seat.call for seat in seats], inputs, batch.facts))
            await reply.aclose()
        except UpstreamGarbage:
            reply = None
        if reply is None or reply.status in _ONE_INPUTS_FAULT:
            self._tally.splits["refused"] += 1
            self._part(batch, 2)
            return
        if reply.status >= 400 and reply.body is not None:
            self._share_facts(batch)
            for seat in batch.seats:
                seat.tell(Reply(reply.status, list(reply.headers), body=reply.body))
            return
        took_s = self._clock.now() - began_at
        # The next call goes out before this answer is looked at: meanwhile the backend would be idle.
        self._give_place(batch)
        await asyncio.sleep(0)
        self._time.learn(sum(seat.size for seat in seats), took_s)
        portions = portions_of(inputs)
        bodies = parted(reply.body, [seat.size for seat in seats], portions) if reply.body is not None else None
        if bodies is None:
            self._tally.splits["unreadable"] += 1
            self._part(batch, len(seats))
            return
        self._share_facts(batch)
        for seat, body, portion in zip(seats, bodies, portions, strict=True):
            seat.call.facts.usage = usage_of(batch.facts.usage, portion)
            seat.tell(Reply(reply.status, list(reply.headers), body=body))

    def _part(self, batch: _Batch, num_parts: int) -> None:
        """Those who are still there go again, in so many smaller batches."""
        self._share_facts(batch)
        seats = [seat for seat in batch.seats if not seat.answer.done()]
        for seat in seats:
            seat.batch = None
        size = max(1, -(-len(seats) // num_parts))
        batch.group.window.put_back([seats[at : at + size] for at in range(0, len(seats), size)])

    def _share_facts(self, batch: _Batch) -> None:
        """What was learned on the way is true of every caller; the attempts are counted once, with the first."""
        learned = batch.facts
        for seat in batch.seats:
            facts = seat.call.facts
            facts.backend = learned.backend
            facts.upstream_model = learned.upstream_model
            facts.upstream_request_id = learned.upstream_request_id
            facts.sent_at = learned.sent_at
            facts.first_token_at = learned.first_token_at
            facts.attempts += learned.attempts
            learned.attempts = 0

    def _settle(self, batch: _Batch, task: asyncio.Task[None]) -> None:
        """A shared call is over: tell those who have not heard why, and let others go."""
        self._tasks.discard(task)
        error = _draining() if task.cancelled() else task.exception()
        if error is not None:
            self._share_facts(batch)
            for seat in batch.seats:
                seat.tell(error)
        self._finish(batch)

    def _lose_patience(self, batch: _Batch) -> None:
        """It takes too long to be waited for: whoever waits goes beside it."""
        self._tally.overdue += 1
        self._give_place(batch)

    def _finish(self, batch: _Batch) -> None:
        assert batch.patience is not None, "a batch has its timer when it goes"
        batch.patience.cancel()
        self._give_place(batch)

    def _give_place(self, batch: _Batch) -> None:
        if batch.holds_place:
            batch.holds_place = False
            batch.group.window.settle()
        self._release(batch.group)


def _give_up(seat: _Seat) -> None:
    seat.tell(TotalTimeout("the shared answer did not come before this call's deadline"))


def _draining() -> Draining:
    return Draining("the gateway is shutting down")
