"""What lines come to: what is stored of them is in the ledger too, and counted."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from sqlite3 import Connection
from threading import Event
from types import SimpleNamespace

import pytest

from gateway.batches.batch_store import BatchStore
from gateway.batches.outcomes import Outcomes
from gateway.batches.records import LineResult
from gateway.ledger.row import Row
from tests.gateway.batches.test_stores import Batches, answer
from tests.support.clock import FakeClock


class HeldStore(BatchStore):
    """It has begun to write an answer, and goes on when it is told to, as before a disk that is busy."""

    def __init__(self, kept: Batches) -> None:
        super().__init__(kept.database, kept.files, kept.clock, max_batches=2, keep_s=1.0)
        self.has_begun, self.may_go_on = Event(), Event()

    async def answer(self, results: Sequence[LineResult], job: int | None = None) -> Sequence[LineResult]:
        def change(connection: Connection) -> Sequence[LineResult]:
            self.has_begun.set()
            assert self.may_go_on.wait(10)
            return results

        return await self._database.write(change)


async def test_line_of_a_provider_that_is_stored_is_noted_and_counted_though_its_gateway_ends(tmp_path: Path) -> None:
    """Nobody does so later: the line is done."""
    kept = Batches(tmp_path, FakeClock())
    await kept.open()
    batch = await kept.batch(lines=1)
    (line,) = await kept.database.read(lambda connection: connection.execute("SELECT id FROM lines").fetchone())
    store, rows, counted = HeldStore(kept), list[Row](), list[Row]()
    core = SimpleNamespace(
        booking=SimpleNamespace(next_call=lambda: (1, 0), note=rows.append, count=counted.append),
        runtime=SimpleNamespace(stacks={}, keyring=SimpleNamespace(named=lambda key, tenant: None)),
    )
    outcomes = Outcomes(core, store)  # type: ignore[arg-type]  # all that it needs of one
    settling = asyncio.create_task(outcomes.settle("r", "up", [answer(line)], job=1))
    assert await asyncio.to_thread(store.has_begun.wait, 10)
    settling.cancel()
    store.may_go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await settling

    assert [row.request_id for row in rows] == [f"{batch.id}-{line}"]
    assert counted == rows
    assert outcomes.take_tally().lines == {("r", "answered"): 1}
    await kept.database.aclose()
