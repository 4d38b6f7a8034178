"""A policy that has been replaced goes with its last call, without waiting for the garbage collector."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from backends.clock import SystemClock
from backends.config import Config
from backends.registry import Registry
from gateway.assembly.assemble import assemble, assemble_in_steps, prepare
from gateway.assembly.stores import build_store
from gateway.runtime import Runtime
from policies.policy_file.load import LoadedPolicy, parse_policy
from policies.pool.load.demand import Demand
from policies.pool.load.match import Match
from policies.schema import StoresPolicy
from tests.support.clock import settle
from tests.support.policy.places import depths

POLICY = """
version: 1
backends:
  a: {{type: scripted}}
  b: {{type: scripted}}
  probed: {{type: openai, base_url: "http://127.0.0.1:9/v1"{health}}}
routes:
  - {{name: other, match: {{models: [o]}}, backends: [{{ref: probed}}]}}
  - {{name: all, match: {{models: ["*"]}}, backends: [{{ref: a}}, {{ref: b}}]{more}}}
# {number}
"""
STAGES = {
    "weighted": ", routing: {policy: weighted}",
    "load": "",
    "cache": ", cache: {exact: {ttl: 60s}, pacing: recorded}",
    "fallback": ", fallbacks: {routes: [other]}",
    "hedge": ", hedge: {}",
    "admission": ", slo: {ttft: 2s}, admission: {}",
    "batching": ", batching: {}",
    "health": "",
    "semantic": ", cache: {semantic: {mode: observe}}",
}


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Nothing goes but by its last reference."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def _load(stage: str, number: int, registry: Registry) -> LoadedPolicy:
    def settings_of(kind: str) -> type[Config]:
        return registry.kind(kind).config

    health = ", health: {interval: 1s}" if stage == "health" else ""
    text = POLICY.format(health=health, more=STAGES[stage], number=number)
    return parse_policy(text.encode(), Path("policy.yaml"), {}, settings_of)


def _parts(runtime: Runtime) -> dict[str, weakref.ref[object]]:
    """Everything of it that is its own and not taken over."""
    stack = runtime.stacks["all"]
    found = {
        "pool": stack.pool,
        "outermost stage": stack.backend,
        "admission": runtime.admission,
        "autoscale": runtime.autoscale,
        "prober": runtime.prober,
        "fleet": runtime.fleet,
    }
    return {name: weakref.ref(part) for name, part in found.items() if part is not None}


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("stage", STAGES)
async def test_replaced_policy_goes_without_the_collector(stage: str) -> None:
    """Whatever its stages are, nothing of it is kept by a cycle, nor by what its successor has taken over."""
    if stage == "semantic" and find_spec("faiss") is None:
        pytest.skip("the extra semantic is not installed")
    clock, registry = SystemClock(), Registry()
    store = build_store(StoresPolicy(), clock)
    old = assemble(_load(stage, 1, registry), clock, store, registry)
    new = assemble(_load(stage, 2, registry), clock, store, registry, old)
    if stage != "semantic":
        # With its encoder, which is opened with the policy, this would take seconds, and what it holds is the same.
        await old.open()
        await new.open(old)
    parts = _parts(old)
    kept = {id(part) for part in (*new.leaves.values(), *new.resources)}
    for part in reversed((*old.leaves.values(), *old.resources, *(stack.backend for stack in old.stacks.values()))):
        if id(part) not in kept:
            await part.aclose()
    del old, part
    await settle()
    left = [name for name, found in parts.items() if found() is not None]
    for part in reversed((*new.leaves.values(), *new.resources, *(stack.backend for stack in new.stacks.values()))):
        await part.aclose()

    assert left == []


async def test_policy_that_was_given_up_half_made_holds_nothing() -> None:
    """Wherever that was: what the index knows of a replica goes with the last policy that was in force with it."""
    clock, registry = SystemClock(), Registry()
    store = build_store(StoresPolicy(), clock)
    old = assemble(_load("load", 1, registry), clock, store, registry)
    num_steps = len(list(assemble_in_steps(prepare(_load("load", 1, registry), clock), clock, store, registry)))
    for number in range(num_steps + 1):
        steps = assemble_in_steps(prepare(_load("load", 2, registry), clock), clock, store, registry, old)
        for _ in range(number):
            next(steps)
        steps.close()
    routing = old.fleet.routing("all") if old.fleet is not None else None
    assert old.fleet is not None
    assert routing is not None
    routing.replicas[0].begin(Match(Demand(64, is_stream=True, blocks=[5], ends=[64])), 0.0)
    known = depths(old.fleet.index, [5])
    await old.fleet.aclose()

    assert known != {}
    assert depths(old.fleet.index, [5]) == {}
