"""What the policies promise on real traces, beside what is measured: the figures of `slipstream bench policies`.

Simulations only; figures of live processes and of the processor are measured by the benchmarks of the source tree.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean

import msgspec

from backends.config import Config
from backends.errors import ConfigurationError
from backends.registry import Registry
from gateway.simulate.baselines import limited_registry
from gateway.simulate.derive import HOG, repeated, with_hog
from gateway.simulate.report import ClientReport, SimulationReport
from gateway.simulate.run import Progress
from gateway.simulate.simulated_fleet import parse_fleets
from gateway.simulate.slo import parse_slo
from gateway.simulate.study import StudyOptions, simulate
from gateway.simulate.traces import Trace, read_trace
from policies.policy_file.load import parse_policy
from policies.pool.balance.settings import Balance

MOONCAKE, CONVERSATION, CODE, ARENA = "mooncake_conversation", "azure2023_conv", "azure2023_code", "arena_clients"

_POLICY = b"""\
version: 1
backends: {any: {type: simulated}}
routes: [{name: all, match: {models: ["*"]}, backends: [{ref: any}], slo: {}, admission: {}}]
"""
_FLAT = "ttft=2s,ttft_per_1k_prompt=0s"
_SEEDS = (1, 2, 3)
"""Prefix hits differ by a point or two from one to the next, so they are a mean; all else is of the first."""
_LOAD = 1.5
_BASELINES: tuple[Balance, ...] = ("p2c", "least_request", "predicted_cost")
_BEST_BY = 1.5
"""How many times the best baseline's goodput ours is to be."""
_ADMITTED = 0.98
_ARENA_PASSES = 16
"""Four minutes at the rate of the overload."""
_SPEED_PER_MINUTE = 100_000


class PolicyFigure(msgspec.Struct, frozen=True):
    """One line of the table. `is_met` is None where nothing is asked for, or a time that depends on the machine."""

    figure: str
    must: str
    measured: str
    is_met: bool | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Overload:
    """A trace at half as much again as its fleet can do, and the goodput that is asked for."""

    title: str
    trace: str
    fleet: str
    least_rps: float
    slo: str = ""


OVERLOADS: Sequence[Overload] = (
    Overload("Mooncake conversation, 8 replicas", MOONCAKE, "h200-8b:8", 17.5),
    Overload("Azure conversation, 4 replicas, 2 s", CONVERSATION, "h200-8b:4", 98.0, _FLAT),
    Overload("Azure code, 4 replicas, 2 s", CODE, "h200-8b:4", 75.0, _FLAT),
)


class Runs:
    """Simulations of the traces of a folder, each run once however many figures ask for it."""

    def __init__(self, folder: Path, progress: Callable[[str], AbstractContextManager[Progress]]) -> None:
        """`progress` makes the bar of one simulation from its label."""
        registry = Registry()

        def settings_of(kind: str) -> type[Config]:
            return registry.kind(kind).config

        self._policy = parse_policy(_POLICY, Path("built in"), {}, settings_of)
        self._folder = folder
        self._progress = progress
        self._traces: dict[str, Trace] = {}
        self._reports: dict[tuple[object, ...], SimulationReport] = {}

    def trace(self, name: str) -> Trace:
        """One of the folder's.

        Raises: ConfigurationError where it is missing or cannot be read.
        """
        if name not in self._traces:
            path = self._folder / f"{name}.jsonl.gz"
            if not path.is_file():
                raise ConfigurationError(f"{path}: this trace is not there; --data names the folder that has it")
            self._traces[name] = read_trace(path)
        return self._traces[name]

    def hog(self) -> Trace:
        """The clients' trace, long enough to be steady, and one client more who sends half of everything."""
        if HOG not in self._traces:
            self._traces[HOG] = with_hog(repeated(self.trace(ARENA), _ARENA_PASSES))
        return self._traces[HOG]

    def report(
        self,
        trace: Trace,
        fleet: str,
        slo: str = "",
        *,
        load: float,
        baseline: Balance | None = None,
        is_limited: bool = False,
        seed: int = _SEEDS[0],
    ) -> SimulationReport:
        """With everything on, or a baseline: that way of balancing without admission, `is_limited` by Gradient2."""
        key = (trace.name, fleet, slo, load, baseline, is_limited, seed)
        if key not in self._reports:
            [parsed] = parse_fleets(fleet)
            asked = StudyOptions(
                parse_slo(slo) if slo else None,
                seed=seed,
                load=load,
                balance=baseline,
                admission="none" if baseline is not None else "slo",
            )
            registry = limited_registry() if is_limited else None
            with self._progress(f"{trace.name}, {fleet}, {baseline or 'admission'}") as progress:
                result = simulate(self._policy, parsed, trace, asked, progress, registry=registry)
            self._reports[key] = result.report
        return self._reports[key]


def in_slo(runs: Runs) -> Iterator[PolicyFigure]:
    """A load that the fleet can just carry: nearly everything in time, and prompts where they are cached."""
    for fleet, least in (("h200-8b:8", 0.84), ("h200-8b-host:8", 0.89)):
        reports = [runs.report(runs.trace(MOONCAKE), fleet, load=0.95, seed=seed) for seed in _SEEDS]
        hits = [report.prefix_hit / (report.prefix_hit_shared or math.nan) for report in reports]
        if fleet == "h200-8b:8":
            share = fmean(report.slo_share for report in reports)
            yield _at_least("Mooncake conversation, load 0.95, 8 replicas: in SLO", share, 0.995, ".1%")
        tier = ", host tier" if "host" in fleet else ""
        note = f"mean of {', '.join(f'{hit:.1%}' for hit in hits)}; one cache has {reports[0].prefix_hit_shared:.1%}"
        yield _at_least(f"prefix hits beside one shared cache{tier}", fmean(hits), least, ".1%", note)


def goodput(runs: Runs) -> Iterator[PolicyFigure]:
    """Half as much again as the fleet can do: what is answered in time, beside letting everything in, and Gradient2."""
    for case in OVERLOADS:
        run = partial(runs.report, runs.trace(case.trace), case.fleet, case.slo, load=_LOAD)
        ours = run()
        note = f"of {ours.offered_rps:.1f} offered, load {_LOAD}"
        yield _at_least(f"goodput at overload, req/s: {case.title}", ours.goodput_rps, case.least_rps, ".1f", note)
        fifo: dict[str, float] = {way: run(baseline=way).goodput_rps for way in _BASELINES}
        limited: dict[str, float] = {way: run(baseline=way, is_limited=True).goodput_rps for way in _BASELINES}
        best_rps = max(*fifo.values(), *limited.values())
        beside = f"FIFO: {_listed(fifo)}; Gradient2: {_listed(limited)}"
        ratio = ours.goodput_rps / best_rps if best_rps else float("inf")
        yield _at_least("- times the best of FIFO and Gradient2", ratio, _BEST_BY, ".2f", beside)
        yield _at_least("- in SLO of those admitted", ours.admitted_slo_share, _ADMITTED, ".1%")


def hog(runs: Runs) -> Iterator[PolicyFigure]:
    """One client sends half of everything at an overload: the others do not notice."""
    report = runs.report(runs.hog(), "h200-8b:1", _FLAT, load=_LOAD)
    title = f"one client sends half, {len(report.clients) - 1} others, 1.5 x, {report.span_s:.0f} s"
    yield _at_least(f"{title}: Jain", report.jain, 0.99, ".3f", f"in SLO {report.slo_share:.1%}")
    yield _at_least("- lighter half of the clients in SLO", lighter_half(report.clients), 0.98, ".1%")


def stragglers(runs: Runs) -> Iterator[PolicyFigure]:
    """Two of eight replicas at half speed, of which nobody is told."""
    report = runs.report(runs.trace(MOONCAKE), "h200-8b:6,h200-8b@0.5:2", load=0.62)
    yield _at_least("2 of 8 replicas at half speed, load 0.62: in SLO", report.slo_share, 0.995, ".1%")


def speed(runs: Runs) -> Iterator[PolicyFigure]:
    """Requests of a minute that are simulated with everything on; depends on the machine."""
    for name, fleet, slo in ((MOONCAKE, "h200-8b:8", ""), (CONVERSATION, "h200-8b:4", _FLAT)):
        report = runs.report(runs.trace(name), fleet, slo, load=_LOAD)
        rate = report.requests / report.wall_s * 60
        yield PolicyFigure(
            f"simulated with admission, a minute of one core: {name}",
            f">= {_SPEED_PER_MINUTE:,}",
            f"{rate:,.0f}",
            None,
            "a time: it depends on the machine",
        )


def lighter_half(clients: Sequence[ClientReport]) -> float:
    """The share in SLO of all requests of those who have sent least; `clients` are in the order of a report."""
    lighter = clients[len(clients) // 2 :]
    return sum(client.slo_share * client.requests for client in lighter) / sum(client.requests for client in lighter)


FIGURES: Mapping[str, Callable[[Runs], Iterator[PolicyFigure]]] = {
    "in_slo": in_slo,
    "goodput": goodput,
    "hog": hog,
    "stragglers": stragglers,
    "speed": speed,
}


def _at_least(figure: str, value: float, least: float, form: str, note: str = "") -> PolicyFigure:
    return PolicyFigure(figure, f">= {least:{form}}", f"{value:{form}}", value >= least, note)


def _listed(rates: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {rate:.1f}" for name, rate in rates.items())
