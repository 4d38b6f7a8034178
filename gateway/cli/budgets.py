"""`slipstream budgets`: who has spent how much of what, and raises for a while, whether gateways run or not."""

from __future__ import annotations

import asyncio
import json
import os
import pwd
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import click

from backends.clock import SystemClock
from backends.errors import ConfigurationError, StoreUnavailable
from gateway.assembly.stores import build_ledger_database
from gateway.cli.keys import every_key, store_of
from gateway.cli.loading import FileProblem, read_policy_or_exit
from gateway.http.auth import Callers, Principal
from gateway.keys.raise_terms import checked_raise, raise_object
from gateway.keys.stored_key import StoredKey
from gateway.limits.budget_object import budget_object
from gateway.limits.budget_view import BudgetState, by_share
from gateway.limits.spent_before import Spent, SpentInLedger
from policies.limits.plan import UsageRules
from policies.limits.raises import Raise
from policies.schema import Policy

_PAGE = 1000
_SPENT = ("budget", "who", "window", "spent_usd", "usd", "raised_usd", "share", "ends")
_LISTED = ("id", "status", "budget", "who", "usd", "until", "by", "why")
_config_option = click.option(
    "--config",
    "file",
    required=True,
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The policy whose `stores.keys` keeps them.",
)
_format_option = click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Text for people, JSON for programs.",
)


@click.group()
def budgets() -> None:
    """See what is spent of budgets, and raise them for a while. Gateways that run know of each raise within seconds."""


@budgets.command("list")
@click.option(
    "--config",
    "file",
    required=True,
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The policy whose budgets these are; its `ledger` says what was spent.",
)
@_format_option
def list_budgets(file: Path, form: str) -> None:
    """List what is spent of each budget in the window that is open, nearest to the end first.

    As the ledger has it, which is a second or so behind the calls; what calls under way hold is not in it. Gateways
    tell more at GET /admin/budgets.

    \b
    Example:
      slipstream budgets list --config policy.yaml
    """
    policy = read_policy_or_exit(file, no_env=True).policy
    if policy.ledger is None:
        raise FileProblem(f"{file}: the policy has no `ledger`, which says what was spent")
    raises: dict[tuple[str, str], Raise] = {}
    callers = _KeysByName(policy)
    if policy.stores.keys is not None:
        with store_of(file) as (store, _):
            store.open()
            raises = store.raises.in_force()
            callers.add(every_key(store))
    in_force = _InForce(UsageRules(policy.limits, policy.budgets, policy.time_zone), callers)
    clock = SystemClock()
    try:
        with closing(build_ledger_database(policy.ledger, is_read_only=True)) as database:
            spent = asyncio.run(SpentInLedger(database, policy.ledger.time_zone, lambda: in_force, clock).by_budget())
    except (ConfigurationError, StoreUnavailable) as error:
        raise FileProblem(error.message) from error
    states = [_state(each, raises.get((each.budget.name, each.who)), clock.wall()) for each in spent]
    shown = [budget_object(state) for state in sorted(states, key=by_share)]
    if form == "json":
        click.echo(json.dumps(shown, indent=2))
    elif shown:
        _print_table([[_text(each, column) for column in _SPENT] for each in shown], _SPENT)
    else:
        click.echo("nothing is spent of any budget")


@budgets.command("raise")
@_config_option
@click.option("--budget", metavar="NAME", help="A budget of the policy; give --who too.")
@click.option("--who", metavar="NAME", help="By whom it counts: a tenant, TENANT:KEY, TENANT:TEAM, a tag.")
@click.option("--key", metavar="NAME", help="The key whose own budget it is, instead of --budget.")
@click.option("--usd", required=True, help="Dollars on top; in place of an earlier raise, so 0 takes that back.")
@click.option("--until", required=True, metavar="WHEN", help="A time from now, 7d, or a date, 2027-01-31.")
@click.option("--why", required=True, metavar="TEXT", help="For whoever reads the trail.")
@_format_option
def raise_budget(file: Path, form: str, **given: Any) -> None:
    """Raise a budget until a moment; then the raise ends by itself.

    \b
    Examples:
      slipstream budgets raise --config policy.yaml --budget tenant-month --who acme --usd 50 --until 7d --why launch
      slipstream budgets raise --config policy.yaml --key alice --usd 5 --until 2027-01-31 --why 'load test'
    """
    values = {field: value for field, value in given.items() if value is not None}
    with store_of(file) as (store, policy):
        asked = checked_raise(values, policy, store, SystemClock.wall())
        store.open()
        made = store.raises.add(asked, f"user:{_user()}")
    shown = raise_object(made, SystemClock.wall())
    if form == "json":
        click.echo(json.dumps(shown, indent=2))
    else:
        click.echo(f"{shown['budget']} of {shown['who'] or 'all'}: {shown['usd']} USD more until {shown['until']}")


@budgets.command()
@_config_option
@_format_option
def raises(file: Path, form: str) -> None:
    """List all raises that there ever were, the latest first.

    \b
    Example:
      slipstream budgets raises --config policy.yaml
    """
    shown = []
    before = None
    with store_of(file) as (store, _):
        store.open()
        while page := store.raises.page(_PAGE, before=before):
            shown += [raise_object(each, SystemClock.wall()) for each in page]
            before = page[-1].id
    if form == "json":
        click.echo(json.dumps(shown, indent=2))
        return
    _print_table([[str(each[column]) for column in _LISTED] for each in shown], _LISTED)


class _KeysByName:
    """Callers by the names of their keys, those of the policy first."""

    def __init__(self, policy: Policy) -> None:
        self._callers = Callers(policy.time_zone)
        self._known = {(key.name, key.tenant): self._callers.of(key.name, key) for key in policy.keys}

    def add(self, keys: Iterable[StoredKey]) -> None:
        """Those of a key store."""
        for key in keys:
            self._known.setdefault((key.name, key.terms.tenant), self._callers.of(key.name, key.terms))

    def named(self, name: str, tenant: str) -> Principal | None:
        """As `KnownCallers`."""
        return self._known.get((name, tenant))


class _InForce(NamedTuple):
    rules: UsageRules
    keyring: _KeysByName


def _state(spent: Spent, raised: Raise | None, now: float) -> BudgetState:
    amount, until = (0, None) if raised is None or raised.until <= now else (raised.amount, raised.until)
    return BudgetState(spent.budget, spent.who, spent.window, spent.amount, None, amount, until)


def _text(shown: dict[str, Any], column: str) -> str:
    value = shown[column]
    if column == "share":
        return f"{value:.1%}"
    return "-" if value is None or value == "" else str(value)


def _print_table(rows: Sequence[Sequence[str]], head: Sequence[str]) -> None:
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    for row in (head, *rows):
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _user() -> str:
    """Who runs the command, as the system has it."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
