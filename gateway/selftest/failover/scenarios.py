"""The scenarios of failover as data, after the public failoverbench: what the provider does, and what must happen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gateway.selftest.answers import error_body
from gateway.selftest.failover.stage import FailoverOutcome, story_pieces
from gateway.selftest.upstream import Lie

_PAUSE_S = 0.004


@dataclass(frozen=True, slots=True)
class Requirement:
    """A further condition of a pass. If it is not `is_required`, missing it makes the verdict partial."""

    name: str
    holds: Callable[[FailoverOutcome], bool]
    is_required: bool = True


@dataclass(frozen=True, slots=True)
class Scenario:
    """`lie` is the first upstream's answer to an attempt, counted from 1; the spare one answers as in `spare_lie`."""

    id: str
    fault: str
    lie: Callable[[int, bool], Lie]
    rules: tuple[Requirement, ...] = ()
    hang_s: float = 40.0
    """A call that takes longer counts as hanging."""
    wants_answer: bool = True
    quick: dict[str, Any] | None = None
    """Sections of the policy that a quick run changes."""


_WHOLE = Lie(pieces=story_pieces("first"), pause_s=_PAUSE_S)
_CUT = Lie(pieces=story_pieces("first"), pause_s=_PAUSE_S, stop_after=41)
_TOO_LONG = "This model's maximum context length is 8192 tokens."


def _once(lie: Lie) -> Callable[[int, bool], Lie]:
    return lambda number, _: lie if number == 1 else _WHOLE


def _always(lie: Lie) -> Callable[[int, bool], Lie]:
    return lambda *_: lie


def _quick_or(quick: Lie, full: Lie) -> Callable[[int, bool], Lie]:
    return lambda _, is_quick: quick if is_quick else full


def _refusal(message: str, code: str) -> Lie:
    return Lie(status=400, pieces=(error_body(message, kind="invalid_request_error", code=code),))


def _malformed() -> Lie:
    pieces = story_pieces("first")
    return Lie(pieces=(*pieces[:10], b'data: {"choices":[{"delta":{"content": \n\n', *pieces[10:]), pause_s=_PAUSE_S)


def _waits(seen: FailoverOutcome) -> bool:
    return len(seen.requested_at_s) >= 2 and seen.requested_at_s[1] - seen.requested_at_s[0] >= 1.8


def _has_usage(seen: FailoverOutcome) -> bool:
    return seen.answer is not None and any(each.get("usage") for each in seen.answer.chunks())


def _names_the_spare(seen: FailoverOutcome) -> bool:
    return seen.answer is not None and any(each.get("model") == "spare" for each in seen.answer.chunks())


def _asked_at_most(count: int, *, is_required: bool = True) -> Requirement:
    return Requirement(f"asked at most {count} times", lambda seen: len(seen.requested_at_s) <= count, is_required)


_NO_HAMMER = Requirement("at most 4 attempts in 3 s", lambda seen: seen.requests_within(3.0) <= 4)
_QUIET: dict[str, Any] = {"timeouts": {"first_token": "1s"}}

SCENARIOS = (
    Scenario(
        "S1",
        "429 with Retry-After once: waited for",
        _once(Lie(status=429, headers=(("retry-after", "2"),))),
        (
            Requirement("the wait that was asked for is kept", _waits, is_required=False),
            Requirement("at most 2 attempts at once", lambda seen: seen.requests_within(1.5) <= 2),
        ),
        20.0,
    ),
    Scenario("S2", "429 always: goes on, hammers nobody", _always(Lie(status=429)), (_NO_HAMMER, _asked_at_most(6))),
    Scenario(
        "S3",
        "500 once: asked again",
        _once(Lie(status=500)),
        (Requirement("the same one is asked again", lambda seen: len(seen.requested_at_s) >= 2, is_required=False),),
        20.0,
    ),
    Scenario("S4", "503 always: goes on", _always(Lie(status=503)), (_asked_at_most(6),)),
    Scenario("S5", "connection reset before the head: goes on", _once(Lie(stop_after=-1, stop="reset")), (), 20.0),
    Scenario(
        "S6",
        "no answer at all: goes on, not asked again",
        _always(Lie(delay_s=120.0)),
        (
            Requirement("over within 100 s", lambda seen: seen.took_s <= 100.0),
            _asked_at_most(1, is_required=False),
        ),
        130.0,
        quick=_QUIET,
    ),
    Scenario(
        "S7",
        "first token after 20 s: goes on before",
        _always(Lie(pieces=story_pieces("first"), first_s=20.0)),
        (Requirement("answered within 15 s", lambda seen: seen.took_s <= 15.0, is_required=False),),
        60.0,
        quick=_QUIET,
    ),
    Scenario("S8", "stream cut in the middle: never half an answer", _always(_CUT)),
    Scenario(
        "S9",
        "stream stalls in the middle, then closes: told",
        _quick_or(
            Lie(pieces=story_pieces("first"), stop_after=21, stop="stall", stall_s=1.0),
            Lie(pieces=story_pieces("first"), stop_after=21, stop="stall", stall_s=30.0),
        ),
        (Requirement("over within 45 s", lambda seen: seen.took_s <= 45.0),),
        70.0,
    ),
    Scenario("S10", "one broken event in a stream: the rest comes", _always(_malformed()), (), 30.0),
    Scenario(
        "S11",
        "stream without [DONE]: ended at once, with usage",
        _always(Lie(pieces=story_pieces("first")[:-1], pause_s=_PAUSE_S)),
        (
            Requirement("over within 8 s", lambda seen: seen.took_s <= 8.0),
            Requirement("the usage is told", _has_usage, is_required=False),
        ),
        30.0,
    ),
    Scenario(
        "S12",
        "prompt too long: another model, never the same",
        _always(_refusal(_TOO_LONG, "context_length_exceeded")),
        (_asked_at_most(1),),
        20.0,
    ),
    Scenario(
        "S13",
        "content refused: told, nobody else is asked",
        _always(_refusal("refused by our safety system", "content_policy_violation")),
        (_asked_at_most(1),),
        20.0,
        wants_answer=False,
    ),
    Scenario("S14", "stream cut, spare takes no prefill: told", _always(_CUT)),
    Scenario(
        "S16",
        "fallback's answer names its model and usage",
        _always(Lie(status=503)),
        (
            Requirement("its model is named", _names_the_spare),
            Requirement("the usage is told", _has_usage, is_required=False),
            _asked_at_most(6),
        ),
    ),
)
