"""Comparing answers: what is the same, what is different for two reasons, and what nobody can tell."""

from __future__ import annotations

import asyncio
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.errors import ConnectFailed
from backends.protocol import Call, Timeouts
from policies.cache.semantic.learning.comparators import (
    AnswerVerdict,
    Comparison,
    normal_form,
    without_courtesies,
)
from policies.cache.semantic.learning.judge import RouteJudge
from policies.cache.semantic.settings import JudgePolicy
from tests.support.clock import FakeClock
from tests.support.policy.cache import Exchange, Upstream, chat_answer
from tests.support.policy.semantic import WordEncoder

LONG = "word " * 2000
ROAD = "Open the app, choose the menu named settings at the top, scroll to the section about security of sign in"


def compare(left: str, right: str, judge: RouteJudge | None = None, *, may_ask: bool = True) -> AnswerVerdict:
    """The verdict on two answers."""
    return asyncio.run(Comparison(WordEncoder(), judge).compare("a question", left, right, may_ask=may_ask))


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("Press the button.", "press  the\nbutton"),
        ("\uff26ull width", "full width!"),
        ('{"a": 1, "b": [2]}', '{"b":[2],"a":1}'),
        ("Sure! Press the red button twice.", "Press the red button twice. Let me know if you need more."),
        ("Here is what I found: it costs 5 euros.", "It costs 5 euros."),
        (
            "the shop opens at 9 in the morning and closes at 17 in the afternoon every day of the year",
            "the shop opens at 9 in the morning and closes at 17 in the afternoon each and every day of the year",
        ),
    ],
)
def test_compare_same_answers(left: str, right: str) -> None:
    """But for form, courtesies, and a word that changes little."""
    assert compare(left, right) is AnswerVerdict.SAME


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("It costs 5 euros.", "It costs 6 euros."),
        ("You can cancel it.", "You cannot cancel it."),
        ("Yes, it is allowed.", "No, 14 days before departure everything else is refused."),
        ('{"a": 1}', '{"a": 2}'),
        ("Press the red button.", "Write to our office in Rome within 30 days."),
    ],
)
def test_compare_different_answers_for_two_reasons(left: str, right: str) -> None:
    """Numbers, negation, values, or nothing in common."""
    assert compare(left, right) is AnswerVerdict.DIFFERENT
    assert compare(right, left) is AnswerVerdict.DIFFERENT


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("Press the red button on the left side.", "Press the blue button on the left side."),
        ("It takes 5 days to arrive at home.", "It takes at home 6 days to arrive."),
        (LONG, LONG + "and more"),
        (f"{ROAD} and then tap enable for your account.", f"{ROAD} and then tap disable for your account."),
        (f"{ROAD} and then press the red button.", f"{ROAD} and then press the blue button."),
    ],
)
def test_compare_one_reason_is_not_enough(left: str, right: str) -> None:
    """A single doubt is no label."""
    assert compare(left, right) is AnswerVerdict.UNKNOWN


@pytest.mark.parametrize("text", ["", " ", "...", "Sure.", "```\n```", "\ud83d", "{", "[" * 500, "a" * 10**6])
def test_compare_odd_texts_never_fail(text: str) -> None:
    """Nothing an upstream says breaks a comparison."""
    assert compare(text, text) is AnswerVerdict.SAME
    compare(text, "Press the red button.")


@pytest.mark.parametrize("text", ["The quick brown fox, it is. ", "a", "\ufb01\u00e9\u4f60 ", "a\n"])
def test_compare_very_long_answers_takes_no_time(text: str) -> None:
    """They are equal to the letter or unknown; reading 100 kB held the event loop for up to 0.2 s on a busy machine."""
    long = text * (10**6 // len(text))
    began = time.process_time()

    assert compare(long, long) is AnswerVerdict.SAME
    assert compare(long, f"Sure! {long}") is AnswerVerdict.UNKNOWN
    assert time.process_time() - began < 0.2


@given(st.text(max_size=80), st.text(max_size=80))
def test_compare_is_symmetric(left: str, right: str) -> None:
    """Which answer is the stored one does not matter."""
    assert compare(left, right) is compare(right, left)


@given(st.text(max_size=80))
def test_normal_form_is_stable(text: str) -> None:
    """What has been made plain stays so."""
    assert normal_form(normal_form(text)) == normal_form(text)


def test_courtesies_are_left_out_at_the_ends_only() -> None:
    """A whole text of them stays what it is."""
    assert without_courtesies("Sure. Hope this helps!") == normal_form("Sure. Hope this helps!")
    assert without_courtesies("It is 5. Sure. Or 6.") == normal_form("It is 5. Sure. Or 6.")


def judge_of(upstream: Upstream, max_daily_tokens: int = 100_000, clock: FakeClock | None = None) -> RouteJudge:
    """A judge whose model the test plays."""
    policy = JudgePolicy(route="judge", model="small", max_daily_tokens=max_daily_tokens)
    return RouteJudge(upstream, Timeouts(), policy, clock or FakeClock())


VAGUE = ("Press the red button on the left side.", "Press the blue button on the left side.")


@pytest.mark.parametrize(
    ("said", "verdict"),
    [
        ("Yes.", AnswerVerdict.SAME),
        ("no", AnswerVerdict.DIFFERENT),
        ("unsure", AnswerVerdict.UNKNOWN),
        ("Well, that depends", AnswerVerdict.UNKNOWN),
    ],
)
def test_judge_decides_what_nothing_else_can(said: str, verdict: AnswerVerdict) -> None:
    """It is asked once, and only where it may be."""

    async def run() -> tuple[AnswerVerdict, AnswerVerdict, int]:
        upstream = Upstream(lambda exchange: exchange.answer(chat_answer(said)))
        judge = judge_of(upstream)
        comparison = Comparison(WordEncoder(), judge)
        asked = await comparison.compare("which button", *VAGUE, may_ask=True)
        unasked = await comparison.compare("which button", *VAGUE, may_ask=False)
        await comparison.compare("which button", "It costs 5.", "It costs 6.", may_ask=True)
        return asked, unasked, len(upstream.exchanges)

    assert asyncio.run(run()) == (verdict, AnswerVerdict.UNKNOWN, 1)


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
