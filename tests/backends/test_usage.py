"""What an answer has used: the parts and the whole."""

from __future__ import annotations

import pytest

from backends.charges.usage import Usage


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
