"""Batches embedding calls: many callers share one upstream call, and each gets its own answer, usage and errors.

This is a stage of a route's stack, between its caches and its pool. While the backend is idle, a call is sent at once
and unchanged. The calls that arrive while it is busy are sent together as soon as it is free. `merge.py` says which
calls may share one, `window.py` when they are sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

import msgspec

from backends.clock import Clock
from backends.errors import Draining, Overloaded, SlipstreamError, TotalTimeout, UpstreamGarbage
from backends.protocol import Backend, Call, Facts, Reply
from policies.batching.batch_time import BatchTime
from policies.batching.merge import (
    Inputs,
    Portion,
    group_of,
    inputs_of,
    merge_calls,
    portions_of,
    share_charges,
    split_answer,
    usage_of,
)
from policies.batching.settings import BatchingPolicy
from policies.batching.tally import BatchingCounts, BatchingTally
from policies.batching.window import BatchLimits, BatchWindow
from policies.cache.coalesce import again
from policies.stage import Stage

_SPLIT_STATUSES = frozenset({400, 413, 422, 500})
"""Statuses that a single bad input can cause. The batch is then split and sent again, until the bad input is alone
with its error. An answer that is not JSON, such as a proxy's own page for a 413, is treated in the same way."""


class BatchingStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """The present state: groups of calls that may share one, inputs that wait, upstream calls that hold a slot."""

    groups: int
    waiting: int
    in_flight: int


class _Caller:
    """One caller's call. `answer` is its reply or the error to raise; None means that it sends the call itself."""

    __slots__ = ("answer", "arrived_at", "batch", "call", "inputs", "num_bytes", "size")

    def __init__(self, call: Call, inputs: Inputs, arrived_at: float) -> None:
        self.call = call
        self.inputs = inputs
        self.size = len(inputs)
        self.num_bytes = len(call.raw)
        self.arrived_at = arrived_at
        self.batch: _Batch | None = None
        self.answer: asyncio.Future[Reply | BaseException | None] = asyncio.get_running_loop().create_future()

    def resolve(self, outcome: Reply | BaseException | None) -> None:
        """Set the outcome, unless there is one already or the caller has gone."""
        if not self.answer.done():
            self.answer.set_result(outcome)


class _Group:
    """The calls that may share an upstream call, and the window that releases them."""

    __slots__ = ("key", "window")

    def __init__(self, key: bytes, limits: BatchLimits) -> None:
        self.key = key
        self.window: BatchWindow[_Caller] = BatchWindow(limits)


class _Batch:
    """One upstream call. A single caller makes it itself; for several, `task` makes it."""

    __slots__ = ("callers", "facts", "group", "holds_slot", "overdue_timer", "task")

    def __init__(self, group: _Group, callers: list[_Caller]) -> None:
        self.group = group
        self.callers = callers
        self.facts = Facts(
            passed_stages=None if all(caller.call.facts.passed_stages is None for caller in callers) else []
        )
        self.holds_slot = True
        self.overdue_timer: asyncio.TimerHandle | None = None
        self.task: asyncio.Task[None] | None = None


class EmbeddingBatches(Stage):
    """Sends embedding calls together; no call waits for others while the backend has a free slot.

    `inner` is opened and closed with it. `max_in_flight` is the number of concurrent upstream calls where the policy
    does not set one.
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
        self._overdue_after_s = policy.patience
        self._clock = clock
        self._groups: dict[bytes, _Group] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._time = BatchTime()
        self._tally = BatchingTally()
        self._is_closed = False

    async def aclose(self) -> None:
        """Cancel every shared call, then close the inner backend. Safe to call twice."""
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
        """What has been counted since the last call."""
        return self._tally.take()

    async def send(self, call: Call) -> Reply:
        """Send the call alone or in a batch; a call that cannot share is passed on unchanged.

        Raises: what the inner backend raises; Overloaded if too many inputs wait, or if the call could not be answered
        by its deadline any more; TotalTimeout at the call's own deadline; Draining if `aclose` ends the call or its
        wait.
        """
        inputs = inputs_of(call, max_batch=self._limits.max_batch, max_bytes=self._limits.max_bytes)
        if inputs is None or self._is_closed:
            return await self._inner.send(call)
        caller = _Caller(call, inputs, self._clock.now())
        group = self._join(caller)
        try:
            reply = await self._answer_of(caller)
            if reply is None:
                self._tally.calls["alone"] += 1
                began_at = self._clock.now()
                reply = await self._inner.send(call)
                if reply.status == 200:
                    self._time.learn(caller.size, self._clock.now() - began_at)
            else:
                self._tally.calls["merged"] += 1
            return reply
        finally:
            self._remove(group, caller)

    def _join(self, caller: _Caller) -> _Group:
        """Raises: Overloaded."""
        key = group_of(caller.call, caller.inputs, self._headers_read)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = _Group(key, self._limits)
        if not group.window.has_room(caller.size):
            self._tally.calls["refused"] += 1
            raise Overloaded(
                f"{group.window.num_waiting} inputs wait already; batching.max_waiting is {self._limits.max_waiting}",
                retry_after_s=self._queue_time_s(group),
            )
        group.window.add(caller)
        self._release(group)
        return group

    async def _answer_of(self, caller: _Caller) -> Reply | None:
        """The reply to this caller; None if it has to send the call itself."""
        answer = caller.answer
        if not answer.done():
            left_s = caller.call.deadline - self._clock.now()
            timer = asyncio.get_running_loop().call_later(left_s, _time_out, caller)
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

    def _remove(self, group: _Group, caller: _Caller) -> None:
        """Take a caller out, whatever its outcome. When the last one has gone, the upstream call is cancelled."""
        batch = caller.batch
        if batch is None:
            group.window.remove(caller)
            return
        batch.callers.remove(caller)
        if batch.callers:
            return
        if batch.task is None:
            self._finish(batch)
        else:
            batch.task.cancel()

    def _release(self, group: _Group) -> None:
        """Send all batches that the window releases."""
        loop = asyncio.get_running_loop()
        now = self._clock.now()
        while True:
            callers, late = group.window.release(self._is_late)
            for caller in late:
                self._tally.calls["late"] += 1
                caller.resolve(Overloaded("it waited, and could not be answered any more before its deadline"))
            if not callers:
                break
            batch = _Batch(group, callers)
            batch.overdue_timer = loop.call_later(self._overdue_after_s, self._stop_waiting_for, batch)
            self._tally.sent(sum(caller.size for caller in callers))
            for caller in callers:
                caller.batch = batch
                self._tally.waited(now - caller.arrived_at)
                caller.call.facts.passed("batch.window", caller.arrived_at, self._clock, callers=len(callers))
            if self._is_closed:
                for caller in callers:
                    caller.resolve(_shutting_down())
            elif len(callers) == 1:
                callers[0].resolve(None)
            else:
                batch.task = loop.create_task(self._send_shared(batch))
                self._tasks.add(batch.task)
                batch.task.add_done_callback(partial(self._on_done, batch))
        if group.window.is_empty and self._groups.get(group.key) is group:
            del self._groups[group.key]

    def _is_late(self, caller: _Caller) -> bool:
        """Whether the call can no longer be answered by its deadline. A call that has not waited is always tried."""
        now = self._clock.now()
        return caller.arrived_at < now and now + self._time.expected_s(caller.size) > caller.call.deadline

    def _queue_time_s(self, group: _Group) -> float:
        """How long it takes until all inputs that wait in the group have been answered."""
        batches = group.window.num_waiting / self._limits.max_batch / self._limits.max_in_flight
        return batches * self._time.expected_s(self._limits.max_batch)

    async def _send_shared(self, batch: _Batch) -> None:
        """Make one upstream call for several callers, and give each its part of the answer and of what it used."""
        callers = list(batch.callers)
        portions = portions_of([caller.inputs for caller in callers])
        charges = [caller.call.facts.charge("", caller.call.model) for caller in callers]
        try:
            await self._share_answer(batch, callers, portions)
        finally:
            # Also where the client has left, or the answer cannot be shared: the upstream has worked for each of them.
            share_charges(batch.facts, charges, portions)

    async def _share_answer(self, batch: _Batch, callers: list[_Caller], portions: Sequence[Portion]) -> None:
        began_at = self._clock.now()
        inputs = [caller.inputs for caller in callers]
        try:
            reply = await self._inner.send(merge_calls([caller.call for caller in callers], inputs, batch.facts))
            await reply.aclose()
        except UpstreamGarbage:
            reply = None
        if reply is None or reply.status in _SPLIT_STATUSES:
            self._tally.splits["refused"] += 1
            self._send_again(batch, 2)
            return
        if reply.status >= 400 and reply.body is not None:
            self._share_facts(batch)
            for caller in batch.callers:
                caller.resolve(Reply(reply.status, list(reply.headers), body=reply.body))
            return
        took_s = self._clock.now() - began_at
        # The next batch is sent before this answer is parsed, so that the backend is not idle meanwhile.
        self._free_slot(batch)
        await asyncio.sleep(0)
        sizes = [caller.size for caller in callers]
        self._time.learn(sum(sizes), took_s)
        bodies = split_answer(reply.body, sizes, portions) if reply.body is not None else None
        if bodies is None:
            self._tally.splits["unreadable"] += 1
            self._send_again(batch, len(callers))
            return
        self._share_facts(batch)
        for caller, body, portion in zip(callers, bodies, portions, strict=True):
            caller.call.facts.usage = usage_of(batch.facts.usage, portion)
            caller.resolve(Reply(reply.status, list(reply.headers), body=body))

    def _send_again(self, batch: _Batch, num_parts: int) -> None:
        """Queue the callers that still wait again, in `num_parts` smaller batches."""
        self._share_facts(batch)
        callers = [caller for caller in batch.callers if not caller.answer.done()]
        for caller in callers:
            caller.batch = None
        size = max(1, -(-len(callers) // num_parts))
        batch.group.window.put_back([callers[at : at + size] for at in range(0, len(callers), size)])

    def _share_facts(self, batch: _Batch) -> None:
        """Copy what is known of the upstream call to every caller; its attempts are counted for the first one only."""
        learned = batch.facts
        for caller in batch.callers:
            facts = caller.call.facts
            facts.backend = learned.backend
            facts.upstream_model = learned.upstream_model
            facts.upstream_request_id = learned.upstream_request_id
            facts.sent_at = learned.sent_at
            facts.first_token_at = learned.first_token_at
            facts.attempts += learned.attempts
            learned.attempts = 0
            if facts.passed_stages is not None and learned.passed_stages is not None:
                facts.passed_stages += learned.passed_stages
        if learned.passed_stages is not None:
            learned.passed_stages.clear()

    def _on_done(self, batch: _Batch, task: asyncio.Task[None]) -> None:
        """A shared call is over: callers without an outcome get its error, and the next batch is sent."""
        self._tasks.discard(task)
        error = _shutting_down() if task.cancelled() else task.exception()
        if error is not None:
            self._share_facts(batch)
            for caller in batch.callers:
                caller.resolve(error)
        self._finish(batch)

    def _stop_waiting_for(self, batch: _Batch) -> None:
        """The upstream call is overdue: give up its slot, so that the next batch is sent beside it."""
        self._tally.overdue += 1
        self._free_slot(batch)

    def _finish(self, batch: _Batch) -> None:
        assert batch.overdue_timer is not None, "a batch has its timer when it is sent"
        batch.overdue_timer.cancel()
        self._free_slot(batch)

    def _free_slot(self, batch: _Batch) -> None:
        if batch.holds_slot:
            batch.holds_slot = False
            batch.group.window.free_slot()
        self._release(batch.group)


def _time_out(caller: _Caller) -> None:
    caller.resolve(TotalTimeout("the shared answer did not come before this call's deadline"))


def _shutting_down() -> Draining:
    return Draining("the gateway is shutting down")
