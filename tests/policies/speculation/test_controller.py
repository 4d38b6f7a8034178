"""When a draft is on: by seconds a token with it and without, and never for long where it does not pay."""

from __future__ import annotations

import random

import pytest

from policies.speculation.controller import Controller


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
    """It is tried for 32 tokens after pauses that double up to 1,024."""
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
    """Forty runs of conditions that change every 300 to 4,000 tokens, with noise: never much slower than alone."""
    worst = 0.0
    for seed in range(40):
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
    """A draft that is down is asked again after 64 tokens, then 128, and at last 1,024."""
    controller, pauses = Controller(), []
    run(controller, 1.0, 0.5, 16)
    for _ in range(7):
        controller.fail()
        pauses.append(0)
        while not controller.is_on:
            run(controller, 1.0, 0.5, 1)
            pauses[-1] += 1

    assert pauses == [64, 128, 256, 512, 1024, 1024, 1024]
