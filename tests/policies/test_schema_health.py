"""What a policy may ask of breakers, hedges and probes, and what it is told where it may not."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from backends.health import HealthConfig
from policies.pool.settings import HedgePolicy
from policies.schema import RoutePolicy


def _route(**more: Any) -> RoutePolicy:
    return RoutePolicy.model_validate(
        {"name": "r", "match": {"models": ["*"]}, "backends": [{"ref": "a"}, {"ref": "b"}], **more}
    )


def test_schema_health_defaults_are_off() -> None:
    """Nobody is asked twice, or asked how he is, who has not said so."""
    assert _route().hedge is None
    assert _route(hedge={}).hedge == HedgePolicy(budget=0.05, quantile=0.95)


@pytest.mark.parametrize(
    ("hedge", "said"),
    [
        ({"quantile": 0.9}, "makes 0.1 of the calls late, more than the budget of 0.05"),
        ({"budget": 0.01}, "makes 0.05 of the calls late"),
        ({"budget": 0.0}, "greater than 0"),
        ({"quantile": 1.0}, "less than 1"),
        ({"delay": "1s"}, "Extra inputs"),
    ],
)
def test_schema_hedge_that_cannot_be_is_refused(hedge: dict[str, Any], said: str) -> None:
    """With the numbers that do not fit."""
    with pytest.raises(ValidationError, match=said):
        _route(hedge=hedge)


@pytest.mark.parametrize("second", [[], [{"ref": "b", "weight": 0}]], ids=["alone", "out"])
def test_schema_hedge_needs_somebody_to_ask(second: list[dict[str, Any]]) -> None:
    """One backend in rotation cannot be hedged."""
    with pytest.raises(ValidationError, match="a second backend in rotation"):
        _route(backends=[{"ref": "a"}, *second], hedge={})


@pytest.mark.parametrize("path", ["health", "/a b", "/a\r\nx: y", "", "/ü"])
def test_schema_health_path_that_cannot_be_asked_for_is_refused(path: str) -> None:
    """A path begins with a slash and holds nothing that would break a request line."""
    with pytest.raises(ValidationError):
        HealthConfig(path=path)
