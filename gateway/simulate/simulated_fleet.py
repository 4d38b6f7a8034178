"""What stands in for a policy's backends in a simulation: replicas by profile, speed and number."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Literal, get_args

from backends.errors import ConfigurationError
from backends.simulation.simulated import SimulatedConfig
from gateway.simulate.fit import MIN_REQUESTS
from policies.admission.settings import AdmissionPolicy, SloPolicy
from policies.policy_file.load import LoadedPolicy
from policies.pool.balance.settings import Balance
from policies.schema import Policy, RouteBackend, RoutePolicy
from policies.speculation.auto.settings import AutoPolicy

PROFILES: Mapping[str, SimulatedConfig] = {
    "h200-8b": SimulatedConfig(),
    "h200-8b-host": SimulatedConfig(host_kv_tokens=4_000_000),
}
"""Kinds of replicas: an 8B model in bf16 on one H200, without and with a host tier for the prefix cache."""

DEFAULT_PROFILE = "h200-8b"
BALANCES = get_args(Balance)
AdmissionChoice = Literal["none", "slo"]
MAX_REPLICAS = 1024

_GROUP = re.compile(
    r"(?:(?P<profile>[a-z][a-z0-9-]*)(?:@(?P<speed>\d+(?:\.\d+)?))?:)?(?P<low>\d+)(?:\.\.(?P<high>\d+))?"
)


@dataclass(frozen=True, slots=True)
class SimulatedFleet:
    """Replicas by name, and how the user wrote them."""

    text: str
    members: Mapping[str, SimulatedConfig]


def parse_fleets(text: str) -> list[SimulatedFleet]:
    """`h200-8b:8`, `h200-8b:6,h200-8b@0.5:2` with two at half speed, `8`; `h200-8b:4..16` is thirteen fleets.

    Raises: ConfigurationError.
    """
    groups = []
    for part in text.split(","):
        match = _GROUP.fullmatch(part.strip())
        if match is None:
            raise ConfigurationError(
                f'fleet: "{part.strip()}" is not PROFILE[@SPEED]:NUMBER, as in {DEFAULT_PROFILE}:8'
            )
        groups.append(match)
    if len(groups) > 1 and any(group["high"] for group in groups):
        raise ConfigurationError(f'fleet: "{text}" mixes a range with other replicas; give the range alone')
    if len(groups) == 1 and groups[0]["high"]:
        group = groups[0]
        low, high = int(group["low"]), int(group["high"])
        if high < low:
            raise ConfigurationError(f'fleet: "{text}" ends below its beginning')
        return [_fleet([(group, size)]) for size in range(low, min(high, MAX_REPLICAS + 1) + 1)]
    return [_fleet([(group, int(group["low"])) for group in groups])]


def refit(
    loaded: LoadedPolicy,
    fleet: SimulatedFleet | None,
    balance: Balance | None,
    *,
    slo: SloPolicy | None = None,
    admission: AdmissionChoice | None = None,
) -> LoadedPolicy:
    """The policy with the fleet behind each of its routes, or with its own backends where all are simulated.

    The fleet's room for cached prefixes takes the place of `routing.cache_tokens`. What needs the world is left out:
    Redis and folders (memory stands in), and the semantic cache, to which made-up prompts mean nothing. `balance`,
    `slo` and `admission` override every route's; a route without limits gets the default ones.

    Raises: ConfigurationError where a backend of the policy cannot be simulated.
    """
    members = fleet.members if fleet is not None else {name: _own_replica(loaded, name) for name in loaded.backends}
    cheap = {
        name: ("simulated", settings.model_copy(update={"tokens_per_event": 0})) for name, settings in members.items()
    }
    routes = tuple(
        _refit_route(_with_slo(route, slo, admission), loaded.policy, fleet, balance) for route in loaded.policy.routes
    )
    stores = loaded.policy.stores.model_copy(update={"redis": None, "state": None})
    policy = loaded.policy.model_copy(update={"routes": routes, "stores": stores})
    return dataclasses.replace(loaded, policy=policy, backends=cheap)


def with_fitted(loaded: LoadedPolicy, fitted: Mapping[str, SimulatedConfig], routes: Collection[str]) -> LoadedPolicy:
    """The policy with backends that are as fast as a log has shown them; `routes` are those that will be used.

    Raises: ConfigurationError, naming a backend of these routes of which the log shows too little.
    """
    for route in loaded.policy.routes:
        unknown = next((part.ref for part in route.backends if part.ref not in fitted), None)
        if unknown is not None and route.name in routes:
            raise ConfigurationError(
                f"{loaded.path}: backends.{unknown}: the log shows too little of it; {MIN_REQUESTS} streams tell how "
                "fast a backend is"
            )
    stand_ins = {name: ("simulated", fitted.get(name, PROFILES[DEFAULT_PROFILE])) for name in loaded.backends}
    return dataclasses.replace(loaded, backends=stand_ins)


def replicas_of(loaded: LoadedPolicy) -> list[SimulatedConfig]:
    """The replicas of a refitted policy."""
    return [settings for _, settings in loaded.backends.values() if isinstance(settings, SimulatedConfig)]


def _fleet(groups: list[tuple[re.Match[str], int]]) -> SimulatedFleet:
    members: dict[str, SimulatedConfig] = {}
    texts = []
    for group, size in groups:
        profile = group["profile"] or DEFAULT_PROFILE
        if profile not in PROFILES:
            near = get_close_matches(profile, PROFILES, n=1)
            hint = f' Did you mean "{near[0]}"?' if near else ""
            raise ConfigurationError(f'fleet: unknown profile "{profile}".{hint} Known: {", ".join(PROFILES)}')
        speed = float(group["speed"] or 1)
        if not 0 < speed <= 1000:
            raise ConfigurationError(f"fleet: a speed is more than 0 and at most 1000, not {group['speed']}")
        settings = PROFILES[profile].model_copy(update={"speed": speed})
        for _ in range(size):
            members[f"{profile}-{len(members) + 1}"] = settings
            if len(members) > MAX_REPLICAS:
                raise ConfigurationError(f"fleet: at most {MAX_REPLICAS} replicas can be simulated")
        texts.append(f"{profile}{'@' + group['speed'] if group['speed'] else ''}:{size}")
    if not members:
        raise ConfigurationError("fleet: it has no replicas; give at least 1")
    return SimulatedFleet(",".join(texts), members)


def _own_replica(loaded: LoadedPolicy, name: str) -> SimulatedConfig:
    kind, settings = loaded.backends[name]
    if not isinstance(settings, SimulatedConfig):
        problem = loaded.document.problem(
            ("backends", name, "type"),
            f"a backend of type {kind} cannot be simulated; name replicas to stand in for it, as in "
            f"--fleet {DEFAULT_PROFILE}:8",
        )
        raise ConfigurationError(problem.text(str(loaded.path)))
    return settings


def _with_slo(route: RoutePolicy, slo: SloPolicy | None, admission: AdmissionChoice | None) -> RoutePolicy:
    gate = route.admission
    if admission is not None:
        gate = (gate or AdmissionPolicy()) if admission == "slo" else None
    return route.model_copy(update={"slo": slo or route.slo or SloPolicy(), "admission": gate})


def _refit_route(
    route: RoutePolicy, policy: Policy, fleet: SimulatedFleet | None, balance: Balance | None
) -> RoutePolicy:
    update: dict[str, Any] = {}
    if fleet is not None:
        price = next(filter(None, map(policy.price_settings, route.backends)), None)
        update["backends"] = tuple(RouteBackend(ref=name, price=price) for name in fleet.members)
        room = min(settings.kv_tokens + settings.host_kv_tokens for settings in fleet.members.values())
        update["routing"] = route.routing.model_copy(update={"cache_tokens": room})
    if balance is not None:
        update["routing"] = update.get("routing", route.routing).model_copy(update={"policy": balance})
    if isinstance(route.speculative, AutoPolicy):
        # Prompts are made up; the trace tells what a router would have said of them.
        update["speculative"] = route.speculative.model_copy(update={"calibration": None})
    if route.cache is not None:
        update["cache"] = route.cache.model_copy(update={"semantic": None})
    return route.model_copy(update=update)
