"""Small versions of the commands that measure reliability; `python -m tests.benchmarks.NAME` is the full size."""

from __future__ import annotations

import pytest

from tests.benchmarks.faults import client_gone, cut_streams, fuzz_clients, fuzz_gateway, fuzz_upstream
from tests.benchmarks.gateway import first_event_lag
from tests.support.faults import percentile


async def test_cut_streams_never_reach_the_client_as_whole_nor_the_cache() -> None:
    """Whatever way an upstream cuts, the client can tell, is told why, and nobody is given it again."""
    outcome = await cut_streams.measure(200, seed=2)

    assert outcome.problems == []
    assert outcome.unreadable == 0
    assert outcome.stored == 0
    assert outcome.hits == outcome.asked_again > 0


@pytest.mark.alone
async def test_client_that_leaves_in_any_phase_ends_the_upstream_call() -> None:
    """The upstream is left within 100 ms, and a shared call only when the last client has left."""
    outcome = await client_gone.measure(63, seed=2)

    assert outcome.problems == []
    assert percentile(outcome.all_ms, 0.9) <= 100


async def test_fuzzed_requests_streams_and_upstreams_come_out_in_order() -> None:
    """No 5xx of the gateway's own, no hang, no error of another shape, no byte changed."""
    outcome = await fuzz_gateway.measure(2000, seed=2)

    assert outcome.problems == []
    assert outcome.num_again <= 20
    assert sum(outcome.kinds.values()) == 2000


async def test_lying_upstreams_end_nothing_and_are_charged_for_what_can_be_believed() -> None:
    """No dead loop, no text, no failure of the gateway's own, no wrong charge; a normal call is as ever."""
    outcome = await fuzz_upstream.measure(600, seed=2)

    assert outcome.problems == []
    assert outcome.last_normal == 200
    assert sum(outcome.kinds.values()) == 600


async def test_fuzzed_clients_get_http_or_nothing_and_never_an_answer_without_a_key() -> None:
    """Every good call among them is answered, and the gateway lives and rests in the end."""
    outcome = await fuzz_clients.measure(250, seed=2)

    assert outcome.problems == []
    assert outcome.is_alive
    assert min(outcome.kinds[kind] for kind in ("stranger", "garbage", "caller", "left")) > 20


@pytest.mark.alone
async def test_first_event_does_not_wait_for_an_acknowledgement() -> None:
    """Head and first event come as two small writes and are passed on at once; Nagle would hold them for 40 ms."""
    best_ms = 1000.0
    # Others use this machine too; Nagle would hold up every one of them.
    for _ in range(3):
        through, _ = await first_event_lag.measure(40, rate=80)
        assert len(through.first) == 40
        best_ms = min(best_ms, percentile(through.first, 0.9))

    assert best_ms <= 10
