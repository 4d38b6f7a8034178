"""What `slipstream explain` says of a route that chooses: each way of a call, what it would cost, what decides."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from backends.protocol import Call
from policies.pool.load.demand import read_demand
from policies.schema import Policy, RouteBackend, RoutePolicy
from policies.speculation.auto.settings import AutoPolicy
from policies.speculation.draft import prompt_of

_OUTPUT_TOKENS = 256
"""Of an answer, before any was seen."""


def describe_ways(route: RoutePolicy, policy: Policy, call: Call) -> str:
    """The ways that the call may take, the cheapest first; empty for a route that does not choose.

    Nothing is known here of how fast they are: that is learned while calls come.
    """
    auto = route.speculative
    if not isinstance(auto, AutoPolicy):
        return ""
    parts: list[tuple[str, Sequence[RouteBackend]]] = [("target", route.backends)]
    if auto.draft is not None and route.draft is not None:
        what = "draft, if little enough is lost" if prompt_of(call) is not None else "no draft for such a call, else"
        parts.append((what, (route.draft,)))
    parts += [(other.name, other.backends) for other in policy.routes if other.name in auto.elsewhere]
    tokens = read_demand(call).tokens
    ways = [(_cost(policy, backends, tokens), name) for name, backends in parts]
    ways.sort(key=lambda way: (way[0] is None, way[0] or 0.0))
    told = ", ".join(f"{name} {'unknown' if cost is None else f'{cost * 1e-12:.6f} USD'}" for cost, name in ways)
    return f"of about {tokens} tokens and {_OUTPUT_TOKENS} to answer: {told}; the cheapest in time is taken"


def _cost(policy: Policy, backends: Iterable[RouteBackend], tokens: int) -> float | None:
    """Pico-dollars at the dearest; None where a price is that of a list, or missing."""
    prices = [policy.price_of(part) for part in backends]
    known = [price.expected(tokens, tokens, _OUTPUT_TOKENS) for price in prices if price is not None]
    return max(known) if len(known) == len(prices) else None
