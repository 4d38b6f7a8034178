"""Comparing answers: how probably two say the same, what nobody can tell, and when a judge is asked."""

from __future__ import annotations

import asyncio
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.errors import ConnectFailed
from backends.protocol import Call, Timeouts
from policies.cache.semantic.contracts import EncoderBusy
from policies.cache.semantic.learning.comparators import (
    DIFFERENT_TO,
    SAME_FROM,
    AnswerVerdict,
    Comparison,
    are_one,
    verdict_of,
)
from policies.cache.semantic.learning.judge import RouteJudge
from policies.cache.semantic.sameness.courtesies import normal_form, without_courtesies
from policies.cache.semantic.sameness.head import load_weights
from policies.cache.semantic.sameness.parts import MAX_CHARS
from policies.cache.semantic.settings import JudgePolicy
from tests.support.clock import FakeClock
from tests.support.policy.cache import Exchange, Upstream, chat_answer
from tests.support.policy.semantic import WordEncoder

LONG = "word " * 2000


def compare(left: str, right: str) -> float | None:
    """How probably both say the same."""
    return asyncio.run(Comparison(WordEncoder(), None).compare("a question", left, right, may_ask=False))


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("Press the button.", "press  the\nbutton"),
        ('{"a": 1, "b": [2]}', '{"b":[2],"a":1}'),
        ("Sure! Press the red button twice.", "Press the red button twice. Let me know if you need more."),
        (LONG, LONG),
    ],
)
def test_compare_same_answers(left: str, right: str) -> None:
    """But for form and courtesies, whatever their length where they are equal."""
    sameness = compare(left, right)
    assert sameness is not None
    assert sameness > 0.999


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("It costs 5 euros.", "It costs 6 euros."),
        ("You can cancel it.", "You cannot cancel it."),
        ('{"a": 1}', '{"a": 2}'),
        ("Press the red button.", "Write to our office in Rome within 30 days."),
        ("Press the red button on the left side.", "Press the blue button on the left side."),
    ],
)
def test_compare_other_answers_are_never_called_the_same(left: str, right: str) -> None:
    """Numbers, negation, values, a word, or nothing in common."""
    assert verdict_of(compare(left, right)) is not AnswerVerdict.SAME
    assert compare(right, left) == pytest.approx(compare(left, right), abs=1e-4)


def test_compare_what_is_too_long_or_no_text_is_unknown() -> None:
    """Of half an answer nothing is told."""
    assert compare(LONG, LONG + "and more") is None
    assert compare("", "It costs 5 euros.") is None
    assert compare("x" * (MAX_CHARS + 1), "It costs 5 euros.") is None


def test_compare_while_the_reader_is_busy_says_nothing_of_the_answers() -> None:
    """Equal ones need no reader, a judge may still say; else whoever asks has to know that nobody has looked."""
    encoder = WordEncoder()
    encoder.is_busy = True

    async def run(left: str, judge: RouteJudge | None) -> float | None:
        return await Comparison(encoder, judge).compare("q", left, "other", may_ask=True)

    assert asyncio.run(run("other", None)) == 1.0
    assert asyncio.run(run("one", judge_of(Upstream(lambda exchange: exchange.answer(chat_answer("no")))))) == 0.0
    with pytest.raises(EncoderBusy):
        asyncio.run(run("one", None))
    with pytest.raises(EncoderBusy):
        asyncio.run(run("one", judge_of(Upstream(lambda exchange: exchange.answer(chat_answer("unsure"))))))


@pytest.mark.parametrize(
    ("score", "evidence", "is_one"),
    [
        (2.0, 1.0, True),
        (3.5, -0.5, True),
        (9.0, -1.5, False),
        (9.0, -9.0, False),
        (-3.0, 4.0, False),
        (-3.0, 6.0, True),
    ],
)
def test_answers_are_one_by_decision_and_comparison_but_not_against_the_comparison(
    score: float, evidence: float, is_one: bool
) -> None:
    """What has taken the place of an answer that is asked often is scored as high as that was."""
    assert are_one(score, evidence) is is_one


def test_verdict_is_a_word_for_a_probability() -> None:
    """The middle is unknown, and so is what was not looked at."""
    told = [verdict_of(p) for p in (1.0, SAME_FROM, (SAME_FROM + DIFFERENT_TO) / 2, DIFFERENT_TO, 0.0, None)]
    assert told == ["same", "same", "unknown", "different", "different", "unknown"]


def test_few_that_say_the_same_are_called_different_by_the_weights_that_ship() -> None:
    """New weights that are surer of what they do not know would count right answers as wrong hits."""
    scores = load_weights().card.scores
    assert scores["answer"].different_to >= DIFFERENT_TO
    assert scores["words"].different_to >= DIFFERENT_TO


@pytest.mark.parametrize("text", ["", " ", "...", "Sure.", "```\n```", "\ud83d", "{", "[" * 500, "a" * 10**6])
def test_compare_odd_texts_never_fail(text: str) -> None:
    """Nothing an upstream says breaks a comparison."""
    assert verdict_of(compare(text, text)) is AnswerVerdict.SAME
    assert verdict_of(compare(text, "Press the red button.")) is not AnswerVerdict.SAME


@pytest.mark.timed
@pytest.mark.parametrize("text", ["The quick brown fox, it is. ", "a", "\ufb01\u00e9\u4f60 ", "a\n"])
def test_compare_very_long_answers_takes_no_time(text: str) -> None:
    """They are equal to the letter or unknown; reading 100 kB held the event loop for up to 0.2 s on a busy machine."""
    long = text * (10**6 // len(text))
    began = time.process_time()

    assert compare(long, long) == 1.0
    assert compare(long, f"Sure! {long}") is None
    assert time.process_time() - began < 0.2


@given(st.text(max_size=80), st.text(max_size=80))
def test_compare_is_symmetric(left: str, right: str) -> None:
    """Which answer is the stored one does not matter."""
    assert compare(left, right) == pytest.approx(compare(right, left), abs=1e-4)


@given(st.text(max_size=80))
def test_normal_form_is_stable(text: str) -> None:
    """What has been made plain stays so."""
    assert normal_form(normal_form(text)) == normal_form(text)


def test_courtesies_are_left_out_at_the_ends_only() -> None:
    """A whole text of them stays what it is."""
    assert without_courtesies("Sure. Hope this helps!") == normal_form("Sure. Hope this helps!")
    assert without_courtesies("It is 5. Sure. Or 6.") == normal_form("It is 5. Sure. Or 6.")


class Doubtful:
    """A reader that is in doubt, or not, as a test says."""

    def __init__(self, log_odds: float | None) -> None:
        self.log_odds = log_odds

    async def compare(self, left: str, right: str) -> float | None:
        """Always the same."""
        return self.log_odds


def judge_of(upstream: Upstream, max_daily_tokens: int = 100_000, clock: FakeClock | None = None) -> RouteJudge:
    """A judge whose model the test plays."""
    policy = JudgePolicy(route="judge", model="small", max_daily_tokens=max_daily_tokens)
    return RouteJudge(upstream, Timeouts(), policy, clock or FakeClock())


VAGUE = ("Press the red button on the left side.", "Press the blue button on the left side.")


@pytest.mark.parametrize(("said", "sameness"), [("Yes.", 1.0), ("no", 0.0), ("unsure", 0.5), ("Well, maybe", 0.5)])
def test_judge_decides_what_the_reader_doubts(said: str, sameness: float) -> None:
    """It is asked once, only where it may be, and never where the reader is sure."""

    async def run() -> tuple[float | None, float | None, int]:
        upstream = Upstream(lambda exchange: exchange.answer(chat_answer(said)))
        judge = judge_of(upstream)
        comparison = Comparison(Doubtful(0.0), judge)
        asked = await comparison.compare("which button", *VAGUE, may_ask=True)
        unasked = await comparison.compare("which button", *VAGUE, may_ask=False)
        for sure in (9.0, -9.0):
            await Comparison(Doubtful(sure), judge).compare("which button", *VAGUE, may_ask=True)
        return asked, unasked, len(upstream.exchanges)

    assert asyncio.run(run()) == (sameness, 0.5, 1)


def test_judge_is_asked_about_what_could_not_be_read() -> None:
    """And what it cannot say either stays unknown."""

    async def run(said: str) -> float | None:
        judge = judge_of(Upstream(lambda exchange: exchange.answer(chat_answer(said))))
        return await Comparison(Doubtful(None), judge).compare("which button", *VAGUE, may_ask=True)

    assert asyncio.run(run("yes")) == 1.0
    assert asyncio.run(run("unsure")) is None


def test_judge_call_holds_both_answers_and_asks_for_a_word() -> None:
    """At temperature 0, never stored, on its own route."""
    calls: list[Call] = []

    def answer(exchange: Exchange) -> None:
        calls.append(exchange.call)
        exchange.answer(chat_answer("yes"))

    async def run() -> None:
        await judge_of(Upstream(answer)).compare("which button", *VAGUE)

    asyncio.run(run())
    [call] = calls
    assert call.body is not None
    assert (call.route, call.model, call.cache_control, call.body["temperature"]) == ("judge", "small", "no-store", 0)
    assert all(text in call.body["messages"][1]["content"] for text in ("which button", *VAGUE))


def test_judge_rests_when_its_allowance_is_spent_until_the_next_day() -> None:
    """The limit holds before a call is made."""

    async def run() -> list[int]:
        clock = FakeClock()
        upstream = Upstream(lambda exchange: exchange.answer(chat_answer("yes")))
        judge = judge_of(upstream, max_daily_tokens=200, clock=clock)
        counts = []
        for _ in range(60):
            await judge.compare("which button", *VAGUE)
        counts.append(len(upstream.exchanges))
        await clock.advance(86_400)
        await judge.compare("which button", *VAGUE)
        return [*counts, len(upstream.exchanges)]

    before, after = asyncio.run(run())
    assert 0 < before < 60
    assert after == before + 1


def test_judge_that_is_spent_or_has_failed_says_that_it_rests() -> None:
    """For the rest of the day, or a minute: then what needs no judge is no fair sample."""

    async def run() -> list[bool]:
        clock = FakeClock()
        good = Upstream(lambda exchange: exchange.answer(chat_answer("yes")))
        spent, failed = (
            judge_of(good, 200, clock),
            judge_of(Upstream(lambda e: e.fail(ConnectFailed("no"))), clock=clock),
        )
        states = [spent.is_resting, failed.is_resting]
        for _ in range(60):
            await spent.compare("which button", *VAGUE)
        await failed.compare("which button", *VAGUE)
        states += [spent.is_resting, failed.is_resting]
        await clock.advance(61)
        states += [spent.is_resting, failed.is_resting]
        await clock.advance(86_400)
        return [*states, spent.is_resting]

    assert asyncio.run(run()) == [False, False, True, True, True, False, False]


@pytest.mark.parametrize("failure", ["refused", "status", "garbage"])
def test_judge_that_fails_has_no_opinion(failure: str) -> None:
    """Whatever goes wrong with it is nobody's problem."""

    def fail(exchange: Exchange) -> None:
        if failure == "refused":
            exchange.fail(ConnectFailed("no"))
        else:
            exchange.answer(b"<html>" if failure == "garbage" else b"{}", status=200 if failure == "garbage" else 500)

    async def run() -> AnswerVerdict:
        return await judge_of(Upstream(fail)).compare("which button", *VAGUE)

    assert asyncio.run(run()) is AnswerVerdict.UNKNOWN
