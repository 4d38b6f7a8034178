"""What somebody asks of a key, checked against the policy: for the admin API and for the command line."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from pydantic import ValidationError

from backends.config import NAME_PATTERN, parse_duration
from backends.errors import InvalidRequest
from gateway.keys.stored_key import StoredKey
from policies.keys.settings import KeyTerms, parse_moment
from policies.limits.settings import BudgetTerms, LimitTerms
from policies.policy_file.problems import unknown_name
from policies.schema import Policy

_NAME = re.compile(NAME_PATTERN)
_MAX_OVERLAP_S = 90 * 86400.0


def checked_name(name: object, policy: Policy) -> str:
    """A name for a new key. Raises: InvalidRequest where it is one of the policy file's."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        allowed = "1 to 64 letters, digits and . _ / - and begins with a letter or digit"
        raise InvalidRequest(f"a key needs a name, which has {allowed}", param="name")
    if any(key.name == name for key in policy.keys):
        raise InvalidRequest(f'the policy file has a key named "{name}"', param="name")
    return name


def checked_terms(values: Mapping[str, Any], policy: Policy, now: float) -> KeyTerms:
    """What a key may do, as in a policy file; it may expire a time from now too. Raises: InvalidRequest."""
    values = dict(values)
    if values.get("expires") is not None:
        values["expires"] = moment_from(values["expires"], now).isoformat()
    try:
        terms = KeyTerms.model_validate_json(json.dumps(values), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        known = ", ".join(_known_beside(first["loc"]))
        problem = f"unknown; known are {known}" if first["type"] == "extra_forbidden" else first["msg"]
        raise InvalidRequest(f"{place}: {problem.removeprefix('Value error, ')}", param=place) from None
    routes = [route.name for route in policy.routes]
    cheaper = terms.budget.fallback if terms.budget is not None else None
    named = [("routes", name) for name in terms.routes]
    if cheaper is not None:
        named.append(("budget.fallback", cheaper))
    for param, name in named:
        if name not in routes:
            raise InvalidRequest(unknown_name("route", name, routes), param=param)
    return terms


def _known_beside(place: tuple[int | str, ...]) -> Iterable[str]:
    """Names of the fields that there are where one is unknown."""
    if len(place) == 1:
        return KeyTerms.model_fields
    return LimitTerms.model_fields if place[0] == "limit" else BudgetTerms.model_fields


def moment_from(text: object, now: float, param: str = "expires") -> datetime:
    """A moment, or a time from now such as "90d". Raises: InvalidRequest."""
    start = datetime.fromtimestamp(now, UTC)
    try:
        return (start + timedelta(seconds=parse_duration(text))).replace(microsecond=0)
    except ValueError:
        pass
    try:
        return parse_moment(text)
    except ValueError as error:
        raise InvalidRequest(f'{param}: {error}, or a time from now, "90d"', param=param) from None


def overlap_seconds(text: object) -> float:
    """How long secrets go on beside a new one. Raises: InvalidRequest."""
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise InvalidRequest(f"overlap: {error}", param="overlap") from None
    if seconds > _MAX_OVERLAP_S:
        raise InvalidRequest("overlap: at most 90d", param="overlap")
    return seconds


def key_object(key: StoredKey, now: float) -> dict[str, Any]:
    """A key as it is shown, which is without its secrets."""
    return {
        "object": "key",
        "name": key.name,
        "status": key.status(now),
        **key.terms.model_dump(mode="json"),
        "created": _moment(key.created_at),
        "revoked": _moment(key.revoked_at),
        "secrets": [
            {"ends_with": each.hint, "created": _moment(each.created_at), "until": _moment(each.until)}
            for each in key.secrets
            if each.until is None or each.until > now
        ],
    }


def _moment(at: float | None) -> str | None:
    return None if at is None else datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")
