"""What autoscalers are told while calls come, in virtual time, on simulated replicas behind the real stacks."""

from __future__ import annotations

import asyncio
from pathlib import Path

import yaml

from backends.errors import SlipstreamError
from backends.registry import Registry
from gateway.assembly.assemble import assemble
from gateway.assembly.stores import build_store
from gateway.cli.loading import read_policy
from gateway.runtime import Runtime
from gateway.simulate.trace_calls import CallMaker
from gateway.simulate.traces import TraceRequest
from gateway.simulate.virtual_loop import VirtualClock
from policies.autoscale import LOOK_EVERY_S, Autoscale, ScalingSignals
from policies.schema import RoutePolicy
from tests.support.policy.admission import Desk, Site, asking, client, in_virtual_time, learned

POLICY = {
    "version": 1,
    "backends": {"a": {"type": "simulated"}, "b": {"type": "simulated"}},
    "routes": [
        {
            "name": "all",
            "match": {"models": ["*"]},
            "backends": [{"ref": "a"}, {"ref": "b"}],
            "slo": {"ttft": "2s"},
            "admission": {},
        }
    ],
}


def _signals(folder: Path, per_second: float, seconds: float) -> ScalingSignals:
    """What is told after so long of prompts of 4,000 tokens, about 0.11 s of work each."""
    path = folder / "policy.yaml"
    path.write_text(yaml.safe_dump(POLICY))
    loaded = read_policy(path, no_env=True)

    async def run(clock: VirtualClock) -> ScalingSignals:
        runtime = assemble(loaded, clock, build_store(loaded.policy.stores, clock), Registry(), seed=1)
        parts = [*runtime.leaves.values(), *runtime.resources]
        for part in parts:
            await part.open()
        async with asyncio.TaskGroup() as clients:
            for number in range(round(per_second * seconds)):
                clients.create_task(_ask(runtime, clock, number))
                await clock.sleep(1 / per_second)
            assert runtime.autoscale is not None
            signals = runtime.autoscale.signals("all")
        for part in reversed(parts):
            await part.aclose()
        return signals

    return in_virtual_time(run)


async def _ask(runtime: Runtime, clock: VirtualClock, number: int) -> None:
    stack = runtime.stacks["all"]
    assert stack.slo is not None
    request = TraceRequest(line=number, at_s=0.0, prompt_tokens=4000, output_tokens=20)
    call = CallMaker("m", {}).call(
        request, number=number, route="all", timeouts=stack.timeouts, slo=stack.slo, now=clock.now()
    )
    try:
        reply = await stack.backend.send(call)
    except SlipstreamError:
        return
    while reply.stream is not None and await reply.stream.read():
        pass
    await reply.aclose()


def test_signals_of_a_pool_with_too_much_to_do_ask_for_more(tmp_path: Path) -> None:
    """Two replicas take about 18 of these a second; at 27 they turn calls away, and more replicas are wanted."""
    signals = _signals(tmp_path, 27, 90)
    assert signals.replicas == 2
    assert signals.shed_share > 0.1
    assert signals.prefill_load > 2
    assert signals.desired_replicas >= 3


def test_signals_of_a_pool_with_little_to_do_ask_for_fewer_in_the_end(tmp_path: Path) -> None:
    """A tenth of what they can do, for more than five minutes: one replica is enough, and nothing gets worse."""
    signals = _signals(tmp_path, 2, 330)
    assert signals.desired_replicas == 1
    assert signals.shed_share == 0
    assert 0 < signals.prefill_load < 0.5
    assert signals.time_to_breach_s > 60


def test_signals_of_a_backend_that_changes_its_speed_do_not_count_old_refusals_again() -> None:
    """What was turned away was work then; that the backend has become ten times slower makes no more of it."""

    async def main(clock: VirtualClock) -> list[float]:
        sections = {"slo": {"ttft": "2s", "ttft_per_1k_prompt": "0s"}, "admission": {}}
        policy = RoutePolicy.model_validate(
            {"name": "all", "match": {"models": ["*"]}, "backends": [{"ref": "only"}], **sections}
        )
        async with Site(clock, {"only": Desk("only", clock)}, all=sections) as site:
            autoscale = Autoscale([policy], site.fleet, site.admission, clock)
            learned(site.replicas[0])
            await autoscale.open()
            running = client(site.pool(), asking(clock=clock, total_s=100.0))
            await clock.sleep(0.1)
            assert await client(site.pool(), asking(1_000_000, clock=clock)) == "slo_shed"
            loads = []
            for _ in range(3):
                await clock.sleep(LOOK_EVERY_S)
                loads.append(autoscale.signals("all").prefill_load)
                site.replicas[0].model.seconds_per_token *= 10
            await running
            await autoscale.aclose()
            return loads

    loads = in_virtual_time(main)
    assert loads[0] > 0
    assert loads[1:] == [0, 0]
