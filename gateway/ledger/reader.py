"""Reads the ledger for whoever asks the gateway: one question at a time, in a thread of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from backends.errors import StoreUnavailable
from gateway.keys.asking_thread import AskingThread
from gateway.ledger.sums import check_version
from gateway.sql.database import Database, Transaction

_T = TypeVar("_T")
_MOST_WAITING = 64


class LedgerReader:
    """Its connection can only read."""

    def __init__(self, database: Database, time_zone: str) -> None:
        self.time_zone = time_zone
        self._database = database
        self._thread = AskingThread("ledger reader")
        self._num_waiting = 0
        self._is_checked = False

    async def ask(self, question: Callable[[Transaction], _T]) -> _T:
        """What the question comes to. Raises: ConfigurationError; StoreUnavailable, also where too many ask."""
        if self._num_waiting >= _MOST_WAITING:
            raise StoreUnavailable("the ledger is asked more than it can answer; ask again in a moment")

        def answer() -> _T:
            try:
                with self._database.reading() as transaction:
                    # Tables only ever get more columns, so a ledger that was fine stays so while it is there.
                    if not self._is_checked:
                        check_version(transaction, self._database)
                        self._is_checked = True
                    return question(transaction)
            except StoreUnavailable:
                # It may be another one that comes back.
                self._is_checked = False
                raise

        self._num_waiting += 1
        try:
            return await self._thread.ask(answer)
        finally:
            self._num_waiting -= 1

    def close(self) -> None:
        """Let go of the ledger."""
        self._thread.close(self._database.close)
