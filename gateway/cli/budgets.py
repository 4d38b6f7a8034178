"""`slipstream budgets`: raises budgets for a while, and shows who raised what, whether gateways run or not."""

from __future__ import annotations

import json
import os
import pwd
from pathlib import Path
from typing import Any

import click

from backends.clock import SystemClock
from gateway.cli.keys import store_of
from gateway.keys.raise_terms import checked_raise, raise_object

_PAGE = 1000
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
    """Raise budgets for a while. Gateways that run know of each raise within seconds."""


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
    rows = [[str(each[column]) for column in _LISTED] for each in shown]
    widths = [max(map(len, column)) for column in zip(_LISTED, *rows, strict=True)]
    for row in (_LISTED, *rows):
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _user() -> str:
    """Who runs the command, as the system has it."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
