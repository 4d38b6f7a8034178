"""What a call takes over from the attempt that answered it, field by field."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from backends.protocol import Facts

OF_THE_ANSWER = {"backend", "upstream_model", "usage", "is_usage_partial", "conceal"}
OF_THE_ATTEMPT = {"first_token_at", "upstream_request_id", "may_quote", "stream_end", "sent_at", "speculation"}
OF_THE_CALL = {
    *("attempts", "asked_routes", "cache", "cache_age_s", "resumed", "fallback_route", "draft"),
    *("charges", "extra", "attempt_charge", "reservation", "semantic", "stopwatch", "waited_s", "passed_stages"),
}
"""What holds of the call whoever answers it."""


def adopted(adopt: Any) -> set[str]:
    """The fields that a call without facts takes over from one with a fact in each field."""
    fields = [field.name for field in msgspec.structs.fields(Facts)]
    facts, other = Facts(), Facts(**{name: object() for name in fields})
    adopt(facts, other)
    return {name for name in fields if getattr(facts, name) is getattr(other, name)}


def test_every_field_is_adopted_or_the_calls_own() -> None:
    """A new field has to be put into one of the three groups."""
    fields = {field.name for field in msgspec.structs.fields(Facts)}

    assert fields == OF_THE_ANSWER | OF_THE_ATTEMPT | OF_THE_CALL


@pytest.mark.parametrize(
    ("adopt", "expected"),
    [(Facts.adopt_answer, OF_THE_ANSWER), (Facts.adopt_attempt, OF_THE_ANSWER | OF_THE_ATTEMPT)],
)
def test_a_call_adopts_what_belongs_to_its_answer(adopt: Any, expected: set[str]) -> None:
    """And nothing else."""
    assert adopted(adopt) == expected


def test_a_call_was_sent_when_its_first_attempt_was() -> None:
    """An attempt that began later does not make it younger."""
    facts = Facts(sent_at=1.0)

    facts.adopt_attempt(Facts(sent_at=2.0))

    assert facts.sent_at == 1.0
