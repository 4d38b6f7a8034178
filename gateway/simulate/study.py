"""From what a user asks for to simulations: which policy meets which fleet at which rate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from backends.errors import ConfigurationError
from backends.registry import Registry
from backends.simulation.simulated import SimulatedConfig
from gateway.simulate.capacity import backlog_rps, shared_prefix_hit
from gateway.simulate.fit import fit_backends
from gateway.simulate.replayed import FirstTokenComparison, compare
from gateway.simulate.report import SimulationReport, SimulationSetting, make_report
from gateway.simulate.run import Progress, ReplayedRequest, maker_of, replay, routes_of
from gateway.simulate.simulated_fleet import AdmissionChoice, SimulatedFleet, refit, replicas_of, with_fitted
from gateway.simulate.slo import check_slo
from gateway.simulate.traces import Trace
from policies.admission.settings import SloPolicy
from policies.policy_file.load import LoadedPolicy
from policies.pool.balance.settings import Balance

CURVE_SHARES = (0.9, 0.95, 0.99)
"""Shares in SLO for which the smallest fleet is looked up."""


@dataclass(frozen=True, slots=True)
class StudyOptions:
    """What holds for each simulation of a study.

    `slo`, `balance` and `admission` take the place of what the policy says, `fitted` of its backends. Of `load` (times
    what the fleet can do at most) and `rate` (requests a second) one is None or both are; then the trace keeps its own
    pace.
    """

    slo: SloPolicy | None = None
    seed: int = 0
    load: float | None = None
    rate: float | None = None
    balance: Balance | None = None
    admission: AdmissionChoice | None = None
    model: str = ""
    replica_price: float | None = None
    fitted: Mapping[str, SimulatedConfig] | None = None


@dataclass(frozen=True, slots=True)
class StudyResult:
    """One simulation of a study: its figures, what they come from, and how close it came to what it replayed."""

    report: SimulationReport
    outcomes: Sequence[ReplayedRequest]
    slo: SloPolicy
    fitted: Mapping[str, SimulatedConfig] | None = None
    compared: Sequence[FirstTokenComparison] = ()


def simulate(
    loaded: LoadedPolicy,
    fleet: SimulatedFleet | None,
    trace: Trace,
    asked: StudyOptions,
    progress: Progress,
    *,
    registry: Registry | None = None,
) -> StudyResult:
    """One policy on one fleet; without a fleet on the policy's own simulated backends. `registry` is as in `replay`.

    Raises: ConfigurationError for what cannot be simulated or met.
    """
    if asked.fitted is not None:
        used = routes_of(loaded, trace, maker_of(loaded, asked.model))
        loaded = with_fitted(loaded, asked.fitted, used)
    refitted = refit(loaded, fleet, asked.balance, slo=asked.slo, admission=asked.admission)
    replicas = replicas_of(refitted)
    # The first route's stands for all, where they differ.
    slo = next(route.slo for route in refitted.policy.routes if route.slo is not None)
    check_slo(slo, replicas, trace)
    capacity_rps = backlog_rps(replicas, trace)
    stretch = _stretch(trace, asked, capacity_rps)
    result = replay(
        refitted, trace, stretch=stretch, seed=asked.seed, model=asked.model, registry=registry, progress=progress
    )
    balances = dict.fromkeys(route.balance for route in refitted.policy.routes if not route.match.internal)
    setting = SimulationSetting(
        trace=trace.name,
        policy=str(loaded.path),
        fleet=fleet.text if fleet is not None else ",".join(loaded.backends),
        replicas=len(replicas),
        balance=",".join(balances),
        seed=asked.seed,
        slo=slo,
        span_s=trace.span_s * stretch,
        capacity_rps=capacity_rps,
        prefix_hit_shared=shared_prefix_hit(replicas, trace),
        replica_price=asked.replica_price,
    )
    return StudyResult(make_report(setting, result.outcomes, result.wall_s), result.outcomes, slo, asked.fitted)


def compare_with_log(loaded: LoadedPolicy, log: Trace, asked: StudyOptions, progress: Progress) -> StudyResult:
    """Replay an access log on replicas that are fitted to its first half, and compare its second half.

    Raises: ConfigurationError for what is no access log, or shows too little.
    """
    answered = log_of(log)
    middle = answered.requests[len(answered.requests) // 2]
    fitted = fit_backends([request for request in answered.requests if request.at_s < middle.at_s])
    result = simulate(loaded, None, answered, replace(asked, fitted=fitted), progress)
    return replace(result, compared=compare(result.outcomes, middle.at_s))


def log_of(trace: Trace) -> Trace:
    """What backends have answered of an access log.

    Raises: ConfigurationError where it is another trace, or nothing is left.
    """
    requests = tuple(request for request in trace.requests if request.logged is not None)
    if not requests:
        raise ConfigurationError(f"{trace.name}: only an access log with answers of backends can be replayed or fitted")
    return replace(trace, requests=requests)


def smallest_fleets(reports: Sequence[SimulationReport]) -> dict[str, int | None]:
    """For some shares in SLO the smallest number of replicas from which on it is reached; None where none does."""
    ordered = sorted(reports, key=lambda report: report.replicas, reverse=True)
    found: dict[str, int | None] = {}
    for share in CURVE_SHARES:
        smallest = None
        for report in ordered:
            if report.slo_share < share:
                break
            smallest = report.replicas
        found[f"{share:g}"] = smallest
    return found


def _stretch(trace: Trace, asked: StudyOptions, capacity_rps: float) -> float:
    """What the trace's moments are multiplied by."""
    rate = asked.rate if asked.load is None else asked.load * capacity_rps
    if rate is None:
        return 1.0
    if not trace.span_s:
        raise ConfigurationError(f"{trace.name}: all requests come at the same moment, so there is no rate to change")
    return len(trace.requests) / trace.span_s / rate
