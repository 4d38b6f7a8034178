"""Reading a policy file: strict, and every problem of the file reported at once.

Called at start, at reload and by the command line. Which backend types exist is handed in.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from backends.config import Config
from backends.errors import ConfigurationError
from policies.keys.settings import KeyPolicy
from policies.policy_file.advice import find_warnings
from policies.policy_file.locate import Document, Problem
from policies.policy_file.problems import short_value, translate
from policies.policy_file.references import check_references
from policies.policy_file.sources import PolicyFiles, PolicySource
from policies.schema import BackendPolicy, Policy, RoutePolicy

Item = TypeVar("Item", RoutePolicy, KeyPolicy)

BackendConfigs = Callable[[str], type[Config]]
"""The settings of a backend type. Raises: ConfigurationError for a type that it does not know."""

_MAX_PROBLEMS = 100
_STAND_INS: Mapping[str, list[object]] = {
    "routes": [{"name": "a", "match": {"internal": True}, "backends": [{"ref": "a"}]}],
    "keys": [],
}
"""For lists whose items are checked one by one, while the rest is."""
_OF_EVERY_BACKEND = frozenset(BackendPolicy.model_fields)
_DEFAULTED = ("timeouts", "retry", "circuit_breaker", "cache", "passthrough")


@dataclass(frozen=True, slots=True)
class LoadedPolicy:
    """A policy file as it was read, checked whole."""

    policy: Policy
    """Routes have taken over `defaults` already."""
    backends: Mapping[str, tuple[str, Config]]
    """The type and the settings of each backend, by name."""
    revision: str
    """The beginning of the SHA-256 of the bytes of all files."""
    path: Path
    document: Document
    """What the file says, secrets as references."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """What can hardly be meant; looked for each time, which a gateway that only serves can do without."""
        return tuple(find_warnings(self.policy))


def load_policy(path: Path, environ: Mapping[str, str], backend_configs: BackendConfigs) -> LoadedPolicy:
    """Read and check a file, and those that it includes; `environ` resolves secrets written as env:NAME.

    Raises: ConfigurationError with one line for each problem: `file:line: path: message`.
    """
    return check_source(PolicyFiles(path).read(), path, environ, backend_configs)


def parse_policy(raw: bytes, path: Path, environ: Mapping[str, str], backend_configs: BackendConfigs) -> LoadedPolicy:
    """Check the bytes of a policy file; `path` names it in messages, and says what its includes are relative to.

    Raises: as `load_policy`.
    """
    return check_source(PolicyFiles(path).combine(raw), path, environ, backend_configs)


def check_source(
    source: PolicySource, path: Path, environ: Mapping[str, str], backend_configs: BackendConfigs
) -> LoadedPolicy:
    """Check what was read, one route after the other, so that others get their turn where a thread does it.

    Raises: as `load_policy`.
    """
    document = source.document
    if document.data is None:
        raise _refused(path, document.problems)
    policy, problems = _parse_sections(document, environ)
    backends, backend_problems = _parse_backends(document, environ, backend_configs)
    names = check_references(document, str(path))
    problems += [*document.problems, *backend_problems, *islice(names, _MAX_PROBLEMS + 1)]
    if policy is not None:
        problems += _shared_keys(policy.keys, document)
    if policy is None or problems:
        raise _refused(path, problems)
    policy = policy.model_copy(update={"routes": tuple(_with_defaults(route, policy) for route in policy.routes)})
    return LoadedPolicy(policy=policy, backends=backends, revision=source.revision, path=path, document=document)


def _parse_sections(document: Document, environ: Mapping[str, str]) -> tuple[Policy | None, list[Problem]]:
    # By way of JSON, because there `strict` takes lists for tuples but no "3" for 3 and no true for 1.
    context = {"environ": environ}
    problems: list[Problem] = []
    whole = document.data
    frame = whole
    routes: list[RoutePolicy] = []
    keys: list[KeyPolicy] = []
    if isinstance(whole, dict):
        routes = _parse_items("routes", RoutePolicy, document, context, problems)
        keys = _parse_items("keys", KeyPolicy, document, context, problems)
        stand_ins = {name: items for name, items in _STAND_INS.items() if _has_items(whole.get(name))}
        frame = {**whole, **stand_ins}
    try:
        policy = Policy.model_validate_json(json.dumps(frame), strict=True, context=context)
    except ValidationError as error:
        return None, [*problems, *translate(error, Policy, document)]
    if problems:
        return None, problems
    policy = policy.model_copy(update={"routes": tuple(routes), "keys": tuple(keys)})
    try:
        policy.check_whole()
    except ValueError as error:
        return None, [document.problem((), f"{short_value(whole)} - {error}")]
    return policy, []


def _parse_items(
    section: str, model: type[Item], document: Document, context: Mapping[str, object], problems: list[Problem]
) -> list[Item]:
    """Each item of a list that a policy has, one by one; what is wrong is added to the problems."""
    parsed: list[Item] = []
    data = document.value((section,))
    for index, item in enumerate(data if isinstance(data, list) else ()):
        try:
            parsed.append(model.model_validate_json(json.dumps(item), strict=True, context=dict(context)))
        except ValidationError as error:
            problems += translate(error, model, document, (section, index))
    return parsed


def _has_items(section: object) -> bool:
    return isinstance(section, list) and bool(section)


def _parse_backends(
    document: Document, environ: Mapping[str, str], backend_configs: BackendConfigs
) -> tuple[dict[str, tuple[str, Config]], list[Problem]]:
    parsed: dict[str, tuple[str, Config]] = {}
    problems: list[Problem] = []
    sections = document.value(("backends",))
    for name, section in sections.items() if isinstance(sections, dict) else ():
        kind = section.get("type") if isinstance(section, dict) else None
        if not isinstance(kind, str) or not kind:
            continue  # the schema has complained of it
        settings: dict[str, Any] = {key: value for key, value in section.items() if key not in _OF_EVERY_BACKEND}
        try:
            model = backend_configs(kind)
        except ConfigurationError as error:
            problems.append(document.problem(("backends", name, "type"), error.message))
            continue
        try:
            parsed[name] = (kind, model.model_validate_json(json.dumps(settings), context={"environ": environ}))
        except ValidationError as error:
            problems += translate(error, model, document, ("backends", name))
    return parsed, problems


def _shared_keys(keys: Iterable[KeyPolicy], document: Document) -> list[Problem]:
    holders: dict[str, str] = {}
    problems: list[Problem] = []
    for index, key in enumerate(keys):
        holder = holders.setdefault(key.key.get_secret_value(), key.name)
        if holder != key.name:
            message = f'the same secret as key "{holder}": a caller could not be told from the other'
            problems.append(document.problem(("keys", index, "key"), message))
    return problems


def _with_defaults(route: RoutePolicy, policy: Policy) -> RoutePolicy:
    """A section that the route has itself counts whole, even where it is null."""
    inherited = {
        section: default
        for section in _DEFAULTED
        if section not in route.model_fields_set and (default := getattr(policy.defaults, section)) is not None
    }
    return route.model_copy(update=inherited) if inherited else route


def _refused(path: Path, problems: Iterable[Problem]) -> ConfigurationError:
    found = list(dict.fromkeys(problems))
    # In the order in which the files are first spoken of, the one that was asked for in front.
    files = {source: place for place, source in enumerate(dict.fromkeys(("", *(each.source for each in found))))}
    ordered = sorted(found, key=lambda problem: (files[problem.source], problem.line, problem.column))
    lines = [problem.text(str(path)) for problem in ordered[:_MAX_PROBLEMS]]
    if len(ordered) > _MAX_PROBLEMS:
        lines.append(f"{path}: there are more problems than these {_MAX_PROBLEMS}")
    return ConfigurationError("\n".join(lines))
