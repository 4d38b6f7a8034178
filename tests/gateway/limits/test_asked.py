"""What a request is taken to ask for, whatever its body says."""

from __future__ import annotations

from typing import Any

import pytest

from backends.operations import Metering, Operation, Terms
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
    assert asked_of(Operation.COMPLETION, body, b"x" * 100).most_output_tokens == tokens


def test_a_picture_is_expected_to_have_as_many_tokens_as_pictures_have() -> None:
    """Not as many as its bytes would be as text, which would take a minute of a limit away; and a file has none."""
    picture = b'{"messages": [{"image_url": {"url": "data:image/png;base64,%s"}}]}' % (b"A" * 4_000_000)
    prompt = asked_of(Operation.CHAT, {}, picture).prompt_tokens
    file = asked_of(Operation.PASSTHROUGH, None, b"x" * 4_000_000, Terms(Metering.FREE)).prompt_tokens

    assert 1000 <= prompt <= 1100
    assert file == 0
    assert asked_of(Operation.CHAT, {}, b"x" * 4_000_000).prompt_tokens == 1_000_000


@pytest.mark.parametrize("operation", [Operation.CHAT, Operation.EMBEDDING])
@pytest.mark.parametrize("content", ["words", [{"type": "image_url", "image_url": {"url": "https://a.example/b"}}]])
def test_a_plain_body_asks_for_what_one_does_that_says_nothing_further(operation: Operation, content: object) -> None:
    """Most bodies have no field besides the prompt that anything depends on, and are not looked through for them."""
    body = {"model": "m", "temperature": 0.5, "messages": [{"role": "user", "content": content}], "input": "words"}

    assert asked_of(operation, body, b"x" * 100) == asked_of(operation, {**body, "max_tokens": None}, b"x" * 100)
