"""What lines come to: priced, stored, counted; one way for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

import msgspec

from backends.protocol import Usage
from backends.stream import StreamEnd
from gateway.batches.batch_store import BatchStore
from gateway.batches.input_lines import ENDPOINTS
from gateway.batches.records import LineOwner, LineResult
from gateway.batches.statistics import Tally
from gateway.core import Core
from gateway.ledger.row import Row
from gateway.record.booking import Booking
from policies.prices.price import PICO_PER_DOLLAR
from policies.schema import RoutePolicy


class Outcomes:
    """Of all lines."""

    def __init__(self, core: Core, store: BatchStore) -> None:
        self._core = core
        self._store = store
        self.tally = Tally()

    async def settle(
        self, route: str, backend: str | None, results: Sequence[LineResult], *, job: int | None = None
    ) -> None:
        """Lines of a route have come to this, those of a provider's batch in that `job`. Raises: StoreUnavailable."""
        stack = self._core.runtime.stacks.get(route)
        if stack is not None:
            results = [self._priced(result, stack.policy, backend, is_batch=job is not None) for result in results]
        booking = self._core.booking if job is not None else None
        # Lines that were calls of their own are in the ledger already.
        owners = {} if booking is None else await self._store.owners(result.line for result in results)
        for result in await self._store.answer(results, job):
            if booking is not None:
                owner = owners[result.line]
                row = _row(result, owner, route, backend or "", booking)
                caller = self._core.runtime.keyring.named(owner.key, owner.tenant)
                if caller is not None:
                    row.team, row.tags = caller.team, caller.tags
                booking.note(row)
            self.tally.lines[route, "answered" if result.is_answered else "failed"] += 1
            self.tally.tokens[route, "prompt"] += result.input_tokens
            self.tally.tokens[route, "completion"] += result.output_tokens
            self.tally.tokens[route, "cached"] += result.cached_tokens
            self.tally.cost[route] = self.tally.cost.get(route, 0.0) + (result.cost or 0) / PICO_PER_DOLLAR

    def take_tally(self) -> Tally:
        """The counts since the last time."""
        taken, self.tally = self.tally, Tally()
        return taken

    def _priced(self, result: LineResult, route: RoutePolicy, backend: str | None, *, is_batch: bool) -> LineResult:
        policy = self._core.runtime.loaded.policy
        price = next((policy.price_of(part) for part in route.backends if part.ref == backend), None)
        if price is None or not (result.input_tokens or result.output_tokens):
            return result
        usage = Usage(
            result.input_tokens, result.output_tokens, result.cached_tokens, reasoning_tokens=result.reasoning_tokens
        )
        if not is_batch:
            cost = price.amount(usage)
        elif price.batch is not None:
            cost = price.batch_amount(usage)
        else:
            cost = round(price.amount(usage) * (1 - Decimal(repr(route.batch.discount))))
        return msgspec.structs.replace(result, cost=cost)


def _row(result: LineResult, owner: LineOwner, route: str, backend: str, booking: Booking) -> Row:
    """The row of a line that a provider's batch has answered, or failed."""
    number, now_us = booking.next_call()
    return Row(
        n=number,
        at_us=now_us,
        request_id=f"{owner.batch}-{result.line}",
        kind="batch",
        key=owner.key,
        tenant=owner.tenant,
        route=route,
        operation=ENDPOINTS[owner.endpoint],
        backend=backend,
        model=owner.model,
        end=StreamEnd.CLEAN if result.is_answered else StreamEnd.ERROR,
        status=200 if result.is_answered else 0,
        error="" if result.is_answered else "line_failed",
        input_tokens=result.input_tokens,
        cached_tokens=result.cached_tokens,
        output_tokens=result.output_tokens,
        reasoning_tokens=result.reasoning_tokens,
        cost=result.cost,
    )
