"""A policy tried on calls that have been: what the exact cache has answered is asked again where there is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from backends.registry import Registry
from gateway.dashboard.policy.job import PastCall
from gateway.dashboard.policy.trial import try_on
from policies.policy_file.load import LoadedPolicy, parse_policy

POLICY = """
version: 1
backends: {up: {type: scripted, price: {input_per_1m: 2, output_per_1m: 8}}}
routes: [{name: all, match: {models: ["*"]}, backends: [{ref: up}]CACHE}]
"""


def loaded(cache: str) -> LoadedPolicy:
    registry = Registry()
    text = POLICY.replace("CACHE", cache).encode()
    return parse_policy(text, Path("policy.yaml"), {}, lambda kind: registry.kind(kind).config)


def calls() -> list[PastCall]:
    """Thirty that were streamed, each again from the cache, and then by another tenant, who shares nothing."""
    made = []
    for n in range(30):
        at_us = 1_793_000_000_000_000 + n * 10_000_000
        tokens = (100 + n, 0, 20 + n)
        made.append(PastCall(at_us, "", "one", "m", "up", "miss", *tokens, 0, 90_000, 500_000 + n * 1000))
        made.append(PastCall(at_us + 4_000_000, "", "one", "m", "", "hit", *tokens, None, 900, 1000))
        made.append(PastCall(at_us + 6_000_000, "", "two", "m", "up", "miss", *tokens, 0, 90_000, 500_000 + n * 1000))
    # What it repeats was before all of these.
    made.append(PastCall(1_793_000_400_000_000, "", "one", "m", "", "hit", 5000, 0, 70, None, 900, 1000))
    return made


@pytest.mark.parametrize(
    ("old", "new", "shares"),
    [
        (", cache: {}", "", (30 / 91, 0)),
        ("", ", cache: {}", (0, 30 / 91)),
        (", cache: {exact: {ttl: 1s}}", ", cache: {exact: {ttl: 1h}}", (0, 30 / 91)),
    ],
)
def test_hits_are_those_of_each_policy(old: str, new: str, shares: tuple[float, float]) -> None:
    """With a cache they are answered from there and cost nothing; without, or with one that forgets, they are asked."""
    said: dict[str, Any] = {}
    try_on(calls(), loaded(old), loaded(new), lambda **message: said.update(message))

    results = said["simulated"]["results"]
    assert [one["cache_hit_share"] for one in results] == pytest.approx(list(shares))
    assert [one["backends"] for one in results] == [{"up": 91 - round(91 * share)} for share in shares]
    costs = [float(one["cost"]) for one in results]
    assert (costs[0] < costs[1]) == (shares[0] > shares[1])
