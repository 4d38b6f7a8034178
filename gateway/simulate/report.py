"""What a simulation has shown, as figures: one flat record for programs, columns side by side for people."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from gateway.simulate.run import ReplayedRequest, RequestFate
from policies.admission.settings import SloPolicy

_OUTPUT_WEIGHT = 2
"""What a token of an answer counts beside one of a prompt, where clients' service is compared."""


class ClientReport(msgspec.Struct, frozen=True):
    """One client of the trace. `served_share` is its service in SLO beside its max-min fair share, 0..1 and above."""

    client: str
    requests: int
    slo_share: float
    shed_share: float
    served_share: float


class SimulationReport(msgspec.Struct, frozen=True, kw_only=True):
    """One simulation. Shares are 0..1, of the requests offered where nothing else is said; rates are per second.

    A goodput is the rate of answers that met the SLO, over the time in which requests arrived. `capacity_rps` is load
    1: what the fleet does while requests are always waiting. `prefix_hit` is the share of prompt tokens that the
    replicas had cached, `prefix_hit_shared` what one cache of all their sizes would have had. `jain` is the index of
    fairness of the clients' `served_share`. `usd_per_1k` is what backends take by their prices, `quality` the right
    answers as a share of the large model's, where the trace has labels. None where it cannot be known.
    """

    trace: str
    policy: str
    fleet: str
    replicas: int
    balance: str
    seed: int
    slo: Mapping[str, float]
    requests: int
    span_s: float
    load: float
    capacity_rps: float
    offered_rps: float
    goodput_rps: float
    slo_share: float
    admitted_slo_share: float
    shed_share: float
    failed_share: float
    cache_hit_share: float
    prefix_hit: float
    prefix_hit_shared: float | None
    ttft_p50_s: float | None
    ttft_p90_s: float | None
    ttft_p99_s: float | None
    tpot_p50_ms: float | None
    tpot_p99_ms: float | None
    retries: int
    jain: float
    clients: Sequence[ClientReport]
    cost_per_1k: float | None
    usd_per_1k: float | None
    quality: float | None
    wall_s: float


@dataclass(frozen=True, slots=True)
class SimulationSetting:
    """What was simulated; becomes part of the report. `replica_price` is for one replica and hour."""

    trace: str
    policy: str
    fleet: str
    replicas: int
    balance: str
    seed: int
    slo: SloPolicy
    span_s: float
    capacity_rps: float
    prefix_hit_shared: float | None
    replica_price: float | None = None


def make_report(setting: SimulationSetting, outcomes: Sequence[ReplayedRequest], wall_s: float) -> SimulationReport:
    """The figures of one simulation; there is at least one outcome."""
    number = len(outcomes)
    answered = [outcome for outcome in outcomes if outcome.fate is RequestFate.ANSWERED]
    num_shed = sum(outcome.fate is RequestFate.SHED for outcome in outcomes)
    num_in_time = sum(is_in_time(outcome) for outcome in answered)
    # A trace of one moment has no span; its requests are then counted by the second that they took at least.
    span_s = setting.span_s or 1.0
    first_s = sorted(outcome.first_token_s for outcome in answered)
    gaps_ms = sorted(outcome.token_gap_s * 1e3 for outcome in answered if outcome.request.output_tokens > 1)
    clients = client_reports(outcomes)
    return SimulationReport(
        trace=setting.trace,
        policy=setting.policy,
        fleet=setting.fleet,
        replicas=setting.replicas,
        balance=setting.balance,
        seed=setting.seed,
        slo={f"{name}_s": limit for name, limit in setting.slo.model_dump().items() if limit is not None},
        requests=number,
        span_s=setting.span_s,
        load=number / span_s / setting.capacity_rps,
        capacity_rps=setting.capacity_rps,
        offered_rps=number / span_s,
        goodput_rps=num_in_time / span_s,
        slo_share=num_in_time / number,
        admitted_slo_share=num_in_time / (number - num_shed) if number > num_shed else 0.0,
        shed_share=num_shed / number,
        failed_share=(number - num_shed - len(answered)) / number,
        cache_hit_share=sum(outcome.is_cache_hit for outcome in outcomes) / number,
        prefix_hit=_prefix_hit(answered),
        prefix_hit_shared=setting.prefix_hit_shared,
        ttft_p50_s=percentile(first_s, 0.5),
        ttft_p90_s=percentile(first_s, 0.9),
        ttft_p99_s=percentile(first_s, 0.99),
        tpot_p50_ms=percentile(gaps_ms, 0.5),
        tpot_p99_ms=percentile(gaps_ms, 0.99),
        retries=sum(max(0, outcome.attempts - 1) for outcome in outcomes),
        jain=jain([client.served_share for client in clients]),
        clients=clients,
        cost_per_1k=_cost_per_1k(setting, outcomes, len(answered)),
        usd_per_1k=_usd_per_1k(outcomes, len(answered)),
        quality=quality_of(answered),
        wall_s=wall_s,
    )


def is_in_time(outcome: ReplayedRequest) -> bool:
    """Whether a request was answered within its route's limits."""
    return outcome.fate is RequestFate.ANSWERED and outcome.slo.is_met(
        outcome.request.prompt_tokens, outcome.first_token_s, outcome.token_gap_s, outcome.total_s
    )


def quality_of(answered: Sequence[ReplayedRequest]) -> float | None:
    """Right answers as a share of those that the large model gives to the same prompts; None where nobody knows."""
    labelled = [(outcome.is_drafts, labels) for outcome in answered if (labels := outcome.request.labels) is not None]
    strong = sum(labels.strong for _, labels in labelled)
    return (
        sum(labels.weak if is_drafts else labels.strong for is_drafts, labels in labelled) / strong if strong else None
    )


def percentile(ordered: Sequence[float], share: float) -> float | None:
    """The smallest value that this share of them does not exceed; None of none."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else None


def jain(shares: Sequence[float]) -> float:
    """Jain's index of fairness: 1 where all have the same, 1/n where one has everything, 0 where nobody has."""
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else 0.0


def max_min_shares(demands: Sequence[float], total: float) -> list[float]:
    """How `total` is divided fairly: nobody gets more than asked for, and those who want more get all the same."""
    shares = [0.0] * len(demands)
    left = total
    ascending = sorted(range(len(demands)), key=demands.__getitem__)
    for place, index in enumerate(ascending):
        shares[index] = min(demands[index], left / (len(demands) - place))
        left -= shares[index]
    return shares


def client_reports(outcomes: Sequence[ReplayedRequest]) -> list[ClientReport]:
    """Each client, the one with the most requests first; all requests are one client's where the trace names none."""
    by_client: dict[str, list[ReplayedRequest]] = {}
    for outcome in outcomes:
        by_client.setdefault(outcome.request.client, []).append(outcome)
    names = sorted(by_client, key=lambda name: (-len(by_client[name]), name))
    demands = [sum(_work(outcome) for outcome in by_client[name]) for name in names]
    served = [sum(_work(outcome) for outcome in by_client[name] if is_in_time(outcome)) for name in names]
    fair = max_min_shares(demands, sum(served))
    return [
        ClientReport(
            client=name,
            requests=len(by_client[name]),
            slo_share=sum(is_in_time(outcome) for outcome in by_client[name]) / len(by_client[name]),
            shed_share=sum(outcome.fate is RequestFate.SHED for outcome in by_client[name]) / len(by_client[name]),
            served_share=has / due if due else 0.0,
        )
        for name, has, due in zip(names, served, fair, strict=True)
    ]


def as_fields(report: SimulationReport) -> dict[str, Any]:
    """The report for JSON."""
    fields: dict[str, Any] = msgspec.to_builtins(report)
    return fields


ROWS: Sequence[tuple[str, str, str]] = (
    ("policy", "policy", ""),
    ("fleet", "fleet", ""),
    ("balance", "balance", ""),
    ("load", "load", ".2f"),
    ("offered", "offered_rps", ".2f req/s"),
    ("goodput", "goodput_rps", ".2f req/s"),
    ("in SLO", "slo_share", ".1%"),
    ("of those admitted", "admitted_slo_share", ".1%"),
    ("shed", "shed_share", ".1%"),
    ("failed", "failed_share", ".1%"),
    ("first token, median", "ttft_p50_s", ".3f s"),
    ("99 of 100", "ttft_p99_s", ".3f s"),
    ("each further token, median", "tpot_p50_ms", ".1f ms"),
    ("99 of 100", "tpot_p99_ms", ".1f ms"),
    ("prompt tokens from caches", "prefix_hit", ".1%"),
    ("one shared cache", "prefix_hit_shared", ".1%"),
    ("answered from the gateway's cache", "cache_hit_share", ".1%"),
    ("fairness (Jain)", "jain", ".3f"),
    ("retries", "retries", ",d"),
    ("cost of 1,000 answers", "cost_per_1k", ".2f"),
    ("charged for 1,000 answers", "usd_per_1k", ".3f USD"),
    ("right answers, of the large model's", "quality", ".1%"),
    ("simulated in", "wall_s", ".1f s"),
)
"""A line of the table each: its name, the field, and how it is written."""


def figure_rows(reports: Sequence[SimulationReport]) -> list[list[str]]:
    """The figures as rows, a column for each report. Lines that nobody has anything to say in are left out."""
    rows = [["", *(str(place) for place in range(1, len(reports) + 1))]] if len(reports) > 1 else []
    for name, field, form in ROWS:
        values = [getattr(report, field) for report in reports]
        if any(value is not None for value in values):
            rows.append([name, *(written(value, form) for value in values)])
    return rows


def written(value: object, form: str) -> str:
    """A figure with its unit; "-" where there is none."""
    number, _, unit = form.partition(" ")
    return "-" if value is None else f"{format(value, number)}{' ' + unit if unit else ''}"


def _prefix_hit(answered: Sequence[ReplayedRequest]) -> float:
    asked = [outcome for outcome in answered if not outcome.is_cache_hit]
    total = sum(outcome.request.prompt_tokens for outcome in asked)
    return sum(outcome.cached_tokens for outcome in asked) / total if total else 0.0


def _work(outcome: ReplayedRequest) -> float:
    return outcome.request.prompt_tokens + _OUTPUT_WEIGHT * outcome.request.output_tokens


def _usd_per_1k(outcomes: Sequence[ReplayedRequest], num_answered: int) -> float | None:
    """What backends take by their prices, attempts that came to nothing included."""
    spent = sum(outcome.cost_usd for outcome in outcomes)
    return spent / num_answered * 1000 if spent and num_answered else None


def _cost_per_1k(setting: SimulationSetting, outcomes: Sequence[ReplayedRequest], num_answered: int) -> float | None:
    """Replicas are paid from the first arrival to the last answer."""
    if setting.replica_price is None or not num_answered:
        return None
    hours = max(outcome.arrived_at + outcome.total_s for outcome in outcomes) / 3600
    return setting.replica_price * setting.replicas * hours / num_answered * 1000
