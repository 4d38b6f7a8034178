"""What calls are looked for, as people write it: `model:gpt-5-mini status:5xx cost:>0.01 -tenant:research`."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import NamedTuple

from backends.errors import InvalidRequest
from policies.prices.price import PICO_PER_DOLLAR

TEXT_COLUMNS = (
    *("request_id", "key", "tenant", "team", "user", "session", "agent", "route", "operation", "backend", "model"),
    *("served", "cache", "end", "error", "fault", "priority"),
)
_MAX_TERMS = 12
_MAX_CHARS = 1000
_COMPARED = re.compile(r"(>=|<=|>|<)?(.+)", re.DOTALL)


class Condition(NamedTuple):
    """As SQL about a row, and the values of its placeholders."""

    sql: str
    values: tuple[object, ...]


def condition_of(text: str) -> Condition:
    """All of its words have to hold; a `-` before one turns it round. Raises: InvalidRequest."""
    if len(text) > _MAX_CHARS:
        raise InvalidRequest(f"the filter is longer than {_MAX_CHARS} characters")
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise InvalidRequest("the filter has a quotation mark that is not closed") from error
    if len(words) > _MAX_TERMS:
        raise InvalidRequest(f"the filter has more than {_MAX_TERMS} words")
    found = [_term(word) for word in words]
    values = tuple(value for condition in found for value in condition.values)
    return Condition(" AND ".join(condition.sql for condition in found) or "1 = 1", values)


def _term(word: str) -> Condition:
    is_not = word.startswith("-")
    name, colon, value = word.removeprefix("-").partition(":")
    if not colon:
        # A word alone is what people paste: the number of a request.
        name, value = "request_id", name
    if name in TEXT_COLUMNS:
        condition = _of_text(name, value)
    elif name in _OTHERS:
        condition = _OTHERS[name](name, value)
    else:
        known = ", ".join(sorted((*TEXT_COLUMNS, *_OTHERS)))
        raise InvalidRequest(f'the filter knows no "{name}": there are {known}')
    # What is not known is neither.
    return Condition(f"NOT COALESCE({condition.sql}, FALSE)", condition.values) if is_not else condition


def _of_text(name: str, value: str) -> Condition:
    if value.endswith("*"):
        begin = value[:-1]
        # Not LIKE, whose signs would have to be made harmless, and which knows no capitals in SQLite.
        return Condition(f'SUBSTR("{name}", 1, {len(begin):d}) = ?', (begin,))
    return Condition(f'"{name}" = ?', (value,))


def _of_status(name: str, value: str) -> Condition:
    if re.fullmatch("[1-5]xx", value):
        return Condition("status >= ? AND status < ?", (int(value[0]) * 100, int(value[0]) * 100 + 100))
    return _of_number("status", value)


def _of_number(name: str, value: str, times: int = 1) -> Condition:
    compared = _COMPARED.fullmatch(value)
    try:
        number = Decimal(compared[2]) * times if compared else Decimal("NaN")
    except InvalidOperation:
        number = Decimal("NaN")
    if compared is None or not number.is_finite() or abs(number) >= 2**62:
        raise InvalidRequest(f"{name}: a number is wanted, as in {name}:>100, and not {value[:50]!r}")
    return Condition(f"{name} {compared[1] or '='} ?", (int(number),))


def _of_flag(name: str, value: str) -> Condition:
    return Condition(f"COALESCE({name}, FALSE) = {'TRUE' if _is_yes(name, value) else 'FALSE'}", ())


def _is_yes(name: str, value: str) -> bool:
    if value not in ("yes", "no"):
        raise InvalidRequest(f"{name}: yes or no")
    return value == "yes"


_OTHERS: dict[str, Callable[[str, str], Condition]] = {
    "status": _of_status,
    "cost": lambda _, value: _of_number("cost", value, PICO_PER_DOLLAR),
    "ms": lambda _, value: _of_number("total_us", value, 1000),
    "ttft": lambda _, value: _of_number("ttft_us", value, 1000),
    "attempts": _of_number,
    "drafted_tokens": _of_number,
    "accepted_tokens": _of_number,
    "input_tokens": _of_number,
    "output_tokens": _of_number,
    "cached_tokens": _of_number,
    "stream": _of_flag,
    "estimated": _of_flag,
    "failed": lambda _, value: Condition(
        f"fault {'<>' if value == 'yes' else '='} ''", _of_flag("failed", value).values
    ),
}
