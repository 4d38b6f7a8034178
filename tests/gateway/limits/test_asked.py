"""What a request is taken to ask for, whatever its body says."""

from __future__ import annotations

from typing import Any

import pytest

from backends.operations import Operation
from gateway.limits.asked import asked_of


@pytest.mark.parametrize(
    ("body", "tokens"),
    [
        ({}, 4096),
        ({"max_tokens": 100, "n": 3}, 300),
        ({"max_tokens": 10**9}, 10**7),
        ({"max_tokens": 10**6, "n": 10**9, "best_of": 10**300}, 10**7),
        ({"n": 10**9}, 10**7),
    ],
)
def test_nobody_holds_more_of_a_budget_than_a_call_can_come_to(body: dict[str, Any], tokens: int) -> None:
    """Others need it too: what is absurd is refused by the upstream, but only after a while."""
    assert asked_of(Operation.COMPLETION, body, 100).most_output_tokens == tokens
