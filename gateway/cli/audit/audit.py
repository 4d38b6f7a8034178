"""`slipstream audit timing`: whether one tenant can find out from a running gateway what another has asked."""

from __future__ import annotations

import json
from collections.abc import Sequence
from random import Random
from statistics import quantiles
from typing import Any

import click

from gateway.cli.audit.timing import CannotAudit, TimedClient, TimingSignal, measure_signals
from gateway.cli.models.model_folder import json_option, progress_bar, table
from gateway.cli.parameters import KeyReference, gateway_address

_QUANTILES = {"p10": 9, "p50": 49, "p90": 89, "p99": 98}
_TIMES = ("first byte", "last byte")


class _Failure(click.ClickException):
    """The audit failed, which is different from a finding: exit code 2."""

    exit_code = 2


@click.group()
def audit() -> None:
    """Look at a running gateway as somebody would who means no good."""


@audit.command()
@click.argument("url", callback=gateway_address)
@click.option("--model", required=True, help="The model to ask for: its route is the one that is audited.")
@click.option("--key-a", required=True, type=KeyReference(), help="The key of who asks first.")
@click.option("--key-b", required=True, type=KeyReference(), help="The key, of another tenant, of who wants to know.")
@click.option(
    "--questions",
    type=click.IntRange(20, 100_000),
    default=200,
    show_default=True,
    help="A asks so many, B two of each.",
)
@click.option("--whole", is_flag=True, help="Ask for answers in one piece instead of streams.")
@click.option(
    "--tolerance",
    type=click.FloatRange(0, 0.49),
    default=0.1,
    show_default=True,
    help="How far from 0.5 an AUC may surely be.",
)
@json_option
def timing(
    url: str, model: str, key_a: str, key_b: str, questions: int, whole: bool, tolerance: float, as_json: bool
) -> None:
    """Measure how well B can tell what A has asked before from what nobody has.

    A asks made-up questions, B the same ones and as many new ones, in random order, one at a time. Compared are the
    times of B's answers, their date, and their headers. The AUC is the share of pairs that a sign puts in the right
    order: 0.5 tells nothing, 1 everything. Exit code 1 where any of them is surely further from 0.5 than --tolerance,
    2 where the gateway does not answer. Every question is paid for: three times --questions short answers.

    \b
    Example:
      slipstream audit timing http://127.0.0.1:8080 --model help --key-a env:RED_KEY --key-b env:BLUE_KEY
    """
    if key_a == key_b:
        raise click.BadParameter("both keys are the same", param_hint="--key-b")
    first, second = (TimedClient(url, key, model, stream=not whole) for key in (key_a, key_b))
    try:
        with progress_bar("asking") as note:
            signals = measure_signals(first, second, questions, Random(), note)
    except CannotAudit as error:
        raise _Failure(str(error)) from error
    finally:
        first.close()
        second.close()
    telling = [signal.name for signal in signals if signal.auc.separates(tolerance)]
    shown = {
        "questions": questions,
        "tolerance": tolerance,
        "tells": telling,
        "signs": [_figures(signal) for signal in signals],
    }
    click.echo(json.dumps(shown, indent=2) if as_json else _text(signals, questions, tolerance, telling))
    click.get_current_context().exit(1 if telling else 0)


def _figures(signal: TimingSignal) -> dict[str, Any]:
    return {
        "sign": signal.name,
        "auc": signal.auc.value,
        "lower95": signal.auc.lower,
        "upper95": signal.auc.upper,
        "asked_before": _at_quantiles(signal.before),
        "never_asked": _at_quantiles(signal.never),
    }


def _at_quantiles(values: Sequence[float]) -> dict[str, float]:
    """The distribution in seconds; for a header, -1 stands for its presence."""
    cuts = quantiles(values, n=100, method="inclusive")
    return {name: cuts[cut] for name, cut in _QUANTILES.items()}


def _text(signals: Sequence[TimingSignal], questions: int, tolerance: float, telling: Sequence[str]) -> str:
    rows = [["sign", "asked before p50", "p90", "never asked p50", "p90", "AUC", "95 % limits"]]
    for signal in signals:
        cells = [""] * 4
        if signal.name in _TIMES:
            groups = [_at_quantiles(group) for group in (signal.before, signal.never)]
            cells = [f"{1e3 * group[name]:,.1f} ms" for group in groups for name in ("p50", "p90")]
        auc = signal.auc
        rows.append([signal.name, *cells, f"{auc.value:.3f}", f"{auc.lower:.3f} to {auc.upper:.3f}"])
    finding = (
        f"What another key asked shows in: {', '.join(telling)}." if telling else "None of these tells what was asked."
    )
    head = f"{questions} questions that another key had asked before, {questions} that nobody had"
    return f"{head}\n\n{table(rows)}\n\n{finding} An AUC within 0.5 +- {tolerance:g} counts as nothing."
