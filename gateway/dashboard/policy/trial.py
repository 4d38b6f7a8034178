"""What one policy would have done with calls that have been, beside another one: their routes, times, and cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from backends.charges.usage import Usage
from backends.errors import ConfigurationError
from gateway.dashboard.policy.job import PastCall
from gateway.ledger.amounts import usd_text
from gateway.simulate.fit import fit_backends
from gateway.simulate.run import ReplayedRequest, maker_of, route_of
from gateway.simulate.study import StudyOptions, StudyResult, simulate
from gateway.simulate.traces import BLOCK_TOKENS, Logged, Trace, TraceRequest
from policies.matching.route_matcher import RouteMatcher
from policies.policy_file.load import LoadedPolicy
from policies.prices.price import Price

Say = Callable[..., None]
_REPEATS = ("hit", "joined")
_MOST_BLOCKS = 2**24
"""Of any prompt, so that none has those of another one."""
_FIGURES = (
    "goodput_rps",
    "cache_hit_share",
    "slo_share",
    "shed_share",
    "failed_share",
    "ttft_p50_s",
    "ttft_p99_s",
    "tpot_p50_ms",
)


def try_on(calls: Sequence[PastCall], old: LoadedPolicy, new: LoadedPolicy, say: Say) -> None:
    """Say which routes would take them, and then what both policies would have made of those that both take."""
    requests = _requests(calls)
    taken = [_routes(loaded, requests) for loaded in (old, new)]
    moves = Counter(zip(*taken, strict=True))
    say(moves=[{"from": old_route, "to": new_route, "calls": n} for (old_route, new_route), n in moves.most_common()])
    both = tuple(request for request, *routes in zip(requests, *taken, strict=True) if None not in routes)
    if not both:
        say(problem="No call is left that both policies take.")
        return
    trace = Trace("the ledger", "access log", both, len(requests) - len(both))
    say(step="finding out how fast the backends are")
    fitted = fit_backends(requests)
    results = []
    for number, (loaded, name) in enumerate(((old, "the policy in force"), (new, "the other policy"))):
        say(step=f"trying {name}")

        def progress(done: int, total: int, number: int = number) -> None:
            say(progress=(number + done / total) / 2)

        try:
            result = simulate(loaded, None, trace, StudyOptions(fitted=fitted), progress)
        except ConfigurationError as error:
            say(problem=error.message.replace(f"{loaded.path}: ", ""))
            return
        results.append(_figures(loaded, result))
    span_s = both[-1].at_s
    say(simulated={"calls": len(both), "left_out": len(requests) - len(both), "span_s": span_s, "results": results})


def try_loads(calls: Sequence[PastCall], loaded: LoadedPolicy, loads: Sequence[float], say: Say) -> None:
    """Say what a policy would make of those that it takes, if they came so many times as fast."""
    requests = _requests(calls)
    routes = _routes(loaded, requests)
    taken = tuple(request for request, route in zip(requests, routes, strict=True) if route is not None)
    if len(taken) < 2 or taken[-1].at_s <= taken[0].at_s:
        say(problem="There are too few calls that a backend has answered and the policy takes.")
        return
    trace = Trace("the ledger", "access log", taken, len(requests) - len(taken))
    say(step="finding out how fast the backends are")
    fitted = fit_backends(requests)
    results: list[dict[str, Any]] = []
    for number, load in enumerate(loads):
        say(step=f"{load:g} times the traffic")

        def progress(done: int, total: int, number: int = number) -> None:
            say(progress=(number + done / total) / len(loads))

        rate = load * len(taken) / trace.span_s
        try:
            result = simulate(loaded, None, trace, StudyOptions(fitted=fitted, rate=rate), progress)
        except ConfigurationError as error:
            say(problem=error.message.replace(f"{loaded.path}: ", ""))
            return
        results.append({"load": load, "rate_rps": rate, **_figures(loaded, result)})
        say(loads={"calls": len(taken), "left_out": len(requests) - len(taken), "results": results})


def _requests(calls: Sequence[PastCall]) -> list[TraceRequest]:
    calls = sorted(calls, key=lambda call: call.at_us)
    asked = _repeated(calls)
    return [
        TraceRequest(
            (call.at_us - calls[0].at_us) / 1e6,
            call.input_tokens,
            call.output_tokens,
            number,
            asked.get(number, ()),
            client=call.key or call.tenant,
            model=call.model,
            logged=None
            if call.cache in _REPEATS
            else Logged(
                backend=call.backend,
                attempts=1,
                cached_tokens=min(call.cached_tokens, call.input_tokens),
                waited_s=(call.queue_us or 0) / 1e6,
                first_token_s=None if call.ttft_us is None else call.ttft_us / 1e6,
                total_s=call.total_us / 1e6,
            ),
        )
        for number, call in enumerate(calls, start=1)
    ]


def _repeated(calls: Sequence[PastCall]) -> dict[int, tuple[int, ...]]:
    """Blocks of a prompt, the same for those calls that asked the same, by their numbers. The ledger has no texts, but
    what the exact cache has answered was asked before, in this tenant, of this model, and answered in as many tokens.
    """
    number_of: dict[tuple[str, str, int, int], int] = {}
    found: dict[int, tuple[int, ...]] = {}
    for number, call in enumerate(calls, start=1):
        same = call.tenant, call.model, call.input_tokens, call.output_tokens
        if call.cache in _REPEATS and same in number_of:
            first = number_of[same]
            blocks = -(-call.input_tokens // BLOCK_TOKENS)
            found[first] = found[number] = tuple(range(first * _MOST_BLOCKS, first * _MOST_BLOCKS + blocks))
        else:
            number_of[same] = number
    return found


def _routes(loaded: LoadedPolicy, requests: Sequence[TraceRequest]) -> list[str | None]:
    matcher, maker = RouteMatcher(loaded.policy.routes), maker_of(loaded, "")
    known: dict[tuple[str, str], str | None] = {}
    for request in requests:
        who = (request.model, request.client)
        if who not in known:
            known[who] = route_of(matcher, maker, request)
    return [known[request.model, request.client] for request in requests]


def _figures(loaded: LoadedPolicy, result: StudyResult) -> dict[str, Any]:
    prices = {part.ref: loaded.policy.price_of(part) for route in loaded.policy.routes for part in route.backends}
    costs = [_cost(outcome, prices.get(outcome.backend)) for outcome in result.outcomes if not outcome.is_cache_hit]
    known = [cost for cost in costs if cost is not None]
    by_backend = Counter(outcome.backend for outcome in result.outcomes if outcome.backend)
    return {
        **{name: getattr(result.report, name) for name in _FIGURES},
        "cost": usd_text(sum(known)),
        "unknown": len(costs) - len(known),
        "backends": dict(by_backend.most_common(20)),
    }


def _cost(outcome: ReplayedRequest, price: Price | None) -> int | None:
    """In pico-dollars, by the policy's own prices; a backend that has another one on another route costs the last."""
    if price is None:
        return None
    request = outcome.request
    return price.amount(Usage(request.prompt_tokens, request.output_tokens, outcome.cached_tokens))
