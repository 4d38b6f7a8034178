"""What somebody who has signed in asks, with all that the answer may need."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from hashlib import sha256
from time import thread_time
from typing import NamedTuple, TypeVar

from starlette.requests import Request

from backends.errors import UnknownPath
from gateway.dashboard.access import Visitor
from gateway.dashboard.queries.asked import Selection, asked
from gateway.dashboard.queries.book import Book, Memory
from gateway.http.auth import Principal
from gateway.ledger.reader import LedgerReader
from gateway.runtime import Runtime
from gateway.sql.database import Transaction

_T = TypeVar("_T")
_STEP_S = {"1h": 60.0}
_LONGEST_S = 300.0


class Inquiry(NamedTuple):
    """One of them. `now_s`: seconds since the Unix epoch."""

    request: Request
    runtime: Runtime
    principal: Principal
    visitor: Visitor
    query: dict[str, str]
    reader: LedgerReader
    memory: Memory
    now_s: float
    spent_s: list[float]
    """Seconds of a processor that each question to the ledger has taken."""

    async def ask(self, question: Callable[[Book], _T]) -> _T:
        """What a question to the ledger comes to. Raises: as `LedgerReader.ask`."""

        def timed(transaction: Transaction) -> _T:
            begin = thread_time()
            try:
                return question(Book(transaction, self.memory, self.now_s, self.reader.time_zone))
            finally:
                self.spent_s.append(thread_time() - begin)

        return await self.reader.ask(timed)

    async def version(self) -> str:
        """Another one where an answer about the ledger may be another one: by the newest call, and from time to time,
        for steps begin and end by themselves.
        """
        newest = await self.ask(lambda book: book.newest)
        step_s = _STEP_S.get(self.query.get("range", ""), _LONGEST_S)
        told = (newest, self.now_s // step_s, self.visitor, self.runtime.revision, str(self.request.url.query))
        return f'"{sha256(repr(told).encode()).hexdigest()[:16]}"'

    def selection(self) -> Selection:
        """Which calls it is about. Raises: InvalidRequest."""
        return asked(self.query, self.visitor.scope, self.now_s, self.reader.time_zone)

    def check_sees_all(self) -> None:
        """Names of backends and of others are no tenant's to know. Raises: UnknownPath."""
        if not self.visitor.sees_all:
            raise UnknownPath(f"there is no {self.request.url.path}")


Answer = Callable[[Inquiry], Awaitable[object]]
"""What is said, as values for JSON; or a response of its own."""
