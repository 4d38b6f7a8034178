"""An answer too far to serve goes along as predicted text, and nobody gets one that could not have been served."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from policies.schema import RoutePolicy
from tests.support.clock import FakeClock
from tests.support.policy.cache import Exchange, Upstream, chat_answer
from tests.support.policy.semantic import FixedDecider, Stage, question

RESET = "how do I reset my password please"
RESET_TOO = "how do I reset the password please"
BUTTON = "Press the button named Forgot."


def answering(exchange: Exchange) -> None:
    """The same about passwords, whoever asks."""
    asked = (exchange.call.body or {})["messages"][-1]["content"]
    exchange.answer(chat_answer(BUTTON if "password" in asked else f"echo of {asked}"))


async def predicted(*calls: tuple[str, dict[str, Any]], decider: FixedDecider | None = None, **stage: Any) -> list[str]:
    """What the backend within is given to propose with each of its calls, when these are asked one after the other."""
    upstream = Upstream(answering)
    opened = await Stage(upstream, FakeClock(), decider=decider or FixedDecider(1.1), **stage).open()
    for text, fields in calls:
        await opened.ask(question(text, **fields))
    told = [exchange.call.predicted for exchange in upstream.exchanges]
    given = ["" if prediction is None else prediction.text for prediction in told]
    assert opened.cache.take_tally().predictions == sum(map(bool, given))
    await opened.aclose()
    return given


@pytest.mark.parametrize(("settings", "expected"), [({"predict_from": 0.7}, BUTTON), ({}, "")])
async def test_prediction_is_the_near_questions_answer_where_the_route_asks_for_it(
    settings: dict[str, Any], expected: str
) -> None:
    """The first call has none; the second has it only where that is asked for."""
    assert await predicted((RESET, {}), (RESET_TOO, {}), **settings) == ["", expected]


async def test_prediction_of_a_question_too_far_is_none() -> None:
    """Below the cosine nothing goes along."""
    assert await predicted((RESET, {}), (RESET_TOO, {}), predict_from=0.99) == ["", ""]


async def test_prediction_goes_with_the_check_of_a_served_answer() -> None:
    """A check is most probably told what was served."""
    decider = FixedDecider(0.7, shadow_probability=1.0)

    assert await predicted((RESET, {}), (RESET_TOO, {}), decider=decider, predict_from=0.7) == ["", BUTTON]


@pytest.mark.parametrize(
    "other", [{"tenant": "blue"}, {"headers": [(b"x-cache-scope", b"part")]}, {"extra": {"seed": 1}}]
)
async def test_prediction_never_comes_from_another_scope_or_context(other: dict[str, Any]) -> None:
    """As with answers that are served."""
    assert await predicted((RESET, {}), (RESET_TOO, other), predict_from=0.5) == ["", ""]


async def test_prediction_on_a_public_route_waits_for_a_second_owner() -> None:
    """What one owner stored speeds nobody else's answer up, so that nobody learns what was asked."""
    calls = [(text, {"key_id": key, "tenant": key}) for key, text in (("a", RESET), ("b", RESET_TOO), ("a", RESET_TOO))]

    assert await predicted(*calls, cache={"scope": "global"}, predict_from=0.5) == ["", "", BUTTON]


def test_prediction_and_pacing_exclude_each_other() -> None:
    """What comes sooner would show what pacing hides; without answers of the cache there is nothing to show."""
    route: dict[str, Any] = {
        "name": "all",
        "match": {"models": ["*"]},
        "backends": [{"ref": "up"}],
        "cache": {"pacing": "recorded", "semantic": {}},
        "speculative": {"mode": "predicted", "sources": ["client", "turn"]},
    }

    assert RoutePolicy.model_validate(route).draft is None
    with pytest.raises(ValidationError, match=r"give cache\.pacing, or speculative\.sources"):
        RoutePolicy.model_validate({**route, "speculative": {"mode": "predicted"}})
