"""One backend of eight becomes ten times slower for a while: balancing keeps new prompts from it."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path
from random import Random

from backends.clock import Clock
from backends.protocol import Call, Reply
from backends.registry import GROUP, Kind, Registry
from backends.simulation.simulated import Simulated, SimulatedConfig
from gateway.cli.loading import read_policy
from gateway.simulate.report import is_in_time
from gateway.simulate.simulated_fleet import parse_fleets
from gateway.simulate.slo import parse_slo
from gateway.simulate.study import StudyOptions, simulate
from gateway.simulate.traces import Trace, TraceRequest
from policies.stage import Stage

FROZEN, FROM_S, TO_S = "h200-8b-1", 30.0, 50.0
TIMES = 10.0


class Freezing(Stage):
    """A replica, and one ten times slower that takes what comes between two moments."""

    def __init__(self, name: str, config: SimulatedConfig, clock: Clock) -> None:
        super().__init__(Simulated(name, config, clock))
        self._slow = Simulated(name, config.model_copy(update={"speed": config.speed / TIMES}), clock)
        self._clock = clock

    async def aclose(self) -> None:
        """Close both."""
        await self._slow.aclose()
        await super().aclose()

    async def send(self, call: Call) -> Reply:
        """By the one whose time it is."""
        is_frozen = self.name == FROZEN and FROM_S <= self._clock.now() < TO_S
        return await (self._slow if is_frozen else self._inner).send(call)


KIND = Kind(config=SimulatedConfig, build=Freezing)


class Point(EntryPoint):
    """Names the kind of this file, which no package has."""

    def load(self) -> Kind:
        """The kind."""
        return KIND


def test_balancing_keeps_new_prompts_from_a_backend_that_freezes_and_comes_back_to_it(tmp_path: Path) -> None:
    """After a few late first tokens hardly any call goes there, nearly all are in time, and later it has its share."""
    policy = tmp_path / "policy.yaml"
    policy.write_text(
        "version: 1\nbackends: {any: {type: simulated}}\n"
        "routes: [{name: all, match: {models: ['*']}, backends: [{ref: any}]}]\n",
        encoding="utf-8",
    )
    random, at, requests = Random(2), 0.0, []
    for number in range(12_000):
        at += random.expovariate(150.0)
        requests.append(
            TraceRequest(at, int(random.lognormvariate(6.6, 0.7)) + 1, int(random.lognormvariate(4, 0.7)) + 1, number)
        )
    registry = Registry({"simulated": Point("simulated", "", GROUP)})
    asked = StudyOptions(parse_slo("ttft=400ms,ttft_per_1k_prompt=0s"), seed=1)

    result = simulate(
        read_policy(policy, no_env=True),
        parse_fleets("8")[0],
        Trace("t", "slipstream", tuple(requests), 0),
        asked,
        lambda *_: None,
        registry=registry,
    )

    def there(since_s: float, to_s: float) -> list[bool]:
        return [
            is_in_time(outcome)
            for outcome in result.outcomes
            if outcome.backend == FROZEN and since_s <= outcome.arrived_at < to_s
        ]

    assert len(there(10, FROM_S)) > 200
    assert len(there(FROM_S, TO_S)) <= 15
    assert there(FROM_S, TO_S).count(False) <= 5
    assert len(there(60, 80)) > 50
