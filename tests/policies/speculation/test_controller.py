"""When a draft is on: by seconds a token with it and without, and never for long where it does not pay."""

from __future__ import annotations

import random

import pytest

from policies.speculation.control.controller import Controller


def run(
    controller: Controller, alone_s: float, drafted_s: float, tokens: int, *, rng: random.Random | None = None
) -> float:
    """Seconds that an answer of so many tokens takes, as the controller has it drafted or not."""
    total = 0.0
    for _ in range(tokens):
        is_on = controller.is_on
        seconds = (drafted_s if is_on else alone_s) * (rng.uniform(0.5, 1.5) if rng else 1.0)
        controller.note(1, seconds, was_drafted=is_on)
        total += seconds
    return total


def test_a_draft_that_pays_is_on_but_for_learning() -> None:
    """Sixteen tokens at first, twelve every 1,500 later."""
    controller = Controller()

    seconds = run(controller, 1.0, 0.25, 20_000)

    assert controller.is_on
    assert controller.gain == pytest.approx(4.0)
    assert seconds < 1.03 * 0.25 * 20_000


@pytest.mark.parametrize("drafted_s", [1.0, 1.04, 1.3, 2.0])
def test_a_draft_that_does_not_pay_costs_little(drafted_s: float) -> None:
    """It is tried for 32 tokens after pauses that double up to 512."""
    controller = Controller()

    seconds = run(controller, 1.0, drafted_s, 20_000)

    assert seconds <= (1.03 + 0.016 * max(0, drafted_s - 1.3) * 3) * 20_000


def test_a_draft_that_collapses_is_left_and_found_again() -> None:
    """After it has paid for long it is left within some hundred tokens, and on again once it pays."""
    controller = Controller()
    run(controller, 1.0, 0.3, 5_000)
    collapsed = run(controller, 1.0, 1.5, 5_000)
    again = run(controller, 1.0, 0.3, 5_000)

    assert collapsed < 1.04 * 5_000
    assert again < 0.55 * 5_000


def test_a_target_that_grows_slow_alone_is_noticed() -> None:
    """What a token takes alone is measured anew: a draft that stays as it was pays then."""
    controller = Controller()
    run(controller, 1.0, 1.0, 3_000)

    seconds = run(controller, 3.0, 1.0, 6_000)

    assert seconds < 1.6 * 6_000


def test_conditions_that_jump_cost_no_more_than_three_percent_in_the_end() -> None:
    """Fifteen runs of conditions that change every 300 to 4,000 tokens, with noise: never much slower than alone."""
    worst = 0.0
    for seed in range(15):
        rng, controller = random.Random(seed), Controller()
        alone = spent = 0.0
        for _ in range(30):
            length, alone_s = rng.randint(300, 4000), rng.uniform(0.5, 2.0)
            drafted_s = alone_s / rng.choice((0.6, 0.8, 0.95, 1.0, 1.1, 1.5, 2.5, 4.0))
            alone += length * alone_s
            spent += run(controller, alone_s, drafted_s, length, rng=rng)
        worst = max(worst, spent / alone)

    assert worst <= 1.03


def test_failures_pause_longer_each_time() -> None:
    """A draft that is down is asked again after 64 tokens, then 128, and at last 512."""
    controller, pauses = Controller(), []
    run(controller, 1.0, 0.5, 16)
    for _ in range(7):
        controller.fail()
        pauses.append(0)
        while not controller.is_on:
            run(controller, 1.0, 0.5, 1)
            pauses[-1] += 1

    assert pauses == [64, 128, 256, 512, 512, 512, 512]


def run_rounds(
    controller: Controller,
    tokens: int,
    *,
    acceptance: float,
    way_s: float,
    row: float = 0.05,
    tells_step: bool = False,
    load: int = 1,
    seed: int = 1,
) -> tuple[float, list[int]]:
    """Seconds of an answer over rounds and how long drafts were. A token alone takes 1 s, one of the draft 0.1 s; that
    goes on while it is checked.
    """
    rng, total, come, lengths, ready = random.Random(seed), 0.0, 0, [], 0
    while come < tokens:
        length = controller.draft_tokens(8, load, num_ready=ready)
        lengths.append(length)
        if length:
            accepted = next((place for place in range(length) if rng.random() >= acceptance), length)
            step_s = 1 + row * length
            told_s = step_s if tells_step else None
            draft_s = 0.1 * max(0, length - ready)
            controller.times.add_draft(0.1, length - 1, 0.1 * (length - 1))
            controller.told(length, accepted, draft_s=draft_s, verify_s=step_s + way_s, step_s=told_s, load=load)
            total, come = total + draft_s + step_s + way_s, come + accepted + 1
            goes_on = accepted == length and rng.random() < acceptance
            ready = max(0, ready - length) + int((step_s + way_s) / 0.1) - 1 if goes_on else 0
        else:
            controller.note(1, 1.0, was_drafted=False, load=load)
            total, come = total + 1, come + 1
    return total, lengths


def test_rounds_that_pay_go_as_far_as_pays() -> None:
    """A good draft near by goes far ahead, a middling one less far."""
    good, middling = Controller(), Controller()
    seconds, lengths = run_rounds(good, 3000, acceptance=0.95, way_s=0.05)
    _, shorter = run_rounds(middling, 3000, acceptance=0.5, way_s=0.05)

    assert lengths[-20:].count(8) > 10
    assert seconds < 0.4 * 3000
    assert max(shorter[-20:]) <= 3


def test_rounds_over_a_long_way_stay_off_by_themselves() -> None:
    """Over four steps' time no round pays: what it costs to know that is some percent at the most."""
    controller = Controller()

    seconds, lengths = run_rounds(controller, 20_000, acceptance=0.77, way_s=4.0)

    assert seconds < 1.01 * 20_000
    assert set(lengths[-500:]) <= {0, 2}


@pytest.mark.parametrize("late", [0, 1, 2])
def test_one_late_round_of_the_first_three_does_not_keep_rounds_off(late: int) -> None:
    """The middle one of the first three says what rounds take; from then on they are judged by all."""
    controller = Controller()
    controller.note(16, 16.0, was_drafted=False)
    for number in range(3):
        assert controller.draft_tokens(8) == 2
        controller.times.add_draft(0.1, 1, 0.1)
        controller.told(2, 2, draft_s=0.2, verify_s=9.0 if number == late else 1.2)

    assert controller.draft_tokens(8) > 2


def test_a_token_alone_is_learned_anew_the_more_seldom_the_more_that_takes() -> None:
    """Where an answer goes on alone to its end, some two percent of all tokens do; where four tokens do, fewer."""
    rng, controller, alone, tokens = random.Random(1), Controller(), 0, 0
    for number in range(4000):
        if controller.draft_tokens(8):
            accepted = next((place for place in range(8) if rng.random() >= 0.9), 8)
            controller.times.add_draft(0.1, 7, 0.7)
            controller.told(8, accepted, draft_s=0.8, verify_s=1.2)
            tokens += accepted + 1
        else:
            controller.note(100, 100.0, was_drafted=False)
            alone, tokens = alone + 100 * (number > 10), tokens + 100

    assert 0 < alone < 0.03 * tokens


def test_a_full_target_gets_no_drafts() -> None:
    """At the load at which a row is as dear as a step there are none; at the load before that they go on."""
    controller = Controller()
    run_rounds(controller, 1000, acceptance=0.8, way_s=0.05, tells_step=True)
    seconds, lengths = run_rounds(controller, 1000, acceptance=0.8, way_s=0.05, row=1.0, tells_step=True, load=32)

    assert lengths[5:].count(0) > 0.98 * len(lengths[5:])
    assert seconds < 1.03 * 1000
    assert controller.draft_tokens(0, 1) == 0
    run_rounds(controller, 200, acceptance=0.8, way_s=0.05, tells_step=True)
    assert controller.draft_tokens(8) > 1


def test_an_answer_that_was_scored_turns_rounds_on_without_a_try() -> None:
    """What was learned off the path counts as what was learned on it."""
    controller = Controller()
    run_rounds(controller, 400, acceptance=0.1, way_s=0.5)
    assert controller.draft_tokens(8) == 0

    for _ in range(40):
        controller.scored(8, 8)

    assert controller.draft_tokens(8) == 8


def test_what_drafts_gain_callers_and_the_target_is_told_apart() -> None:
    """Over a way of a step's time an answer comes hardly sooner, and the target's second still brings more tokens."""
    controller = Controller()
    run_rounds(controller, 500, acceptance=0.9, way_s=1.0, tells_step=True)

    assert controller.capacity_gain(8) > 2 * controller.gain > 0


def test_one_stall_says_little_about_a_token_alone() -> None:
    """A token that took a thousand times as long is none of those that drafts are weighed against."""
    controller = Controller()
    run_rounds(controller, 200, acceptance=0.3, way_s=2.0)
    controller.note(1, 1000.0, was_drafted=False)

    assert controller.times.alone_s() < 1.5


def test_another_pace_alone_is_believed_within_few_tokens() -> None:
    """Half as slow again is no chance where tokens vary by a tenth, though most of what was seen says otherwise."""
    rng, controller = random.Random(4), Controller()
    for _ in range(200):
        controller.note(1, rng.lognormvariate(0, 0.1), was_drafted=False)
    before = controller.times.alone_s()
    for _ in range(6):
        controller.note(1, 1.5 * rng.lognormvariate(0, 0.1), was_drafted=False)

    assert 0.95 < before < 1.05
    assert 1.35 < controller.times.alone_s() < 1.65


def test_tokens_that_come_in_threes_take_what_they_take_together() -> None:
    """The two that come with another take nothing, and are no other pace."""
    controller, seen = Controller(), []
    for number in range(600):
        controller.note(1, 3.0 if number % 3 == 0 else 0.001, was_drafted=False)
        seen.append(controller.times.alone_s())

    assert 0.8 < min(seen[100:]) <= max(seen[100:]) < 1.25


def test_a_target_that_changes_its_pace_has_its_draft_looked_at_anew() -> None:
    """Three short rounds at once, though the purse is empty; noise of a fifth is no change."""
    rng, controller = random.Random(2), Controller()
    run_rounds(controller, 3000, acceptance=0.77, way_s=4.0)
    for _ in range(200):
        controller.note(1, rng.uniform(0.8, 1.2), was_drafted=False)
    while controller.draft_tokens(8):
        controller.told(2, 0, draft_s=0.2, verify_s=5.0)
    before = controller.times.is_known
    controller.note(32, 32 * 3.0, was_drafted=False)

    assert before
    for _ in range(3):
        assert controller.draft_tokens(8) == 2
        controller.told(2, 0, draft_s=0.2, verify_s=50.0)


def test_a_draft_that_is_down_is_not_asked_sooner_for_a_change_of_pace() -> None:
    """One that did not pay is."""
    dead, idle = Controller(), Controller()
    for controller, leave in ((dead, dead.fail), (idle, None)):
        controller.note(32, 32.0, was_drafted=False)
        if leave is not None:
            leave()
        else:
            controller.note(64, 200.0, was_drafted=True)
        assert not controller.is_on
        controller.note(20, 60.0, was_drafted=False)

    assert (dead.is_on, idle.is_on) == (False, True)
