"""`slipstream keys`: makes, shows, rotates and revokes keys in the store of a policy, whether gateways run or not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from backends.clock import SystemClock
from backends.errors import ConfigurationError, RequestError, StoreUnavailable
from gateway.assembly.keys import build_key_store
from gateway.cli.loading import FileProblem, read_policy_or_exit
from gateway.keys.key_store import KeyStore
from gateway.keys.stored_key import StoredKey
from gateway.keys.terms import checked_name, checked_terms, key_object, moment_from, overlap_seconds
from policies.database_url import sqlite_path
from policies.schema import Policy

_PAGE = 1000
_LISTED = ("name", "status", "tenant", "team", "models", "expires", "created")
_config_option = click.option(
    "--config",
    "file",
    required=True,
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The policy whose `stores.keys` it is.",
)
_format_option = click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Text for people, JSON for programs.",
)
_name_argument = click.argument("name")


@click.group()
def keys() -> None:
    """Keys in the store that a policy names. Gateways that run know of each change within seconds."""


@keys.command()
@_config_option
@click.option("--name", required=True, help="Unique, in the policy file too; appears in logs and the ledger.")
@click.option("--tenant", metavar="NAME", help="Who the key belongs to.  [default: default]")
@click.option("--team", metavar="NAME", help="A part of the tenant.")
@click.option("--models", metavar="GLOB", multiple=True, help="Models that it may ask for; repeatable.  [default: *]")
@click.option("--route", "routes", metavar="NAME", multiple=True, help="Routes that may take its calls; repeatable.")
@click.option("--priority", type=click.Choice(["high", "normal", "low"]), help="At most.  [default: normal]")
@click.option("--expires", metavar="WHEN", help="A time from now, 90d, or a date, 2027-01-31.  [default: never]")
@click.option("--rpm", type=int, metavar="N", help="Requests a minute.")
@click.option("--tpm", type=int, metavar="N", help="Tokens a minute, of prompts and answers.")
@click.option("--concurrent", type=int, metavar="N", help="Calls at once.")
@click.option("--budget", metavar="USD", type=float, help="Dollars that it may cost.")
@click.option(
    "--every", type=click.Choice(["day", "week", "month", "total"]), help="When --budget begins anew.  [default: month]"
)
@click.option("--tag", "tags", metavar="WORD", multiple=True, help="Stands in the ledger; repeatable.")
@click.option("--metadata", metavar="NAME=TEXT", multiple=True, help="A text of your own; repeatable.")
@_format_option
def create(file: Path, name: str, form: str, budget: float | None, every: str | None, **given: Any) -> None:
    """Make a key and print it, once: only its hash is kept.

    \b
    Examples:
      slipstream keys create --config policy.yaml --name alice --tenant acme --models 'gpt-4o*' --expires 90d
      slipstream keys create --config policy.yaml --name bob --rpm 60 --budget 50 --every month
      KEY=$(slipstream keys create --config policy.yaml --name ci --tag project:search)
    """
    if every is not None and budget is None:
        raise click.UsageError("--every says when a budget begins anew: give --budget too")
    limit = {field: value for field in ("rpm", "tpm", "concurrent") if (value := given.pop(field)) is not None}
    values = {field: list(value) if isinstance(value, tuple) else value for field, value in given.items() if value}
    if "metadata" in values:
        values["metadata"] = dict(_pair(text) for text in values["metadata"])
    if limit:
        values["limit"] = limit
    if budget is not None:
        values["budget"] = {"usd": budget} if every is None else {"usd": budget, "every": every}
    with store_of(file, may_make=True) as (store, policy):
        terms = checked_terms(values, policy, SystemClock.wall())
        checked_name(name, policy)
        store.open()
        key, secret = store.create(name, terms)
    _print_secret(key, secret, form, f"is made in {_place(policy)}")


@keys.command("list")
@_config_option
@_format_option
def list_keys(file: Path, form: str) -> None:
    """List all keys, revoked and expired ones too.

    \b
    Example:
      slipstream keys list --config policy.yaml
    """
    with store_of(file) as (store, _):
        found = [key_object(key, SystemClock.wall()) for key in every_key(store)]
    if form == "json":
        click.echo(json.dumps(found, indent=2))
        return
    rows = [[_cell(key[column]) for column in _LISTED] for key in found]
    widths = [max(map(len, column)) for column in zip(_LISTED, *rows, strict=True)]
    for row in (_LISTED, *rows):
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


@keys.command()
@_config_option
@_name_argument
@_format_option
def show(file: Path, name: str, form: str) -> None:
    """Show what the key of that NAME may do, and how its secrets end.

    \b
    Example:
      slipstream keys show --config policy.yaml alice
    """
    with store_of(file) as (store, _):
        key = store.get(name)
    _print_key(key, form)


@keys.command()
@_config_option
@_name_argument
@click.option("--overlap", default="24h", show_default=True, help="How long the former secrets go on; 0s: not at all.")
@click.option("--expires", metavar="WHEN", help="When the key expires from now on.  [default: as before]")
@_format_option
def rotate(file: Path, name: str, overlap: str, expires: str | None, form: str) -> None:
    """Give the key of that NAME a new secret and print it, once. Name, rights and ledger stay.

    \b
    Examples:
      slipstream keys rotate --config policy.yaml alice
      slipstream keys rotate --config policy.yaml alice --overlap 0s      # it has leaked
    """
    with store_of(file) as (store, _):
        change = {} if expires is None else {"expires": moment_from(expires, SystemClock.wall())}
        key, secret = store.rotate(name, overlap_seconds(overlap), change)
    _print_secret(key, secret, form, "has a new secret")


@keys.command()
@_config_option
@_name_argument
def revoke(file: Path, name: str) -> None:
    """End the key of that NAME, for good. Gateways refuse it within seconds; streams that are open go on to their end.

    \b
    Example:
      slipstream keys revoke --config policy.yaml alice
    """
    with store_of(file) as (store, _):
        store.revoke(name)
    click.echo(f"key {name} is revoked", err=True)


def _place(policy: Policy) -> str:
    # A path that is relative leads elsewhere from elsewhere.
    assert policy.stores.keys is not None, "asked for a policy with a key store"
    path = sqlite_path(policy.stores.keys.url)
    return "PostgreSQL" if path is None else str(path.absolute())


@contextmanager
def store_of(file: Path, *, may_make: bool = False) -> Iterator[tuple[KeyStore, Policy]]:
    """The key store of that policy. What goes wrong with it or with the request ends the command with a line."""
    # The secrets of backends are of no use here.
    policy = read_policy_or_exit(file, no_env=True).policy
    if policy.stores.keys is None:
        raise FileProblem(
            f'{file}: the policy has no key store; add `stores: {{keys: {{url: "sqlite:///keys.sqlite3"}}}}`'
        )
    try:
        store = build_key_store(policy.stores.keys, SystemClock(), may_make=may_make)
        try:
            yield store, policy
        finally:
            store.close()
    except (ConfigurationError, StoreUnavailable, RequestError) as error:
        raise FileProblem(error.message) from error


def every_key(store: KeyStore) -> Iterator[StoredKey]:
    """All that there are, a page at a time."""
    after = ""
    while page := store.page(_PAGE, after=after):
        yield from page
        after = page[-1].name


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise click.BadParameter(f'"{text}": write it as name=text', param_hint="--metadata")
    return name, value


def _print_secret(key: StoredKey, secret: str, form: str, what: str) -> None:
    if form == "json":
        click.echo(json.dumps({**key_object(key, SystemClock.wall()), "key": secret}, indent=2))
        return
    click.echo(f"key {key.name} of tenant {key.terms.tenant} {what}; it is shown this once:", err=True)
    click.echo(secret)


def _print_key(key: StoredKey, form: str) -> None:
    shown = key_object(key, SystemClock.wall())
    if form == "json":
        click.echo(json.dumps(shown, indent=2))
        return
    for field, value in shown.items():
        if field == "secrets":
            for each in value:
                until = f", valid until {each['until']}" if each["until"] else ""
                click.echo(f"{'secret':<10}...{each['ends_with']}, made {each['created']}{until}")
        elif field != "object":
            click.echo(f"{field:<10}{_cell(value)}")


def _cell(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}={text}" for name, text in value.items() if text is not None) or "-"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "-"
    return "-" if value is None else str(value)
