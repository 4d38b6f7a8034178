"""What lines come to: priced, stored, counted; one way for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

import msgspec

from backends.charges.usage import Usage
from backends.stream import StreamEnd
from gateway.batches.batch_store import BatchStore
from gateway.batches.input_lines import ENDPOINTS
from gateway.batches.records import LineOwner, LineResult
from gateway.batches.statistics import Tally
from gateway.core import Core
from gateway.ledger.row import BATCH_LINE, Row
from gateway.record.booking import Booking
from gateway.record.savings import note_batch_line
from gateway.runtime import Stack
from policies.finished import finished
from policies.prices.price import PICO_PER_DOLLAR, Price


class Outcomes:
    """Of all lines."""

    def __init__(self, core: Core, store: BatchStore) -> None:
        self._core = core
        self._store = store
        self.tally = Tally()

    async def settle(
        self, route: str, backend: str | None, results: Sequence[LineResult], *, job: int | None = None
    ) -> None:
        """Lines of a route have come to this, those of a provider's batch in that `job`. Raises: StoreUnavailable.

        Who is cancelled meanwhile waits for it: what is stored is counted too.
        """
        await finished(self._settle(route, backend, results, job))

    def take_tally(self) -> Tally:
        """The counts since the last time."""
        taken, self.tally = self.tally, Tally()
        return taken

    async def _settle(self, route: str, backend: str | None, results: Sequence[LineResult], job: int | None) -> None:
        # Lines that were calls of their own are in the ledger already, and priced.
        owners = {} if job is None else await self._store.owners(result.line for result in results)
        booking = self._core.booking if job is not None else None
        prices = {}
        stack = None
        if job is not None:
            stack = self._core.runtime.stacks.get(route)
            prices = {line: _price(stack, backend, owner.model) for line, owner in owners.items()} if stack else {}
            share = 1 - Decimal(repr(stack.policy.batch.discount)) if stack else Decimal(1)
            results = [_priced(result, prices.get(result.line), share) for result in results]
        rows: dict[int, Row] = {}
        if booking is not None:
            for result in results:
                owner = owners.get(result.line)
                if owner is None:
                    # Its batch has ended meanwhile.
                    continue
                row = rows[result.line] = _row(result, owner, route, backend or "", booking)
                price = prices.get(result.line)
                row.price = price.name if price is not None and result.cost is not None else ""
                asked = stack.asked_prices.of(owner.model) if stack is not None else None
                note_batch_line(row, asked, price, _usage(result))
                caller = self._core.runtime.keyring.named(owner.key, owner.tenant)
                if caller is not None:
                    row.team, row.tags = caller.team, caller.tags
                # Before it is stored: after a kill nobody would note what is, and what is not is noted again.
                booking.note(row)
        for result in await self._store.answer(results, job):
            if booking is not None:
                booking.count(rows[result.line])
            self.tally.lines[route, "answered" if result.is_answered else "failed"] += 1
            self.tally.tokens[route, "prompt"] += result.input_tokens
            self.tally.tokens[route, "completion"] += result.output_tokens
            self.tally.tokens[route, "cached"] += result.cached_tokens
            self.tally.cost[route] = self.tally.cost.get(route, 0.0) + (result.cost or 0) / PICO_PER_DOLLAR


def _price(stack: Stack, backend: str | None, model: str) -> Price | None:
    for part, price in zip(stack.policy.backends, stack.pool.prices_of(model), strict=True):
        if part.ref == backend:
            return price
    return None


def _priced(result: LineResult, price: Price | None, share: Decimal) -> LineResult:
    """What a line of a provider's batch cost: by the price of batches, or that `share` of the usual one."""
    if price is None or not (result.input_tokens or result.output_tokens):
        return result
    usage = _usage(result)
    cost = price.batch_amount(usage) if price.batch is not None else round(price.amount(usage) * share)
    return msgspec.structs.replace(result, cost=cost)


def _usage(result: LineResult) -> Usage:
    return Usage(
        result.input_tokens, result.output_tokens, result.cached_tokens, reasoning_tokens=result.reasoning_tokens
    )


def _row(result: LineResult, owner: LineOwner, route: str, backend: str, booking: Booking) -> Row:
    """The row of a line that a provider's batch has answered, or failed."""
    number, now_us = booking.next_call()
    return Row(
        n=number,
        at_us=now_us,
        request_id=f"{owner.batch}-{result.line}",
        kind=BATCH_LINE,
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
