"""Routes with a draft, put together: their stages, their caches' names, their prices, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from backends.clock import SystemClock
from backends.errors import ConfigurationError
from backends.registry import Registry
from gateway.assembly.assemble import assemble
from gateway.assembly.site import Site
from gateway.assembly.stores import build_store
from gateway.runtime import Runtime
from policies.cache.settings import CachePolicy
from policies.mirror.stage import Mirror
from policies.policy_file.load import parse_policy
from policies.schema import RoutePolicy
from policies.speculation.cascade.calibration import calibrate, write_calibration

POLICY = """
version: 1
backends: {small: {type: openai, preset: vllm}, big: {type: openai, preset: vllm}}
routes:
  - name: all
    match: {models: ["*"]}
    backends: [{ref: big}]
    cache: {exact: {ttl: 60s}}
    speculative: SECTION
"""
CASCADE = "{mode: cascade, draft: small, accept: logprob, calibration: PATH, quality: 0.9}"


def runtime_of(section: str, previous: Runtime | None = None) -> Runtime:
    """A runtime with that section. Raises: ConfigurationError."""
    clock, registry = SystemClock(), Registry()
    text = POLICY.replace("SECTION", section).encode()
    loaded = parse_policy(text, Path("policy.yaml"), {}, lambda kind: registry.kind(kind).config)
    return assemble(loaded, clock, build_store(loaded.policy.stores, clock), registry, previous)


def test_race_stands_under_the_caches_and_outlives_a_reload() -> None:
    """Its stack is the cache, the race and the target's pool; the draft is one of its leaves."""
    runtime = runtime_of("{mode: race, draft: small}")
    stack = runtime.stacks["all"]

    assert [type(stage).__name__ for stage in stack.stages] == ["ExactCache", "Race", "Pool"]
    assert [leaf.name for leaf in stack.leaves] == ["big", "small"]
    assert runtime_of("{mode: race, draft: small}", runtime).stacks["all"] is stack


def test_cascade_is_built_of_its_calibration_and_anew_at_a_reload(tmp_path: Path) -> None:
    """The file may have changed, though its name has not."""
    scores = np.repeat([-0.1, -2.0], 100)
    weak = (scores > -1).astype(float)
    made = calibrate("logprob", scores, weak, np.ones(200), np.random.default_rng(0))
    write_calibration(tmp_path / "pair", made)
    section = CASCADE.replace("PATH", str(tmp_path / "pair"))
    runtime = runtime_of(section)
    stack = runtime.stacks["all"]

    assert [type(stage).__name__ for stage in stack.stages] == ["ExactCache", "Cascade", "Pool"]
    assert runtime_of(section, runtime).stacks["all"] is not stack


def test_cascade_without_its_file_is_refused_with_the_command_that_makes_it(tmp_path: Path) -> None:
    """Before anything comes into force."""
    with pytest.raises(ConfigurationError, match=r'route "all": .*no such file: `slipstream calibrate --on'):
        runtime_of(CASCADE.replace("PATH", str(tmp_path / "gone")))


def test_answers_of_a_draft_are_kept_under_a_name_of_their_own() -> None:
    """Whoever takes the draft away, or asks more of it, finds none of them."""

    def epoch(section: dict[str, object] | None) -> str:
        route = RoutePolicy.model_validate(
            {"name": "r", "match": {"models": ["*"]}, "backends": [{"ref": "big"}], "speculative": section}
        )
        return Site(route, None, {}).cache(CachePolicy(epoch="e")).epoch  # type: ignore[arg-type]  # no part is asked

    cascade = {"mode": "cascade", "draft": "small", "calibration": "pair"}
    names = [
        epoch(None),
        epoch(cascade),
        epoch({**cascade, "quality": 0.99}),
        epoch({"mode": "race", "draft": "small"}),
    ]
    assert names[0] == "e"
    assert len(set(names)) == 4


def test_mirror_keeps_what_it_has_found_out_over_a_reload_unless_its_section_changes() -> None:
    """Evidence about another candidate, or for another rule, says nothing."""
    pytest.importorskip("faiss")
    section = "{mode: race, draft: small, model: other}\n    mirror: {to: small, share: 0.5}"
    runtime = runtime_of(section)
    before = runtime.stacks["all"].stage(Mirror)
    assert before is not None
    before.evidence.note_pair("theirs")

    same = runtime_of(section, runtime).stacks["all"].stage(Mirror)
    other = runtime_of(section.replace("0.5", "0.6"), runtime).stacks["all"].stage(Mirror)
    assert [type(stage).__name__ for stage in runtime.stacks["all"].stages][:3] == ["ExactCache", "Mirror", "Race"]
    assert same is not None
    assert same is not before
    assert same.evidence is before.evidence
    assert other is not None
    assert other.evidence.num_pairs == 0
