"""What the dashboard reads off the metrics: the worst of gauges, all of counters, whatever names are made of."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from gateway.dashboard.live import read

HOSTILE = 'a"b\\c\nd</script>'


def test_figures_are_read_by_their_labels() -> None:
    """A backend of two routes is out where it is out of one; a name is what it was before it was written down."""
    registry = CollectorRegistry()
    breaker = Gauge("slipstream_breaker_open", "", ["route", "backend"], registry=registry)
    breaker.labels("one", HOSTILE).set(0)
    breaker.labels("two", HOSTILE).set(1)
    prompts = Counter("slipstream_routing_prompt_tokens", "", ["replica", "kind"], registry=registry)
    prompts.labels("up:m", "all").inc(100)
    prompts.labels("up:m", "matched").inc(25)
    fallbacks = Counter("slipstream_fallbacks", "", ["route", "to"], registry=registry)
    fallbacks.labels("one", "two").inc(3)
    fallbacks.labels("one", "three").inc(4)
    Gauge("vllm:kv_cache_usage_perc", "", ["model_name", "engine"], registry=registry).labels("m", "here").set(0.5)
    Gauge("slipstream_semantic_threshold", "", ["route"], registry=registry).labels("one").set(float("inf"))
    lookups = Counter("slipstream_semantic_lookups", "", ["route", "result"], registry=registry)
    lookups.labels("one", "would_hit").inc(3)
    Gauge("slipstream_policy_file_refused", "", registry=registry).set(1)

    found = read(generate_latest(registry).decode())

    assert found["backends"] == {HOSTILE: {"breaker_open": 1.0}}
    assert found["replicas"] == {"up:m": {"prompt_all": 100.0, "prompt_matched": 25.0}}
    assert found["routes"] == {"one": {"fallbacks": 7.0}}
    assert found["engines"] == {"here": {"kv_used": 0.5}}
    assert found["semantic"] == {"one": {"threshold": float("inf"), "looked_up_would_hit": 3.0}}
