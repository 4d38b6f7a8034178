"""What the simplest policy that has somewhere else to go makes of each way in which a provider fails."""

from __future__ import annotations

from collections import Counter
from importlib import resources
from pathlib import Path

from gateway.cli.loading import read_policy
from gateway.selftest.bench import Bench
from gateway.selftest.conduct import conduct
from gateway.selftest.failover.checks import CHECKS
from gateway.selftest.failover.stage import simplest
from gateway.selftest.subject import copy_of
from gateway.selftest.verdict import CheckVerdict


async def test_failover_simplest_policy_holds_thirteen_and_fails_none(tmp_path: Path) -> None:
    """Only streams that break in the middle are not answered in full, and these end with a clear error."""
    with resources.as_file(resources.files("gateway.selftest").joinpath("everything.yaml")) as path:
        subject = copy_of(read_policy(path, no_env=True), tmp_path)
    async with Bench(subject, tmp_path, is_quick=True) as bench:
        results = await conduct(CHECKS, [bench], lambda *_: None)
    verdicts = {result.check.id: result.outcome.verdict for result in results}

    assert Counter(verdicts.values()) == {CheckVerdict.PASS: 13, CheckVerdict.SAFE: 3}, results
    assert {name for name, verdict in verdicts.items() if verdict is CheckVerdict.SAFE} == {"S8", "S9", "S14"}


def test_failover_simplest_policy_says_nothing_but_fallbacks() -> None:
    """What is tried are the defaults."""
    route = simplest("http://a/v1", "http://b/v1")["routes"][0]

    assert route.keys() == {"name", "match", "backends", "fallbacks"}
    assert route["fallbacks"] == {"routes": ["spare"]}
