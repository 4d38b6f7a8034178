"""`slipstream simulate`: what a policy would do to a trace of requests, on a fleet that need not exist."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click
import msgspec

from backends.errors import ConfigurationError
from gateway.cli.loading import FileProblem, read_policy
from gateway.cli.models.model_folder import json_option, progress_bar, table

if TYPE_CHECKING:
    from gateway.simulate.simulated_fleet import AdmissionChoice
    from gateway.simulate.study import StudyResult
    from policies.pool.balance.settings import Balance

_MAX_CLIENTS_SHOWN = 8


@click.command()
@click.option(
    "--trace",
    required=True,
    metavar="FILE",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Requests to replay, gzip or plain: our own format, the access log, Mooncake's, Azure's or BurstGPT's.",
)
@click.option(
    "--columns",
    metavar="NAMES",
    help="The trace is another CSV file, with these columns: at=time,prompt=input,output=output, and "
    "model= and client= if there are such.",
)
@click.option(
    "--policy",
    "policies",
    required=True,
    multiple=True,
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="A policy file; give two to compare them.",
)
@click.option(
    "--fleet",
    metavar="FLEET",
    help="Replicas behind every route: h200-8b:8, h200-8b:6,h200-8b@0.5:2 (two at half speed), or a range 4..16. "
    "[default: the policy's own backends, of type simulated]",
)
@click.option(
    "--fit-from",
    metavar="LOG",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Instead of --fleet: the policy's own backends, as fast as this access log shows them.",
)
@click.option(
    "--replay",
    "is_replay",
    is_flag=True,
    help="The trace is an access log: fit the backends to its first half, and compare the second half with it.",
)
@click.option("--load", type=click.FloatRange(0, 1000, min_open=True), help="Times what the fleet can do at most.")
@click.option(
    "--rate",
    type=click.FloatRange(0, 1e6, min_open=True),
    help="Requests a second.  [default: as the trace has them]",
)
@click.option(
    "--slo",
    metavar="LIMITS",
    default="",
    help="What counts as in time: ttft=2s,ttft_per_1k_prompt=125ms,tpot=100ms.  [default: the policy's slo]",
)
@click.option("--balance", metavar="NAME", help="Instead of the policy's routing.policy, on every route.")
@click.option(
    "--admission",
    type=click.Choice(["none", "slo"]),
    help="Instead of the policy's admission, on every route: every call goes on at once, or only what can be in time.",
)
@click.option("--model", default="", metavar="NAME", help="Asked for where the trace names none.")
@click.option("--price", type=click.FloatRange(0, 1e6), help="Of one replica for one hour, in any currency.")
@click.option("--seed", type=click.IntRange(0, 2**32 - 1), default=0, show_default=True, help="Of random choices.")
@click.option(
    "--html", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Write a page with plots."
)
@json_option
def simulate(trace: Path, policies: tuple[Path, ...], html: Path | None, as_json: bool, **options: Any) -> None:
    """Replay a trace of requests through a policy, in virtual time: goodput, latencies, cache hits, cost.

    The stacks are those of `slipstream serve`; only their backends are simulated. Nothing is sent anywhere.

    \b
    Examples:
      slipstream simulate --trace trace.jsonl.gz --policy policy.yaml --fleet h200-8b:8 --load 0.95
      slipstream simulate --trace access.log --policy old.yaml --policy policy.yaml --fleet h200-8b:8 --html page.html
      slipstream simulate --trace trace.jsonl.gz --policy policy.yaml --fleet 4..16 --rate 12 --slo ttft=1s
      slipstream simulate --trace access.log --policy old.yaml --replay
      slipstream simulate --trace calls.csv --columns at=time,prompt=input,output=output --policy old.yaml --fleet 8
      slipstream simulate --trace access.log --policy policy.yaml --fit-from access.log --rate 40
    """
    if html is not None and not html.parent.is_dir():
        raise click.BadParameter(f"there is no such folder as {html.parent}", param_hint="--html")
    try:
        results = _results(trace, policies, **options)
    except ConfigurationError as error:
        raise FileProblem(error.message) from error
    if html is not None:
        from gateway.simulate.html import html_page

        html.write_text(html_page(results), encoding="utf-8")
    click.echo(json.dumps(_fields(results), indent=2) if as_json else _text(results))


def _results(
    trace: Path,
    policies: tuple[Path, ...],
    *,
    columns: str | None,
    fleet: str | None,
    fit_from: Path | None,
    is_replay: bool,
    load: float | None,
    rate: float | None,
    slo: str,
    balance: str | None,
    admission: AdmissionChoice | None,
    model: str,
    price: float | None,
    seed: int,
) -> list[StudyResult]:
    """Simulate every policy on every fleet.

    Raises: ConfigurationError.
    """
    from gateway.simulate.fit import fit_backends
    from gateway.simulate.simulated_fleet import BALANCES, parse_fleets
    from gateway.simulate.slo import parse_slo
    from gateway.simulate.study import StudyOptions, compare_with_log, log_of, simulate
    from gateway.simulate.traces import Columns, read_trace

    if balance is not None and balance not in BALANCES:
        raise click.BadParameter(f"{balance} is not one of {', '.join(BALANCES)}", param_hint="--balance")
    if load is not None and rate is not None:
        raise click.UsageError("give --load or --rate, not both")
    if sum((fleet is not None, fit_from is not None, is_replay)) > 1:
        raise click.UsageError("give one of --fleet, --fit-from and --replay")
    if is_replay and (load is not None or rate is not None):
        raise click.UsageError("--replay keeps the log's own pace")
    fleets = [None] if fleet is None else parse_fleets(fleet)
    if len(fleets) > 1 and load is not None:
        raise click.UsageError("a load is another rate for each fleet of a range; give --rate instead")
    study_options = StudyOptions(
        parse_slo(slo) if slo else None,
        seed=seed,
        load=load,
        rate=rate,
        balance=cast("Balance | None", balance),
        admission=admission,
        model=model,
        replica_price=price,
        fitted=fit_backends(log_of(read_trace(fit_from)).requests) if fit_from is not None else None,
    )
    loaded = [read_policy(path, no_env=True) for path in policies]
    requests = read_trace(trace, None if columns is None else Columns.of(columns))
    results = []
    for policy in loaded:
        for each in fleets:
            label = f"{policy.path.name}{', ' + each.text if each is not None else ''}"
            with progress_bar(label) as progress:
                if is_replay:
                    results.append(compare_with_log(policy, requests, study_options, progress))
                else:
                    results.append(simulate(policy, each, requests, study_options, progress))
    return results


def _fields(results: list[StudyResult]) -> dict[str, Any]:
    """The JSON output: one object for one simulation; for several a list, and the smallest fleet of each policy."""
    if len(results) == 1:
        return _run_fields(results[0])
    return {"runs": [_run_fields(result) for result in results], "smallest_fleets": _smallest(results)}


def _run_fields(result: StudyResult) -> dict[str, Any]:
    """The fields of one simulation, with `fitted` and `replay` if it has them."""
    from gateway.simulate.report import as_fields

    fields = as_fields(result.report)
    if result.fitted is not None:
        fields["fitted"] = {
            name: {field: float(f"{value:.4g}") for field, value in settings.model_dump(exclude_defaults=True).items()}
            for name, settings in result.fitted.items()
        }
    if result.compared:
        fields["replay"] = [msgspec.to_builtins(each) for each in result.compared]
    return fields


def _smallest(results: list[StudyResult]) -> dict[str, dict[str, int | None]]:
    """For each policy that was simulated on several fleets, the smallest fleet that keeps each share in time."""
    from gateway.simulate.study import smallest_fleets

    by_policy: dict[str, list[Any]] = {}
    for result in results:
        by_policy.setdefault(result.report.policy, []).append(result.report)
    return {policy: smallest_fleets(reports) for policy, reports in by_policy.items() if len(reports) > 1}


def _text(results: list[StudyResult]) -> str:
    from gateway.simulate.replayed import compared_rows
    from gateway.simulate.report import figure_rows, written

    reports = [result.report for result in results]
    first = reports[0]
    slo = ", ".join(f"{name.removesuffix('_s')} {value:g} s" for name, value in first.slo.items())
    parts = [f"{first.trace}: {first.requests:,} requests; SLO: {slo}"]
    curve = _smallest(results)
    if curve:
        head = ["policy", "replicas", "load", "goodput", "in SLO", "first token, median", "99 of 100"]
        rows = [
            [
                report.policy,
                str(report.replicas),
                written(report.load, ".2f"),
                written(report.goodput_rps, ".2f req/s"),
                written(report.slo_share, ".1%"),
                written(report.ttft_p50_s, ".3f s"),
                written(report.ttft_p99_s, ".3f s"),
            ]
            for report in reports
        ]
        parts.append(table([head, *rows]))
        parts += [
            f"{policy}: smallest fleet for "
            + ", ".join(f"{float(share):.0%} in SLO: {number or 'none of these'}" for share, number in found.items())
            for policy, found in curve.items()
        ]
    else:
        parts.append(table(figure_rows(reports)))
    if len(results) == 1 and len(first.clients) > 1:
        rows = [
            [client.client, str(client.requests), f"{client.slo_share:.1%}", f"{client.served_share:.2f}"]
            for client in first.clients[:_MAX_CLIENTS_SHOWN]
        ]
        parts.append(table([["client", "requests", "in SLO", "of its fair share"], *rows]))
    parts += [table(compared_rows(result.compared)) for result in results if result.compared]
    return "\n\n".join(parts)
