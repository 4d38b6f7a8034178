"""What an answer has used: the parts and the whole."""

from __future__ import annotations

import pytest

from backends.charges.usage import Usage, tier_asked


@pytest.mark.parametrize(
    ("told", "believed"),
    [
        (Usage(5, 2, 9), Usage(5, 2, 5)),
        (Usage(9, 2, 4, 4, 4, 4), Usage(9, 2, 4, 4, 1, 0)),
        (
            Usage(9, 4, reasoning_tokens=3, audio_output_tokens=3),
            Usage(9, 4, reasoning_tokens=3, audio_output_tokens=1),
        ),
        (Usage(9, 4, 3, 3, 3, service_tier="flex"), Usage(9, 4, 3, 3, 3, service_tier="flex")),
    ],
)
def test_parts_are_not_more_than_the_whole(told: Usage, believed: Usage) -> None:
    """No token of a prompt or of an answer is counted as two kinds; what is told first is believed first."""
    assert told.bounded() == believed


@pytest.mark.parametrize(
    ("later", "whole"),
    [
        (Usage(9, 5, 4, reasoning_tokens=1), Usage(9, 5, 4, reasoning_tokens=1)),
        (Usage(9, 3, 4), Usage(9, 3, 4)),
        (Usage(9, 2, 9), Usage(9, 3, 9, reasoning_tokens=2)),
        (Usage(1, 7, 1), Usage(9, 7)),
        (Usage(0, 0, service_tier="flex"), Usage(9, 3, reasoning_tokens=2, service_tier="flex")),
    ],
    ids=["more", "as much", "a shorter answer", "a shorter prompt", "nothing"],
)
def test_what_is_told_later_counts_unless_it_is_less(later: Usage, whole: Usage) -> None:
    """Prompt and answer each with its own parts."""
    assert Usage(9, 3, reasoning_tokens=2).with_later(later) == whole


@pytest.mark.parametrize(
    ("body", "tier"),
    [
        (None, ""),
        ({"service_tier": "flex"}, "flex"),
        ({"service_tier": 5}, ""),
        ({"inference_geo": "us"}, "us"),
        ({"inference_geo": "us", "service_tier": "auto"}, "us"),
        ({"inference_geo": "us", "service_tier": "priority"}, "priority"),
        ({"inference_geo": "global"}, ""),
    ],
)
def test_asking_for_one_place_costs_as_a_tier(body: dict[str, object] | None, tier: str) -> None:
    """Anthropic's list has a price for it; a tier that is asked for beside it comes first."""
    assert tier_asked(body) == tier
