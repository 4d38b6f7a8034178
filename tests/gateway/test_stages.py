"""The table of stages: what is built by it, and what it says of a call."""

from __future__ import annotations

from pathlib import Path

from backends.clock import SystemClock
from backends.registry import Registry
from gateway.assembly.assemble import assemble
from gateway.assembly.stages import describe_stages
from gateway.assembly.stores import build_store
from gateway.runtime import Runtime
from policies.forecast import as_call
from policies.policy_file.load import parse_policy

POLICY = """
version: 1
backends: {a: {type: openai, preset: vllm}, b: {type: openai, preset: vllm}}
routes:
  - name: plain
    match: {models: [plain]}
    backends: [{ref: a}]
  - name: all
    match: {models: ["*"]}
    backends: [{ref: a}, {ref: b}]
    slo: {ttft: 2s}
    admission: {on_overload: degrade, degrade_to: small}
    fallbacks: {routes: [other]}
    cache: {pacing: recorded, exact: {ttl: 60s}}
    batching: {}
    resume: {mode: best_effort}
  - {name: small, match: {internal: true}, backends: [{ref: a}]}
  - {name: other, match: {internal: true}, backends: [{ref: b}]}
"""


def _runtime() -> Runtime:
    clock, registry = SystemClock(), Registry()
    loaded = parse_policy(POLICY.encode(), Path("policy.yaml"), {}, lambda kind: registry.kind(kind).config)
    return assemble(loaded, clock, build_store(loaded.policy.stores, clock), registry)


def test_stack_has_the_stages_that_its_route_asks_for_in_the_order_of_the_table() -> None:
    """The outermost takes the calls, the pool is the last; a route that asks for nothing has its pool alone."""
    stacks = _runtime().stacks
    stack, plain = stacks["all"], stacks["plain"]

    assert [type(stage).__name__ for stage in stack.stages] == [
        *("Fallback", "Fallback", "Pacing", "ExactCache", "EmbeddingBatches", "Resuming", "Pool")
    ]
    assert stack.backend is stack.stages[0]
    assert stack.pool is stack.stages[-1]
    assert [below.policy.name for below in stack.below] == ["other", "small"]
    assert plain.stages == (plain.pool,)


def test_describe_stages_names_those_of_a_stack_that_a_call_meets() -> None:
    """An embedding is no stream that could break off, and a chat is in no batch."""
    runtime = _runtime()
    stores = runtime.loaded.policy.stores
    route = runtime.stacks["all"].policy

    def names(path: str, *, stream: bool) -> list[str]:
        return [name for name, _ in describe_stages(route, stores, as_call(path, {"stream": stream}, "t"))]

    common = ["fallback", "degrade", "pacing", "exact cache"]
    assert names("/embeddings", stream=False) == [*common, "batching"]
    assert names("/chat/completions", stream=True) == [*common, "resume"]
    assert names("/chat/completions", stream=False) == common
