"""What the span before came to, as far as it can be compared with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from gateway.dashboard.queries.asked import Selection
from gateway.dashboard.queries.book import Book
from gateway.ledger.sums import Dimension, Line


def is_comparable(book: Book, asked: Selection) -> bool:
    """Whether the asker's calls go back beyond that span: whoever began within it has not seen the whole of it, and
    all that came since would look like a rise.
    """
    first_day = book.first_day(asked.scope.tenant)
    return first_day is not None and first_day < asked.span.day_before


def comparable(book: Book, asked: Selection, by: Sequence[Dimension], names: Sequence[str]) -> list[Line]:
    """Its lines, of its last day only the hours that today has had; none where it cannot be compared with."""
    if not is_comparable(book, asked):
        return []
    found: dict[tuple[str, ...], Counter[str]] = {}
    for within in asked.span.before_until_now:
        for line in book.sums(by, within, asked.only, names):
            found.setdefault(line.values, Counter()).update(line.sums)
    return [Line(values, {name: sums[name] for name in names}) for values, sums in sorted(found.items())]
