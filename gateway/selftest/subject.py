"""The copy of a policy that the checks run against: it reaches nothing but this machine and contains no real secret.

Backends are replaced by lying upstreams, secrets by canaries and folders by temporary ones; a Redis is removed. Time
limits are shortened to seconds, and circuit breakers open late, so that the failures of one check do not affect the
next. Checks of time limits and breakers set their own.
"""

from __future__ import annotations

import copy
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backends.config import format_duration
from policies.matching.globs import allows
from policies.matching.route_matcher import RouteMatcher
from policies.policy_file.load import LoadedPolicy
from policies.pool.attempts.settings import TimeoutsPolicy
from policies.schema import RoutePolicy

CANARY = "canary"
"""A word that every secret of the copy contains."""

_KEPT_TYPES = frozenset({"scripted", "simulated"})
_LIMITS_S = {"connect": 2.0, "first_token": 10.0, "stream_idle": 10.0, "total": 30.0}
_BREAKER = {"consecutive_failures": 1000, "error_rate": 1.0}
_CHAT = "/chat/completions"
_LEFT_OUT = ("preset", "kv_events", "transport", "health")
"""Settings of a backend that name other servers, or make the gateway call it without a request."""


class CannotTry(Exception):
    """The policy has nothing that the checks could test."""


@dataclass(frozen=True, slots=True)
class Key:
    """A key of the copy."""

    name: str
    secret: str
    tenant: str
    is_admin: bool
    priority: str


@dataclass(frozen=True, slots=True)
class ChatRoute:
    """A route for chats, and the request properties that select it."""

    index: int
    model: str
    headers: tuple[tuple[str, str], ...]
    keys: tuple[Key, ...]
    """The keys that may use it; () if the policy has no keys."""
    backends: tuple[str, ...]
    """Names of its lying upstreams."""
    route: RoutePolicy
    """Its section in the original policy."""

    @property
    def secret(self) -> str:
        """The secret of the first key; "" if there is none."""
        return self.keys[0].secret if self.keys else ""

    def tenants(self) -> tuple[Key, ...]:
        """The first key of each tenant."""
        first: dict[str, Key] = {}
        for key in self.keys:
            first.setdefault(key.tenant, key)
        return tuple(first.values())


@dataclass(frozen=True, slots=True)
class Subject:
    """A copied policy, whose backends have no addresses yet."""

    name: str
    policy: Mapping[str, Any]
    backends: tuple[str, ...]
    """Names of the backends that lying upstreams replace."""
    ways: tuple[ChatRoute, ...]
    """In the order of the file."""
    keys: tuple[Key, ...]
    canaries: tuple[str, ...]
    """Every secret."""
    notes: tuple[str, ...]
    """The differences from the original, for the report."""

    @property
    def way(self) -> ChatRoute:
        """The route that most checks use: preferably one with a cache, and with two servers."""
        return max(self.ways, key=lambda way: (_caches(way.route), len(way.backends) > 1, -way.index))

    def caching_way(self) -> ChatRoute | None:
        """The first route with an exact cache."""
        return next((way for way in self.ways if _caches(way.route)), None)

    def admitting_way(self) -> ChatRoute | None:
        """The first route with admission."""
        return next((way for way in self.ways if way.route.admission is not None), None)

    def at(self, urls: Mapping[str, str], way: ChatRoute | None = None, **sections: Any) -> dict[str, Any]:
        """The policy with its upstreams' addresses; `sections` replace those of one route, None removes one."""
        made = copy.deepcopy(dict(self.policy))
        for name, url in urls.items():
            made["backends"][name]["base_url"] = url
        route = made["routes"][way.index] if way is not None else {}
        for name, section in sections.items():
            route.pop(name, None)
            if section is not None:
                route[name] = section
        return made


def copy_of(loaded: LoadedPolicy, folder: Path) -> Subject:
    """A copy of a policy; its secrets and stores are in `folder`. Raises: CannotTry."""
    notes: list[str] = []
    keeper = _Secrets(folder)
    data: dict[str, Any] = keeper.hide(loaded.document.data)
    names = _replace_backends(data, loaded, notes)
    _replace_stores(data, folder, notes)
    _leave_out(data, notes)
    for route, section in zip(loaded.policy.routes, data["routes"], strict=True):
        section["timeouts"] = _shortened(route.timeouts)
        section["circuit_breaker"] = dict(_BREAKER)
    keys = tuple(
        Key(key.name, keeper.value_at(section["key"]), key.tenant, key.admin, key.priority)
        for key, section in zip(loaded.policy.keys, data.get("keys") or (), strict=True)
    )
    ways = tuple(way for index in range(len(data["routes"])) if (way := _way(index, loaded, names, keys)) is not None)
    if not ways:
        raise CannotTry("no route of this policy takes a chat and asks a server: there is nothing to try")
    return Subject(loaded.path.name, data, tuple(names), ways, keys, keeper.values, tuple(notes))


class _Secrets:
    """Canaries in files; equal references get the same canary."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._places: dict[str, tuple[str, str]] = {}

    @property
    def values(self) -> tuple[str, ...]:
        """Every canary."""
        return tuple(value for _, value in self._places.values())

    def value_at(self, place: str) -> str:
        """The canary behind a replaced reference."""
        return next(value for known, value in self._places.values() if known == place)

    def hide(self, value: Any) -> Any:
        """A copy of a document with every reference to a secret replaced by one to a canary."""
        if isinstance(value, dict):
            return {key: self.hide(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.hide(item) for item in value]
        if isinstance(value, str) and value.startswith(("env:", "file:")):
            return self._replace(value)
        return value

    def _replace(self, reference: str) -> str:
        if reference not in self._places:
            value = f"sk-{CANARY}-{secrets.token_hex(16)}"
            path = self._folder / f"secret-{len(self._places)}"
            path.write_text(value, encoding="utf-8")
            path.chmod(0o600)
            self._places[reference] = (f"file:{path}", value)
        return self._places[reference][0]


def _replace_backends(data: dict[str, Any], loaded: LoadedPolicy, notes: list[str]) -> list[str]:
    """Replace each backend that calls a server or loads a model by one for a lying upstream; returns their names."""
    replaced = []
    for name, section in data["backends"].items():
        kind, _ = loaded.backends[name]
        if kind in _KEPT_TYPES:
            continue
        replaced.append(name)
        if len(section.get("api_keys") or ()) > 1:
            notes.append(f"of the keys of backend {name} the first one is tried")
            section["api_keys"] = section["api_keys"][:1]
        if kind == "openai":
            kept = {setting: value for setting, value in section.items() if setting not in _LEFT_OUT}
        else:
            kept = {"api_key": section["api_key"]} if "api_key" in section else {}
            notes.append(f"backend {name} of type {kind} is tried as one of type openai")
        data["backends"][name] = {**kept, "type": "openai", "base_url": "http://127.0.0.1:1/v1"}
    return replaced


def _replace_stores(data: dict[str, Any], folder: Path, notes: list[str]) -> None:
    if isinstance(data.get("ledger"), dict):
        data["ledger"] = {"url": f"sqlite:///{folder / 'ledger.sqlite3'}"}
    stores = data.get("stores")
    if not isinstance(stores, dict):
        return
    if stores.pop("redis", None) is not None:
        notes.append("stores.redis is left out; fault 10 tries a Redis of its own")
    if stores.pop("keys", None) is not None:
        notes.append("stores.keys is left out; only keys of the file are tried")
    for name in ("batches", "semantic"):
        if isinstance(stores.get(name), dict) and "folder" in stores[name]:
            stores[name]["folder"] = str(folder / name)
    if "state" in stores:
        stores["state"] = str(folder / "state")


def _leave_out(data: dict[str, Any], notes: list[str]) -> None:
    """What decides by what it has seen before, and what asks or waits more often than a check can count."""
    keys, backends, routes = data.get("keys") or (), data["backends"].values(), data["routes"]
    upstream_keys = [key for each in backends for key in each.get("api_keys") or () if isinstance(key, dict)]
    sections = [data.get("defaults") or {}, *routes]
    caches = [section["cache"] for section in sections if isinstance(section.get("cache"), dict)]
    for what, parts, names in (
        ("the semantic cache is left out; fault 17 tries one of its own", caches, ("semantic",)),
        ("limits and budgets are left out; fault 12 tries a budget of its own", (data,), ("limits", "budgets")),
        ("limits and budgets of keys are left out", keys, ("limit", "budget")),
        ("quotas of backends are left out", (*backends, *upstream_keys), ("quota", "rpm", "tpm")),
        ("speculation and mirrors are left out", sections, ("speculative", "mirror")),
        ("admission is left out; faults 21 to 23 try one of their own", sections, ("admission",)),
    ):
        if any([part.pop(name, None) is not None for part in parts for name in names]):  # noqa: C419  every one goes
            notes.append(what)


def _shortened(timeouts: TimeoutsPolicy) -> dict[str, str]:
    return {name: format_duration(min(getattr(timeouts, name) or most, most)) for name, most in _LIMITS_S.items()}


def _caches(route: RoutePolicy) -> bool:
    return route.cache is not None and route.cache.exact.enabled


def _way(index: int, loaded: LoadedPolicy, names: Sequence[str], keys: Sequence[Key]) -> ChatRoute | None:
    """The properties of a chat that select a route; None if no chat can, or if no lying upstream is behind it."""
    route = loaded.policy.routes[index]
    backends = tuple(part.ref for part in route.backends if part.ref in names)
    if route.match.internal or not backends:
        return None
    model = _of_glob(route.match.models[0]) if route.match.models else "selftest"
    headers = tuple((name, _of_glob(glob)) for name, glob in route.match.headers.items())
    fields = tuple((name.lower().encode(), value.encode()) for name, value in headers)
    matcher = RouteMatcher(loaded.policy.routes)

    def takes(key: str, tenant: str) -> bool:
        return matcher.match(model=model, path=_CHAT, headers=fields, key=key, tenant=tenant) is route

    if not keys:
        return ChatRoute(index, model, headers, (), backends, route) if takes("", "default") else None
    pairs = zip(loaded.policy.keys, keys, strict=True)
    taken = tuple(key for policy, key in pairs if allows(policy.models, model) and takes(key.name, key.tenant))
    return ChatRoute(index, model, headers, taken, backends, route) if taken else None


def _of_glob(glob: str) -> str:
    """A text that matches a glob."""
    return glob.replace("*", "selftest").replace("?", "x")
