"""`slipstream prices`: what each backend of each route takes for a model, and who says so."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from backends.clock import SystemClock
from backends.errors import ConfigurationError
from gateway.assembly.price_book import PriceBook, read_list
from gateway.cli.loading import FileProblem, format_option, read_policy_or_exit
from gateway.ledger.amounts import usd_text
from policies.matching.globs import allows, is_glob
from policies.prices.price import Price, Tariff
from policies.schema import Policy, RouteBackend, RoutePolicy

_ANY = "any"
_UNKNOWN = "unknown"
_SHOWN = ("input", "cached_input", "cache_write_5m", "output")
_PER_1M = 10**6


@click.command()
@click.option(
    "--config",
    "file",
    required=True,
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The policy whose prices they are.",
)
@click.argument("models", metavar="[MODEL]...", nargs=-1)
@format_option
def prices(file: Path, models: tuple[str, ...], form: str) -> None:
    """Show what each backend of each route takes for a MODEL, in dollars for a million tokens, and who says so.

    Without a MODEL: those that the routes name. JSON has every kind of token, long prompts, service tiers and batches.

    \b
    Examples:
      slipstream prices --config policy.yaml
      slipstream prices --config policy.yaml gpt-5 claude-sonnet-4-5
    """
    loaded = read_policy_or_exit(file, no_env=True)
    clock = SystemClock()
    try:
        book = PriceBook(loaded.policy, read_list(loaded, clock), clock)
    except ConfigurationError as error:
        raise FileProblem(f"{file}: {error.message}") from error
    rows = list(_rows(loaded.policy, book, models))
    if form == "json":
        click.echo(json.dumps([_as_data(*row) for row in rows], indent=2))
    else:
        click.echo(_as_text(rows, book))


def _rows(policy: Policy, book: PriceBook, models: Sequence[str]) -> Iterator[tuple[str, str, str, Price | None]]:
    """Route, backend, the model that it is asked for, and what that costs."""
    for route in policy.routes:
        for part in route.backends:
            source = book.source(part)
            for model in _asked(route, part, models):
                name = "" if model == _ANY else model
                yield route.name, part.ref, model, source.of(name) if source is not None else None


def _asked(route: RoutePolicy, part: RouteBackend, models: Sequence[str]) -> Iterator[str]:
    taken = route.match.models
    if models:
        wanted = [model for model in models if not taken or allows(taken, model)]
    else:
        wanted = [model for model in taken if not is_glob(model)] or [_ANY]
    yield from dict.fromkeys(part.model or model for model in wanted)


def _as_data(route: str, backend: str, model: str, price: Price | None) -> dict[str, Any]:
    named = {"route": route, "backend": backend, "model": model}
    if price is None:
        return {**named, "source": _UNKNOWN, "price": None}
    return {
        **named,
        "source": price.source,
        "price": price.name,
        "standard": _tariff(price.standard),
        "service_tiers": {name: _tariff(tariff) for name, tariff in price.tiers.items()},
        "batch": _tariff(price.batch) if price.batch is not None else None,
    }


def _tariff(tariff: Tariff) -> dict[str, Any]:
    rates = {
        (name if name == "request" else f"{name}_per_1m"): usd_text(pico if name == "request" else pico * _PER_1M)
        for name, pico in msgspec.structs.asdict(tariff.rates).items()
    }
    long = [{"above_tokens": each.above_tokens, **_tariff(Tariff(each.rates))} for each in tariff.long_contexts]
    return {**rates, "long_context": long} if long else rates


def _as_text(rows: Sequence[tuple[str, str, str, Price | None]], book: PriceBook) -> str:
    lines = [["ROUTE", "BACKEND", "MODEL", *(name.upper() for name in _SHOWN), "SOURCE", "BESIDES"]]
    for route, backend, model, price in rows:
        if price is None:
            lines.append([route, backend, model, *("-" for _ in _SHOWN), _UNKNOWN, ""])
            continue
        rates = [usd_text(getattr(price.standard.rates, name) * _PER_1M) or "" for name in _SHOWN]
        lines.append([route, backend, model, *rates, price.source, ", ".join(_besides(price))])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    shown = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    shown += ["", "Dollars for a million tokens."]
    if book.listed is not None:
        shown.append(f"list: genai-prices {book.listed.version}, whose newest price is of {book.listed.newest_day}.")
    return "\n".join(shown)


def _besides(price: Price) -> Iterator[str]:
    for each in price.standard.long_contexts:
        yield f"above {each.above_tokens} tokens {usd_text(each.rates.input * _PER_1M)}"
    yield from price.tiers
    if price.batch is not None:
        yield "batch"
