"""Lower priorities keep the backends busy, and a call of a higher one that comes then begins nearly as if alone."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from backends.clock import Clock
from backends.protocol import Call, Priority, Reply
from gateway.simulate.virtual_loop import VirtualClock
from tests.support.calls import make_call
from tests.support.faults import percentile
from tests.support.policy.admission import Desk, Site, answered, in_virtual_time

PROMPT_S, REST_S = 0.04, 0.2


class OneByOne(Desk):
    """Computes prompts one after the other; the first token comes a moment after its prompt, others' or not."""

    def __init__(self, name: str, clock: Clock) -> None:
        super().__init__(name, clock)
        self._free_at = 0.0

    async def send(self, call: Call) -> Reply:
        """A stream, once its first token is there."""
        now = self._clock.now()
        self._free_at = max(now, self._free_at) + PROMPT_S
        self.first_s = self._free_at - now + REST_S
        return await super().send(call)


@pytest.mark.parametrize("seed", [1, 2])
def test_admission_yielding_lets_the_highest_begin_nearly_as_if_alone(seed: int) -> None:
    """Three times what two backends can do, a tenth of it high: the high ones wait for a prompt or two, in the worst
    hundredth, and as much is answered as without them."""
    first_s: list[float] = []
    ends: list[str] = []

    async def main(clock: VirtualClock) -> None:
        random = Random(seed)
        desks = {name: OneByOne(name, clock) for name in ("one", "two")}
        policy = {"slo": {"ttft": "2s", "ttft_per_1k_prompt": "0s", "tpot": "1s"}, "admission": {}}
        async with Site(clock, desks, all=policy) as site, asyncio.TaskGroup() as callers:

            async def ask(number: int, priority: Priority) -> None:
                call = make_call(
                    f"{number:06d}{'x' * 400}", stream=True, deadline=clock.now() + 60.0, priority=priority
                )
                came_at = clock.now()
                end = await answered(site.pool(), call)
                ends.append(end)
                if priority is Priority.HIGH and end == "answered":
                    assert call.facts.first_token_at is not None
                    first_s.append(call.facts.first_token_at - came_at)

            for number in range(60):
                callers.create_task(ask(number, Priority.HIGH))
                await clock.sleep(0.25)
            for number in range(60, 60 + 150 * 40):
                if number == 60 + 150 * 10:
                    # Where the backends' knees are has been found by now.
                    first_s.clear()
                    ends.clear()
                priority = random.choices([*Priority], [0.1, 0.45, 0.45])[0]
                callers.create_task(ask(number, priority))
                await clock.sleep(random.expovariate(150.0))

    in_virtual_time(main)

    alone_s = PROMPT_S + REST_S
    assert percentile(first_s, 0.99) <= alone_s + 2.5 * PROMPT_S
    assert percentile(first_s, 0.5) <= alone_s + 0.75 * PROMPT_S
    assert ends.count("answered") * PROMPT_S / 2 >= 0.9 * 30
