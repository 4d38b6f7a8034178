"""What somebody asks of a raise, checked against the policy: for the admin API and for the command line."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

from backends.errors import InvalidRequest
from gateway.keys.key_store import KeyStore
from gateway.keys.raise_store import AskedRaise, StoredRaise
from gateway.keys.terms import moment_from
from gateway.ledger.amounts import usd_text
from policies.keys.settings import KeyTerms
from policies.limits.rules import OWN, who_of_key
from policies.limits.settings import MOST_DOLLARS
from policies.policy_file.problems import unknown_name
from policies.prices.price import PICO_PER_DOLLAR
from policies.schema import Policy

_FIELDS = ("key", "budget", "who", "usd", "until", "why")
_MOST_S = 366 * 86400.0
_MOST_WHO = 320
_MOST_WHY = 500


def checked_raise(values: Mapping[str, Any], policy: Policy, store: KeyStore, now: float) -> AskedRaise:
    """A raise of `budget` for `who`, or of the budget that `key` has of its own; asks the store for keys.

    Raises: InvalidRequest, UnknownObject, StoreUnavailable.
    """
    for field in values:
        if field not in _FIELDS:
            raise InvalidRequest(f"{field}: unknown; known are {', '.join(_FIELDS)}", param=field)
    if (values.get("key") is None) == (values.get("budget") is None):
        raise InvalidRequest("give `budget` and `who`, or `key` for a key's own budget", param="budget")
    amount, why = _amount(values.get("usd")), values.get("why")
    if not isinstance(why, str) or not why.strip() or len(why) > _MOST_WHY:
        raise InvalidRequest(f"why: say it in 1 to {_MOST_WHY} characters, for whoever reads the trail", param="why")
    ends_at = moment_from(values.get("until"), now, "until").timestamp()
    if not now < ends_at <= now + _MOST_S:
        raise InvalidRequest("until: a moment to come, within a year; raises end by themselves", param="until")
    if values.get("key") is not None:
        if values.get("who") is not None:
            raise InvalidRequest("who: goes with `budget`; a key's own budget is the key's", param="who")
        return AskedRaise(OWN, _of_key(values["key"], policy, store), amount, ends_at, why)
    names = [budget.name for budget in policy.budgets]
    name, who = values["budget"], values.get("who", "")
    if name not in names:
        raise InvalidRequest(unknown_name("budget", str(name), names), param="budget")
    counts_all = next(budget.per == "all" for budget in policy.budgets if budget.name == name)
    if not isinstance(who, str) or len(who) > _MOST_WHO or (who == "") != counts_all:
        needs = "nobody, for it counts all" if counts_all else "by whom it counts, as the list of budgets has it"
        raise InvalidRequest(f'who: the budget "{name}" needs {needs}', param="who")
    return AskedRaise(name, who, amount, ends_at, why)


def raise_object(made: StoredRaise, now: float) -> dict[str, Any]:
    """One of the trail, as it is shown."""
    asked = made.asked
    return {
        "object": "budget_raise",
        "id": made.id,
        "status": made.status(now),
        "budget": asked.budget,
        "who": asked.who,
        "usd": usd_text(asked.amount),
        "until": _moment(asked.ends_at),
        "why": asked.why,
        "by": made.made_by,
        "made": _moment(made.made_at),
    }


def _of_key(name: object, policy: Policy, store: KeyStore) -> str:
    """Whom the own budget of the key of that name counts together."""
    if not isinstance(name, str):
        raise InvalidRequest("key: the name of one", param="key")
    terms: KeyTerms | None = next((key for key in policy.keys if key.name == name), None)
    if terms is None:
        terms = store.get(name).terms
    if terms.budget is None:
        raise InvalidRequest(f'key: "{name}" has no budget of its own; raise one of `budgets`', param="key")
    return who_of_key(terms.tenant, name)


def _amount(usd: object) -> int:
    """Pico-dollars of a number or its text, exactly. 0 takes a raise back."""
    try:
        amount = Decimal(str(usd)) if isinstance(usd, str | int | float) and not isinstance(usd, bool) else None
    except InvalidOperation:
        amount = None
    if amount is None or not amount.is_finite() or not 0 <= amount <= MOST_DOLLARS:
        raise InvalidRequest(f"usd: dollars on top, 0 to {MOST_DOLLARS}; 0 takes a raise back", param="usd")
    if amount * PICO_PER_DOLLAR % 1:
        raise InvalidRequest("usd: an amount of dollars has at most twelve decimals", param="usd")
    return int(amount * PICO_PER_DOLLAR)


def _moment(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")
