"""Whether an answer was in time, as goodput counts it."""

from __future__ import annotations

from typing import Any

import pytest

from backends.charges.usage import Usage
from backends.protocol import Facts, Slo
from backends.stream import StreamEnd
from gateway.record.slo_outcome import slo_outcome

SLO = Slo(2.0, 0.5, 0.1, 20.0)


def outcome(
    *,
    first_s: float | None = 1.0,
    total_s: float = 2.0,
    end: StreamEnd | None = StreamEnd.CLEAN,
    usage: tuple[int, int] | None = (2000, 21),
    status: int = 200,
    code: str | None = None,
) -> Any:
    """Of a streamed answer with a first token after 1 s and 20 gaps of 50 ms, but for what is given."""
    facts = Facts()
    facts.first_token_at = 100.0 + first_s if first_s is not None else None
    facts.stream_end = end
    facts.usage = Usage(prompt_tokens=usage[0], completion_tokens=usage[1]) if usage is not None else None
    return slo_outcome(
        SLO,
        facts,
        status=status,
        error_code=code,
        started_at=100.0,
        finished_at=100.0 + total_s,
        prompt_tokens=4000,
    )


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ({}, "met"),
        ({"first_s": 3.0, "total_s": 3.5}, "met"),
        ({"first_s": 3.01, "total_s": 3.5}, "ttft"),
        ({"first_s": 3.01, "total_s": 90.0}, "ttft"),
        ({"first_s": 1.0, "total_s": 2.999}, "met"),
        ({"first_s": 1.0, "total_s": 3.1}, "tpot"),
        ({"usage": (2000, 1), "total_s": 9.0}, "met"),
        ({"usage": (2000, 1000), "total_s": 20.5}, "total"),
        # Without usage the gateway's own estimate of the prompt counts, and gaps are not known.
        ({"usage": None, "first_s": 4.0, "total_s": 15.0}, "met"),
        ({"usage": None, "first_s": 4.01, "total_s": 15.0}, "ttft"),
    ],
)
def test_slo_outcome_of_a_stream_is_its_first_missed_limit(case: dict[str, Any], expected: str) -> None:
    """First token, then the gaps, then the end."""
    assert outcome(**case) == expected


@pytest.mark.parametrize(
    ("total_s", "usage", "expected"),
    [
        (5.0, (2000, 21), "met"),
        (5.01, (2000, 21), "total"),
        (3.0, (2000, 0), "met"),
        (3.01, (2000, 0), "total"),
        (19.0, (2000, 1000), "met"),
        (20.01, (2000, 1000), "total"),
    ],
)
def test_slo_outcome_of_a_whole_answer_is_that_of_the_slowest_stream_in_time(
    total_s: float, usage: tuple[int, int], expected: str
) -> None:
    """Only its end is seen."""
    assert outcome(first_s=None, end=None, total_s=total_s, usage=usage) == expected


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ({"status": 429, "code": "slo_shed", "end": None}, "shed"),
        ({"status": 429, "end": None}, "failed"),
        ({"status": 408, "end": None}, "failed"),
        ({"status": 500, "end": None}, "failed"),
        ({"status": 503, "code": "no_backend_available", "end": None}, "failed"),
        ({"end": StreamEnd.UPSTREAM_CUT}, "failed"),
        ({"end": StreamEnd.STALL}, "failed"),
        ({"end": StreamEnd.ERROR, "code": "draining"}, "failed"),
        ({"status": 400, "end": None}, None),
        ({"status": 404, "end": None}, None),
        ({"status": 499, "code": "client_gone", "end": StreamEnd.CLIENT_GONE}, None),
        ({"end": StreamEnd.CLIENT_GONE, "first_s": 10.0, "total_s": 11.0}, None),
    ],
)
def test_slo_outcome_without_a_whole_answer_says_whose_it_is(case: dict[str, Any], expected: str | None) -> None:
    """Turned away and failed are missed; a caller's own mistakes and those who left are not counted."""
    assert outcome(**case) == expected
