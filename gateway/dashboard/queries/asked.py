"""What a page asks about: which span, whose calls, and how they are told apart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple, TypeVar, get_args

from backends.errors import InvalidRequest
from gateway.dashboard.access import Scope
from gateway.dashboard.ranges import RANGES, Range, range_of
from gateway.ledger.sums import Dimension
from gateway.sql.database import Transaction

By = Literal["model", "backend", "route", "tenant", "key", "agent"]
BY: tuple[By, ...] = get_args(By)
_MAX_VALUE_CHARS = 512
_Name = TypeVar("_Name", bound=str)


_MOST_ROWS = 100_000
"""Of an hour by the minute, for it is added up from rows while somebody waits."""


class Selection(NamedTuple):
    """One question. `only`: of calls with these values."""

    scope: Scope
    span: Range
    by: By
    picked: tuple[By, str] | None
    now_s: float

    def check_size(self, transaction: Transaction) -> None:
        """Raises: InvalidRequest where there is more than can be added up in a moment."""
        if self.span.step == "minute":
            rows = f"SELECT 1 FROM calls WHERE {self.span.within.rows()} LIMIT {_MOST_ROWS + 1}"
            ((number,),) = transaction.fetch(f"SELECT COUNT(*) FROM ({rows}) AS rows_of_span")
            if number > _MOST_ROWS:
                raise InvalidRequest(
                    f"more than {_MOST_ROWS:,} calls in an hour are not told by the minute: choose 24 h"
                )

    @property
    def only(self) -> dict[Dimension, str]:
        """What the calls have in common, the asker's tenant included."""
        only: dict[Dimension, str] = {}
        if self.picked is not None:
            only[self.picked[0]] = self.picked[1]
        if self.scope.tenant is not None:
            # Last, so that no question about another tenant's calls finds any but one's own.
            only["tenant"] = self.scope.tenant
        return only


def asked(query: Mapping[str, str], scope: Scope, now_s: float, zone: str) -> Selection:
    """What the fields of a URL ask for: `range`, `by`, `only=model:NAME`. Raises: InvalidRequest."""
    name = _one_of(query.get("range", "7d"), RANGES, "range")
    by = _one_of(query.get("by", "model"), BY, "by")
    picked: tuple[By, str] | None = None
    if "only" in query:
        dimension, colon, value = query["only"].partition(":")
        if not colon or len(value) > _MAX_VALUE_CHARS:
            raise InvalidRequest("only: name what the calls have in common, as in only=model:gpt-5-mini")
        picked = _one_of(dimension, BY, "only"), value
        if scope.tenant is not None and picked[0] == "tenant" and value != scope.tenant:
            raise InvalidRequest("only: your key sees its own tenant")
    span = range_of(name, now_s, zone)
    return Selection(scope, span, by, picked, now_s)


def _one_of(value: str, known: tuple[_Name, ...], field: str) -> _Name:
    for name in known:
        if name == value:
            return name
    raise InvalidRequest(f"{field}: one of {', '.join(known)}")
