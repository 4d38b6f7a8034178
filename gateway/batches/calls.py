"""Batch lines that a route answers as calls of its own: a few at once, at the lowest priority, tenants in turn.

A line that no backend has worked on (429, 503, no connection) is retried for as long as the batch lasts. One that a
backend has worked on is tried `MAX_ATTEMPTS` times, and once if its call does more than answer. Lines in flight are
known to this process only, so when it ends the next driver sends them again. An answer that cannot be stored is kept
until it can, and its worker takes no other line meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path

import msgspec

from backends.errors import (
    BudgetSpent,
    ClientGone,
    LimitReached,
    SlipstreamError,
    TooManyAnswersHeld,
    TotalTimeout,
    Unauthorized,
    UnknownModel,
    UpstreamGarbage,
)
from backends.operations import Operation
from backends.protocol import Call, Facts, Priority, Reply
from backends.waits import retry_after_s
from gateway.api.custody import Custody
from gateway.batches.batch_store import BatchStore
from gateway.batches.callers import caller_of, stack_for_line
from gateway.batches.file_store import FileStore
from gateway.batches.input_lines import ENDPOINTS, read_request
from gateway.batches.outcomes import Outcomes
from gateway.batches.output_lines import result_of_answer
from gateway.batches.records import BatchRow, LineResult, LineRow
from gateway.core import Core
from gateway.disk.disk_space import DiskSpace
from gateway.door import Visit
from gateway.http.decode import decode_body
from gateway.http.relay import JSON_HEADER
from gateway.limits.asked import asked_of
from gateway.overdue import GRACE_S
from gateway.record.exchange import Exchange
from gateway.runtime import Stack
from policies.acting import acts

_logger = logging.getLogger(__name__)
MAX_ATTEMPTS = 5
_MAX_PAUSE_S = 60.0
_MAX_RETRY_AFTER_S = 600.0
"""The longest Retry-After that is respected, because a batch has an end."""
_MAX_ANSWER_BYTES = 64 * 1024**2
_NOT_SERVED = frozenset({429, 503})
"""Statuses that say that no backend has worked on the request."""


class LineCalls:
    """The calls of all routes. `run` is one worker of a route, which ends when there is no line for it."""

    def __init__(
        self,
        core: Core,
        store: BatchStore,
        files: FileStore,
        *,
        room: DiskSpace,
        outcomes: Outcomes,
    ) -> None:
        self._core = core
        self._custody = Custody(core.owners, core.clock)
        self._store = store
        self._files = files
        self._room = room
        self._outcomes = outcomes
        self._claim_lock = asyncio.Lock()
        self._turns: dict[str, int] = {}
        self._numbers = count()
        self._paused_until: dict[str, float] = {}
        self._pauses: dict[str, int] = {}
        self._batch_paused_until: dict[int, float] = {}
        """Of those whose caller has reached a limit, or spent a budget."""
        self.in_flight: dict[int, tuple[int, asyncio.Task[None]]] = {}
        """For each line in flight: its batch, and the task that answers it."""
        self.candidates: Mapping[str, Sequence[BatchRow]] = {}
        """The batches that may have lines for a route, by its name. The driver keeps it up to date."""

    def is_paused(self, route: str) -> bool:
        """Whether the route's backends refused calls recently, so that its lines have to wait."""
        return self._core.clock.now() < self._paused_until.get(route, 0.0)

    async def run(self, route: str) -> None:
        """Answer the lines of a route one after the other until there is none."""
        while self._room.has_room and not self.is_paused(route):
            async with self._claim_lock:
                claimed = await self._claim_next(route)
                if claimed is None:
                    return
                batch, line = claimed
                task = asyncio.get_running_loop().create_task(self._answer(batch, line))
                self.in_flight[line.id] = (batch.seq, task)
            try:
                await task
            except asyncio.CancelledError:
                task.cancel()
                await asyncio.wait([task])
                current = asyncio.current_task()
                if current is not None and current.cancelling():
                    raise
            finally:
                del self.in_flight[line.id]

    def cancel(self, batch: int) -> None:
        """Cancel the lines of a batch that are in flight."""
        for owner, task in self.in_flight.values():
            if owner == batch:
                task.cancel()

    async def _claim_next(self, route: str) -> tuple[BatchRow, LineRow] | None:
        """The next line: from the oldest batch of the tenant whose last turn was longest ago."""
        now = self._core.clock.now()
        may_go = [
            batch for batch in self.candidates.get(route, ()) if self._batch_paused_until.get(batch.seq, now) <= now
        ]
        for batch in sorted(may_go, key=lambda batch: (self._turns.get(batch.tenant, -1), batch.seq)):
            line = await self._store.next_line(batch, route, list(self.in_flight))
            if line is not None:
                self._turns[batch.tenant] = next(self._numbers)
                return batch, line
        return None

    async def _answer(self, batch: BatchRow, line: LineRow) -> None:
        core = self._core
        exchange = Exchange(ENDPOINTS[batch.endpoint], core.clock.now())
        # The id is random: a counter would show tenants how many requests the others make.
        exchange.request_id = f"{batch.id}-{secrets.token_hex(6)}"
        path = self._files.input_path(batch.id)
        raw = await asyncio.to_thread(read_slice, path, line.offset, line.num_bytes)
        visit = Visit(core, exchange, [JSON_HEADER])
        outcome: Reply | SlipstreamError
        call: Call | None = None
        try:
            stack, call = await self._prepare(batch, line, raw, visit, exchange)
            outcome = await self._send(call, stack, exchange)
        except asyncio.CancelledError:
            exchange.status, exchange.error_code = ClientGone.status, ClientGone.code
            exchange.fault = ClientGone.fault
            raise
        except Exception as error:  # a named border: the failure of one line must not fail another
            outcome = visit.failed(error)
            exchange.status = outcome.status
        finally:
            visit.over()
        await self._record(batch, line, exchange, outcome, is_done_once=call is not None and acts(call))

    async def _prepare(
        self, batch: BatchRow, line: LineRow, raw: bytes, visit: Visit, exchange: Exchange
    ) -> tuple[Stack, Call]:
        """The call of a line, and who answers it. Raises: SlipstreamError."""
        runtime = visit.runtime
        caller = caller_of(batch, runtime)
        if caller is None:
            raise Unauthorized("the key that made this batch is not known here any more")
        exchange.principal = caller
        exchange.model = line.model
        stack = stack_for_line(batch, line.model, runtime)
        if stack is None:
            raise UnknownModel(f'the model "{line.model}" does not exist here, or this key may not use it')
        exchange.route = stack.policy.name
        exchange.asked_prices = stack.asked_prices
        if line.model in runtime.model_labels:
            exchange.model_label = line.model
        body = read_request(raw).raw
        if visit.runtime.rules.all or caller.rules:
            operation: Operation = exchange.operation
            request = asked_of(operation, decode_body(body, operation)[0], body)
            stack = await self._core.reserving.let_in(request, stack, exchange, visit.runtime)
            exchange.route = stack.policy.name
        call = self._call(batch, body, stack, visit, exchange)
        if call.body is not None and Operation.PASSTHROUGH in stack.operations:
            pinned = await self._custody.check_body(call.raw, call.body, stack, caller.tenant, "")
            call = msgspec.structs.replace(call, pinned=pinned)
        return stack, call

    async def _send(self, call: Call, stack: Stack, exchange: Exchange) -> Reply:
        """Send a line and read the whole answer. Raises: SlipstreamError, and whatever else a backend raises."""
        if self._core.booking is not None:
            exchange.user = call.user
            self._core.booking.begins(exchange)
        try:
            # Backends hold the deadline themselves; this ends the call at one that does not.
            async with asyncio.timeout(call.deadline - self._core.clock.now() + GRACE_S):
                reply = await stack.backend.send(call)
                try:
                    exchange.status = reply.status
                    if reply.body is not None:
                        return reply
                    return Reply(reply.status, reply.headers, body=await _read_whole(reply))
                finally:
                    await reply.aclose()
        except TimeoutError:
            raise TotalTimeout("the backend had not answered when the line's time was up") from None

    def _call(self, batch: BatchRow, raw: bytes, stack: Stack, visit: Visit, exchange: Exchange) -> Call:
        operation: Operation = exchange.operation
        body, fields = decode_body(raw, operation)
        return Call(
            operation=operation,
            path=batch.endpoint.removeprefix("/v1"),
            raw=raw,
            body=body,
            model=fields.model,
            user=fields.user or "",
            tenant=exchange.principal.tenant,
            key_id=exchange.principal.key,
            route=stack.policy.name,
            request_id=exchange.request_id,
            headers=visit.headers,
            deadline=exchange.started_at + stack.timeouts.total_s,
            timeouts=stack.timeouts,
            slo=stack.slo,
            priority=max(Priority),
            facts=exchange.facts,
            answers=self._core.answers,
        )

    async def _record(
        self,
        batch: BatchRow,
        line: LineRow,
        exchange: Exchange,
        outcome: Reply | SlipstreamError,
        *,
        is_done_once: bool,
    ) -> None:
        """Keep the line's answer, or let it be asked again: with `is_done_once` not where a backend may have begun."""
        status = outcome.status
        was_not_served = status in _NOT_SERVED or (isinstance(outcome, SlipstreamError) and outcome.retryable)
        if is_done_once and isinstance(outcome, TooManyAnswersHeld):
            # Its answer was on its way.
            was_not_served = False
        if was_not_served or (status >= 500 and line.attempts + 1 < MAX_ATTEMPTS and not is_done_once):
            if isinstance(outcome, LimitReached | BudgetSpent):
                wait_s = self._pause(batch, outcome)
            else:
                wait_s = self._wait_after(exchange.route, line, outcome, was_not_served=was_not_served)
            due = self._core.clock.wall() + wait_s
            await self._room.keep(lambda: self._store.postpone(line, due, counts=not was_not_served))
            return
        self._pauses.pop(exchange.route, None)
        result = msgspec.structs.replace(_result(line, exchange, outcome), cost=_cost(exchange.facts))
        await self._room.keep(lambda: self._outcomes.settle(exchange.route, exchange.facts.backend, [result]))

    def _pause(self, batch: BatchRow, error: LimitReached | BudgetSpent) -> float:
        """For how long a batch has to wait whose caller may not go on; others of the route need not."""
        now = self._core.clock.now()
        pause_s = min(max(error.retry_after_s or _MAX_PAUSE_S, 1.0), _MAX_RETRY_AFTER_S)
        paused = self._batch_paused_until
        for seq in [seq for seq, until in paused.items() if until <= now]:
            del paused[seq]
        paused[batch.seq] = now + pause_s
        return pause_s

    def _wait_after(
        self, route: str, line: LineRow, outcome: Reply | SlipstreamError, *, was_not_served: bool
    ) -> float:
        """For how long the line has to wait. Where the backends refused it, the whole route waits for so long."""
        requested_s = min(retry_after_s(outcome, self._core.clock) or 0.0, _MAX_RETRY_AFTER_S)
        if not was_not_served:
            return requested_s or doubling_pause_s(line.attempts, _MAX_PAUSE_S)
        pauses = self._pauses[route] = self._pauses.get(route, -1) + 1
        pause_s = requested_s or doubling_pause_s(pauses, _MAX_PAUSE_S)
        until = self._core.clock.now() + pause_s
        self._paused_until[route] = max(until, self._paused_until.get(route, 0.0))
        _logger.debug("lines of batches leave the route %s alone for %.1f s", route, pause_s)
        return pause_s


def _result(line: LineRow, exchange: Exchange, outcome: Reply | SlipstreamError) -> LineResult:
    body = outcome.body() if isinstance(outcome, SlipstreamError) else outcome.body
    assert body is not None, "answers are read whole"
    try:
        return result_of_answer(line.id, line.custom_id, outcome.status, exchange.request_id, body)
    except ValueError:
        garbage = UpstreamGarbage("the upstream answered with something that is not JSON")
        return result_of_answer(line.id, line.custom_id, garbage.status, exchange.request_id, garbage.body())


def doubling_pause_s(number: int, most_s: float) -> float:
    """Seconds to wait before attempt `number` is repeated: one second for attempt 0, then doubling each time."""
    return min(2.0 ** min(number, 30), most_s)


def read_slice(path: Path, offset: int, num_bytes: int) -> bytes:
    """A part of a file. Raises: OSError."""
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(num_bytes)


async def _read_whole(reply: Reply) -> bytes:
    assert reply.stream is not None, "the reply has a body or a stream"
    body = await reply.stream.read_all(_MAX_ANSWER_BYTES)
    if body is None:
        raise UpstreamGarbage("the upstream's answer is too long for a batch")
    return body


def _cost(facts: Facts) -> int | None:
    """Pico-dollars for all attempts at a line; None where nobody knows what one of them cost."""
    costs = [charge.cost for charge in facts.charges or ()]
    return None if None in costs else sum(filter(None, costs))
