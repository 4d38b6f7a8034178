"""Prompts in engines' own words: whose blocks they are, who shares a way of writing, and routes that have one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest

from backends.clock import SystemClock
from backends.errors import ConfigurationError
from backends.kv_events import KvEventsConfig
from policies.pool.load.demand import hash_blocks, read_demand
from policies.pool.load.fleet import Fleet
from policies.pool.prompts.engine_text import EngineText
from policies.schema import RoutePolicy
from tests.support.engine.engine_words import WORD_BYTES, Words, call_for, engine_text
from tests.support.policy.pool import Played

TEXT = "a" * 40
PROGRAM = """
import sys
from pathlib import Path
from backends.clock import SystemClock
from backends.errors import ConfigurationError
from backends.registry import Registry
from gateway.assembly.assemble import assemble
from gateway.assembly.stores import build_store
from policies.policy_file.load import load_policy

print([name for name in ("zmq", "policies.pool.prompts.kv_feed", "tokenizers") if name in sys.modules])
import backends.serving.prompt_text
print("torch" in sys.modules)
sys.modules["zmq"] = None
registry, clock = Registry(), SystemClock()
loaded = load_policy(Path(sys.argv[1]), {}, lambda kind: registry.kind(kind).config)
try:
    assemble(loaded, clock, build_store(loaded.policy.stores, clock), registry)
except ConfigurationError as error:
    print(error)
"""


def _route(*backends: dict[str, Any]) -> RoutePolicy:
    return RoutePolicy.model_validate({"name": "r", "match": {"models": ["*"]}, "backends": backends})


def _fleet(route: RoutePolicy, texts: dict[str, EngineText]) -> Fleet:
    leaves = {part.ref: Played(part.ref) for part in route.backends}
    return Fleet([route], leaves, SystemClock(), random=Random(1), texts=texts)


def test_engine_text_of_an_adapter_begins_with_its_name_once_it_is_known() -> None:
    """The engine tells of adapters; until then any model's name may be the model's own."""
    text = engine_text()
    call = call_for(TEXT, model="tuned")
    before = text.read(call)
    text.note_adapter("tuned")

    after, renamed = text.read(call), text.read(call_for(TEXT), "tuned")

    assert before == text.read(call_for(TEXT, model="any"))
    assert after == renamed == (b"a" * 40 * WORD_BYTES, text.seed("tuned", ()))


def test_engine_text_is_unknown_until_its_tokenizer_is_read() -> None:
    """Nothing waits for it."""
    config = KvEventsConfig(endpoint="tcp://h:1", tokenizer="here")

    assert EngineText(config, lambda folder: Words()).read(call_for(TEXT)) is None


def test_routing_reads_a_call_in_the_words_of_the_engines_behind_it() -> None:
    """Its length and its blocks are those of what the engine reads, and do not depend on the client's JSON."""
    text = engine_text()
    route = _route({"ref": "a", "model": "tuned"}, {"ref": "b", "model": "tuned"})
    text.note_adapter("tuned")
    routing = _fleet(route, {"a": text, "b": text}).routing("r")
    assert routing is not None

    demand = routing.read(call_for(TEXT, model="mine", top_p=1))

    assert demand.blocks == hash_blocks(b"a" * 40 * WORD_BYTES, text.seed("tuned", ())) != []
    assert demand.tokens == 10 * WORD_BYTES


def test_routing_reads_what_engines_write_in_ways_unknown_as_json() -> None:
    """As without a feed: what they were sent is guessed."""
    routing = _fleet(_route({"ref": "a"}, {"ref": "b"}), {"a": engine_text()}).routing("r")
    assert routing is not None
    call = call_for(TEXT, messages=[{"role": "user", "content": [{"type": "image_url"}, "x" * 9000]}])

    assert routing.read(call).blocks == read_demand(call, wants_blocks=True).blocks != []


def test_fleet_refuses_a_route_whose_backends_write_in_different_ways() -> None:
    """A prompt has one list of blocks."""
    texts = {"a": engine_text("tenant"), "b": engine_text("global")}

    with pytest.raises(ConfigurationError, match=r'route "r": .* different `tokenizer` or `scope`'):
        _fleet(_route({"ref": "a"}, {"ref": "b"}), texts)


def test_fleet_knows_the_slots_of_a_backend() -> None:
    """One for each model that it is asked for, none where nobody balances by load."""
    fleet = _fleet(_route({"ref": "a", "model": "x"}, {"ref": "a", "model": "y"}, {"ref": "b"}), {})

    assert [len(fleet.slots(name)) for name in "ab"] == [2, 1]


def test_kv_events_without_the_extra_say_what_to_install(tmp_path: Path) -> None:
    """A gateway without feeds loads nothing of it, one with feeds no PyTorch."""
    backend = '{type: openai, base_url: "http://h/v1", kv_events: {endpoint: "tcp://h:1", tokenizer: t}}'
    route = '{name: r, match: {models: ["*"]}, backends: [{ref: a}, {ref: b}]}'
    policy = tmp_path / "policy.yaml"
    policy.write_text(f"version: 1\nbackends: {{a: {backend}, b: {backend}}}\nroutes: [{route}]\n")

    done = subprocess.run([sys.executable, "-c", PROGRAM, str(policy)], capture_output=True, text=True, timeout=60)

    assert done.stdout.splitlines() == [
        "[]",
        "False",
        "kv_events lacks zmq: pip install 'slipstream-gateway[kv-events]'",
    ], done.stderr
