"""Reads the ledger for the dashboard: one question at a time, in a thread of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from gateway.keys.asking_thread import AskingThread
from gateway.ledger.sums import check_version
from gateway.sql.database import Database, Transaction

_T = TypeVar("_T")


class LedgerReader:
    """Its connection can only read."""

    def __init__(self, database: Database, time_zone: str) -> None:
        self.time_zone = time_zone
        self._database = database
        self._thread = AskingThread("dashboard")

    async def ask(self, question: Callable[[Transaction], _T]) -> _T:
        """What the question comes to. Raises: ConfigurationError, StoreUnavailable."""

        def answer() -> _T:
            with self._database.reading() as transaction:
                check_version(transaction, self._database)
                return question(transaction)

        return await self._thread.ask(answer)

    def close(self) -> None:
        """Let go of the ledger."""
        self._thread.close(self._database.close)
