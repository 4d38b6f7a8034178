"""What balancing would make of a call, as far as that can be said without asking anybody: for `slipstream explain`.

Knows the policy, the call, and what a gateway has written down of its backends; not what they have in hand.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from backends.clock import SystemClock
from backends.operations import BY_PATH, Operation
from backends.prompts.rendezvous import rendezvous
from backends.protocol import Call, Facts
from policies.pool.attempts.patience import CEILING_S, FLOOR_S
from policies.pool.attempts.settings import RetryOn
from policies.pool.load.demand import Demand, read_demand
from policies.pool.load.fleet import STATE_FILE, read_state, replica_name
from policies.pool.load.replica import Replica
from policies.pool.onward import onward_of
from policies.pool.prompts.prefix_index import PrefixIndex
from policies.prices.price import PICO_PER_DOLLAR, Price
from policies.schema import Policy, RouteBackend, RoutePolicy

_RULES = {
    "predicted_cost": "the least of predicted seconds to the first token + {eta:g} x seconds to compute what is not "
    "cached + {gamma:g} x slower streams; the fewest prompt tokens while a backend is not known",
    "least_tokens": "the fewest prompt tokens ahead",
    "least_request": "the fewest calls in flight",
    "p2c": "two by chance, and of these the one with fewer calls in flight",
    "round_robin": "in turn",
    "consistent_hash": "the first of this prompt's own order that has no more than 1.25 times its share in flight",
    "weighted": "in turn, by weight",
    "latency": "the shortest predicted answer; the fewest calls in flight while a backend is not known",
    "cost": "the lowest price; among equals the fewest prompt tokens ahead",
}


@dataclass(frozen=True, slots=True)
class Reason:
    """What speaks for one backend."""

    part: RouteBackend
    why: str


def rule(route: RoutePolicy) -> str:
    """How a route chooses among backends of one priority, in words."""
    return _RULES[route.balance].format(eta=route.routing.eta, gamma=route.routing.gamma)


def retries(route: RoutePolicy) -> str:
    """What a route asks again, and how long it waits for who is silent, in words."""
    num_members = sum(part.weight > 0 for part in route.backends)
    onward = onward_of(route.retry, num_members, route.fallbacks.on if route.fallbacks is not None else ())
    reasons = ", ".join(reason for reason in get_args(RetryOn) if reason in onward.retry_on)
    said = f"retries: {route.retry.attempts} on {reasons}" if reasons else "no retries"
    if route.timeouts.first_token is not None or not onward.leaves_the_silent:
        return said
    return f"{said}; silence goes on after {FLOOR_S:g}s to {CEILING_S:g}s"


def as_call(path: str, body: Mapping[str, Any], tenant: str) -> Call:
    """The call that a request with that body makes, as balancing sees it. `path` is below the API's root."""
    return Call(
        operation=BY_PATH.get(path, Operation.PASSTHROUGH),
        path=path,
        raw=json.dumps(body).encode(),
        body=body,
        model="",
        deadline=0.0,
        facts=Facts(),
        tenant=tenant,
    )


def reasons(route: RoutePolicy, call: Call, policy: Policy) -> list[Reason]:
    """What is known of each backend in rotation, by priority. Empty where they only take turns."""
    if route.balance in ("weighted", "round_robin"):
        return []
    parts = sorted((part for part in route.backends if part.weight), key=lambda part: part.priority)
    replicas = _replicas(route, parts, policy.stores.state)
    demand = read_demand(call)
    if route.balance == "consistent_hash":
        places = _places(parts, replicas, route, demand)
        return [Reason(part, f"number {places[order]} for this prompt") for order, part in enumerate(parts)]
    return [
        Reason(part, _why(route, policy.price_of(part), replica, demand))
        for part, replica in zip(parts, replicas, strict=True)
    ]


def _replicas(route: RoutePolicy, parts: list[RouteBackend], state_folder: str | None) -> list[Replica]:
    saved = read_state(Path(state_folder, STATE_FILE)) if state_folder is not None else {}
    index = PrefixIndex()
    replicas = []
    for part in parts:
        replica = Replica(replica_name(part), route.routing.cache_tokens, index, SystemClock())
        if replica.name in saved:
            # Where it is damaged, whoever serves says so in its log and learns anew.
            with suppress(ValueError):
                replica.model.load(saved[replica.name])
        replicas.append(replica)
    return replicas


def _places(parts: list[RouteBackend], replicas: list[Replica], route: RoutePolicy, demand: Demand) -> list[int]:
    """Each part's place, from 1, among those of its priority."""
    score = rendezvous(demand.key)
    places = [0] * len(parts)
    for priority in {part.priority for part in parts}:
        group = [order for order, part in enumerate(parts) if part.priority == priority]
        group.sort(key=lambda order: score(replicas[order].name, parts[order].weight), reverse=True)
        for place, order in enumerate(group, start=1):
            places[order] = place
    return places


def _why(route: RoutePolicy, price: Price | None, replica: Replica, demand: Demand) -> str:
    model = replica.model
    if route.balance == "cost" and price is not None:
        amount = price.expected(demand.tokens, demand.tokens, model.output_tokens)
        dollars = amount / PICO_PER_DOLLAR
        return f"{dollars:.3g} for {demand.tokens} prompt tokens and an answer of {model.output_tokens:.0f}"
    if route.balance not in ("predicted_cost", "latency"):
        return f"{demand.tokens} prompt tokens more"
    if model.doubt is not None:
        return f"not known yet: {model.num_observations} first tokens seen; {demand.tokens} prompt tokens more"
    return (
        f"{replica.predict(demand.tokens, demand.tokens):.3g} s to the first token while idle, for {demand.tokens} "
        f"prompt tokens at {model.seconds_per_token * 1e6:.3g} us; typical error {100 * model.error:.0f} %, learned "
        f"from {model.num_observations}"
    )
