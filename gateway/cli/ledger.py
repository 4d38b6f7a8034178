"""`slipstream ledger`: what the calls came to, and a line for each of them, from the store that a policy names."""

from __future__ import annotations

import csv
import json
import re
import sys
from collections.abc import Iterable, Iterator
from datetime import date, datetime
from io import TextIOWrapper
from pathlib import Path
from typing import Any, TypeVar

import click

from backends.errors import ConfigurationError, StoreUnavailable
from gateway.assembly.stores import build_ledger_database
from gateway.cli.loading import FileProblem, read_policy_or_exit
from gateway.ledger.amounts import usd_text
from gateway.ledger.export import COLUMNS, count_calls, export
from gateway.ledger.percentiles import LATENCY_DIMENSIONS, LatencyDimension, spreads
from gateway.ledger.report import Period, report
from gateway.ledger.sums import DIMENSIONS, Dimension, Line
from gateway.sql.database import Database
from policies.ledger.settings import LedgerPolicy

_SHOWN = ("calls", "errors", "input_tokens", "cached_tokens", "output_tokens")
_PERCENTILES = (50, 90, 95, 99)
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""The last four are the wide forms of the first, which some spreadsheets take for them."""
_AMOUNT = re.compile(r"-[0-9.]+")
_T = TypeVar("_T")

_config_option = click.option(
    "--config",
    "file",
    required=True,
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The policy whose `ledger` it is.",
)
_since_option = click.option("--since", metavar="DAY", type=click.DateTime(["%Y-%m-%d"]), help="From this day on.")
_until_option = click.option("--until", metavar="DAY", type=click.DateTime(["%Y-%m-%d"]), help="Up to this day.")


@click.group()
def ledger() -> None:
    """Look at what the calls used and cost. A gateway may go on writing meanwhile."""
    # Callers choose names: one that the locale cannot write must not end an export in the middle.
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")


@ledger.command("report")
@_config_option
@click.option(
    "--by",
    multiple=True,
    required=True,
    type=click.Choice(DIMENSIONS),
    help="What the lines differ in; several together make a line for each combination.",
)
@_since_option
@_until_option
@click.option(
    "--format", "form", type=click.Choice(["text", "json", "csv"]), default="text", show_default=True, help="How."
)
def report_command(
    file: Path, by: tuple[Dimension, ...], since: datetime | None, until: datetime | None, form: str
) -> None:
    """Add up what the calls came to. Days are those of the ledger's time zone, hours those of UTC.

    Costs and savings are of the calls whose price is known; how many are not is said beside them.

    \b
    Examples:
      slipstream ledger report --config policy.yaml --by tenant
      slipstream ledger report --config policy.yaml --by day --by model --since 2026-11-01 --format csv
    """
    by = tuple(dict.fromkeys(by))
    database, period = _opened(file, since, until)
    lines = list(_or_exit(report(database, by, period)))
    if form == "text":
        _print_table(by, lines)
    elif form == "json":
        click.echo(json.dumps([_figures(by, line) for line in lines], indent=2))
    else:
        rows = [_figures(by, line) for line in lines]
        _write_csv(rows, list(rows[0]) if rows else list(by))


@ledger.command("latency")
@_config_option
@click.option(
    "--by",
    multiple=True,
    type=click.Choice(LATENCY_DIMENSIONS),
    help="What the lines differ in; several together make a line for each combination.",
)
@_since_option
@_until_option
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True, help="How.")
def latency_command(
    file: Path, by: tuple[LatencyDimension, ...], since: datetime | None, until: datetime | None, form: str
) -> None:
    """Tell how long calls took: percentiles, in milliseconds, to 3.2 %.

    `ttft` is until the first token of a stream, `tpot` between its tokens, `total` in all. Of `--by prompt` a line has
    the prompts of at least so many tokens. Calls that failed are left out.

    \b
    Examples:
      slipstream ledger latency --config policy.yaml --by route --by prompt
      slipstream ledger latency --config policy.yaml --by hour --since 2026-11-01 --format json
    """
    by = tuple(dict.fromkeys(by))
    database, period = _opened(file, since, until)
    lines = list(_or_exit(spreads(database, by, period)))
    percentiles = [[round(time_us / 1e3, 3) for time_us in line.percentiles_us(_PERCENTILES)] for line in lines]
    head = [*by, "measure", "calls", *(f"p{percent}_ms" for percent in _PERCENTILES)]
    rows = [[*line.values, line.measure, line.calls, *told] for line, told in zip(lines, percentiles, strict=True)]
    if form == "json":
        click.echo(json.dumps([dict(zip(head, row, strict=True)) for row in rows], indent=2))
    elif not rows:
        click.echo("no calls")
    else:
        texts = [[_shown(cell) if isinstance(cell, str) else f"{cell:,}" for cell in row] for row in rows]
        _print_columns([head, *texts], len(by) + 1)


@ledger.command("export")
@_config_option
@click.option(
    "--format", "form", type=click.Choice(["jsonl", "csv"]), default="jsonl", show_default=True, help="One line a call."
)
@_since_option
@_until_option
def export_command(file: Path, form: str, since: datetime | None, until: datetime | None) -> None:
    """Print a line for each call, in the order in which the store got them.

    Amounts are dollars in decimal text, which loses nothing; where a price is not known they are null, or empty in CSV.

    \b
    Examples:
      slipstream ledger export --config policy.yaml --format jsonl > calls.jsonl
      slipstream ledger export --config policy.yaml --format csv --since 2026-11-01 --until 2026-11-30 > november.csv
    """
    database, period = _opened(file, since, until)
    calls: Iterable[dict[str, Any]] = _or_exit(export(database, period))
    if sys.stderr.isatty() and not sys.stdout.isatty():
        (number,) = _or_exit(iter([count_calls(database, period)]))
        with click.progressbar(calls, length=number, label="calls", file=sys.stderr, update_min_steps=1000) as shown:
            _write_calls(shown, form)
    else:
        _write_calls(calls, form)


def _opened(file: Path, since: datetime | None, until: datetime | None) -> tuple[Database, Period]:
    if since is not None and until is not None and until < since:
        raise click.UsageError(f"--until {until:%Y-%m-%d} is before --since {since:%Y-%m-%d}")
    policy = _ledger_of(file)
    try:
        database = build_ledger_database(policy, is_read_only=True)
    except ConfigurationError as error:
        raise FileProblem(f"{file}: {error.message}") from error
    click.get_current_context().call_on_close(database.close)
    return database, Period(_day(since), _day(until))


def _ledger_of(file: Path) -> LedgerPolicy:
    # The secrets of backends are of no use here.
    loaded = read_policy_or_exit(file, no_env=True)
    if loaded.policy.ledger is None:
        raise FileProblem(f'{file}: the policy keeps no ledger; add `ledger: {{url: "sqlite:///ledger.sqlite3"}}`')
    return loaded.policy.ledger


def _day(moment: datetime | None) -> date | None:
    return None if moment is None else moment.date()


def _or_exit(items: Iterator[_T]) -> Iterator[_T]:
    try:
        yield from items
    except (ConfigurationError, StoreUnavailable) as error:
        raise FileProblem(error.message) from error


def _write_calls(calls: Iterable[dict[str, Any]], form: str) -> None:
    if form == "jsonl":
        for call in calls:
            sys.stdout.write(json.dumps(call, ensure_ascii=False, separators=(",", ":")) + "\n")
    else:
        _write_csv(calls, list(COLUMNS))


class _Lines:
    """Takes what a writer of CSV writes, whose lines end as those of a terminal do."""

    def write(self, line: str) -> None:
        """One of them."""
        sys.stdout.write(line.removesuffix("\r\n") + "\n")


def _write_csv(rows: Iterable[dict[str, Any]], columns: list[str]) -> None:
    # What ends its lines is also what it quotes in texts: either half alone ends a line for whoever reads.
    writer = csv.DictWriter(_Lines(), columns, lineterminator="\r\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: _cell(value) for name, value in row.items()})


def _cell(value: object) -> object:
    """Booleans as in JSON, for who reads both. A text that a spreadsheet would take for a formula has a quote in front,
    since callers choose the names of users, sessions and models.
    """
    if isinstance(value, bool):
        return str(value).lower()
    is_formula = isinstance(value, str) and value.startswith(_FORMULA) and not _AMOUNT.fullmatch(value)
    return f"'{value}" if is_formula else value


def _figures(by: tuple[Dimension, ...], line: Line) -> dict[str, Any]:
    amounts = [name.removesuffix("_micro") for name in line.sums if name.endswith("_micro")]
    counts = {name: number for name, number in line.sums.items() if not name.endswith(("_micro", "_pico"))}
    texts = {f"{name.removesuffix('_cost')}_usd": usd_text(line.amount(name)) for name in amounts}
    return {**dict(zip(by, line.values, strict=True)), **counts, **texts}


def _print_table(by: tuple[Dimension, ...], lines: list[Line]) -> None:
    if not lines:
        click.echo("no calls")
        return
    head = [*by, *(name.removesuffix("_tokens") for name in _SHOWN), "cost usd", "unknown", "saved usd"]
    table = [head, *([*map(_shown, line.values), *_numbers(line)] for line in lines)]
    _print_columns(table, len(by))


def _print_columns(table: list[list[str]], num_left: int) -> None:
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        cells = [
            cell.ljust(width) if place < num_left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        click.echo("  ".join(cells).rstrip())


def _shown(value: str) -> str:
    return "".join(sign if sign.isprintable() else "?" for sign in value) or "-"


def _numbers(line: Line) -> list[str]:
    cost, saved = usd_text(line.amount("cost")), usd_text(line.amount("saved"))
    sums = line.sums
    return [*(f"{sums[name]:,}" for name in _SHOWN), cost or "unknown", f"{sums['unknown']:,}", saved or "unknown"]
