"""First tokens as a replay had them, beside those of the access log that it replayed."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gateway.simulate.report import percentile, written
from gateway.simulate.run import ReplayedRequest, RequestFate

ALL = "all"


class FirstTokenComparison(msgspec.Struct, frozen=True, kw_only=True):
    """First tokens of one backend, or of all: of the log's requests there, and of those that the replay sent there.

    Ratios are simulated beside logged. None where one of them has none.
    """

    backend: str
    logged_requests: int
    simulated_requests: int
    logged_ttft_p50_s: float | None
    simulated_ttft_p50_s: float | None
    ttft_p50_ratio: float | None
    logged_ttft_p99_s: float | None
    simulated_ttft_p99_s: float | None
    ttft_p99_ratio: float | None


def compare(outcomes: Sequence[ReplayedRequest], since_s: float) -> list[FirstTokenComparison]:
    """Everything together, then backend by backend; of streams that came after the first `since_s` of the log."""
    logged: dict[str, list[float]] = {ALL: []}
    simulated: dict[str, list[float]] = {ALL: []}
    for outcome in outcomes:
        said = outcome.request.logged
        if said is None or said.first_token_s is None or outcome.request.at_s < since_s:
            continue
        for name in (ALL, said.backend):
            logged.setdefault(name, []).append(said.first_token_s)
        if outcome.fate is RequestFate.ANSWERED:
            for name in (ALL, outcome.backend):
                simulated.setdefault(name, []).append(outcome.first_token_s)
    names = [ALL, *sorted({*logged, *simulated} - {ALL})]
    return [_compared(name, sorted(logged.get(name, ())), sorted(simulated.get(name, ()))) for name in names]


def compared_rows(compared: Sequence[FirstTokenComparison]) -> list[list[str]]:
    """As a table."""
    head = ["backend", "requests", "simulated"]
    head += ["first token, median", "simulated", "ratio", "99 of 100", "simulated", "ratio"]
    rows = [
        [
            each.backend,
            str(each.logged_requests),
            str(each.simulated_requests),
            written(each.logged_ttft_p50_s, ".3f s"),
            written(each.simulated_ttft_p50_s, ".3f s"),
            written(each.ttft_p50_ratio, ".2f"),
            written(each.logged_ttft_p99_s, ".3f s"),
            written(each.simulated_ttft_p99_s, ".3f s"),
            written(each.ttft_p99_ratio, ".2f"),
        ]
        for each in compared
    ]
    return [head, *rows]


def _compared(name: str, logged: Sequence[float], simulated: Sequence[float]) -> FirstTokenComparison:
    logged_p50_s, simulated_p50_s = percentile(logged, 0.5), percentile(simulated, 0.5)
    logged_p99_s, simulated_p99_s = percentile(logged, 0.99), percentile(simulated, 0.99)
    return FirstTokenComparison(
        backend=name,
        logged_requests=len(logged),
        simulated_requests=len(simulated),
        logged_ttft_p50_s=logged_p50_s,
        simulated_ttft_p50_s=simulated_p50_s,
        ttft_p50_ratio=_ratio(simulated_p50_s, logged_p50_s),
        logged_ttft_p99_s=logged_p99_s,
        simulated_ttft_p99_s=simulated_p99_s,
        ttft_p99_ratio=_ratio(simulated_p99_s, logged_p99_s),
    )


def _ratio(simulated_s: float | None, logged_s: float | None) -> float | None:
    return simulated_s / logged_s if simulated_s is not None and logged_s else None
