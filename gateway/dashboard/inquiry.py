"""What somebody who has signed in asks, with all that the answer may need."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from starlette.requests import Request

from backends.errors import UnknownPath
from gateway.dashboard.access import Visitor
from gateway.dashboard.queries.asked import Selection, asked
from gateway.http.auth import Principal
from gateway.ledger.reader import LedgerReader
from gateway.runtime import Runtime


class Inquiry(NamedTuple):
    """One of them. `now_s`: seconds since the Unix epoch."""

    request: Request
    runtime: Runtime
    principal: Principal
    visitor: Visitor
    query: dict[str, str]
    reader: LedgerReader
    now_s: float

    def selection(self) -> Selection:
        """Which calls it is about. Raises: InvalidRequest."""
        return asked(self.query, self.visitor.scope, self.now_s, self.reader.time_zone)

    def check_sees_all(self) -> None:
        """Names of backends and of others are no tenant's to know. Raises: UnknownPath."""
        if not self.visitor.sees_all:
            raise UnknownPath(f"there is no {self.request.url.path}")


Answer = Callable[[Inquiry], Awaitable[object]]
"""What is said, as values for JSON; or a response of its own."""
