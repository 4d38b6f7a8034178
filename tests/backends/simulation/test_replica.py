"""The simulated replica: times in closed form, room, caches, and that nothing is lost."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.simulation.blocks import BlockCache
from backends.simulation.latency import ReplicaStepTime
from backends.simulation.simulated_replica import ReplicaModel, ReplicaRequest, SimulatedReplica

MODEL = ReplicaModel()


def run_to_the_end(replica: SimulatedReplica) -> None:
    """Complete every step there is."""
    while replica.step_ends_at < math.inf:
        replica.advance(replica.step_ends_at)


@pytest.mark.parametrize("prompt_tokens", [1, 91, 2047, 2048, 2049, 12_934, 100_000])
def test_replica_single_prompt_takes_the_closed_form(prompt_tokens: int) -> None:
    """Alone on an idle replica, a prompt's first token comes when the formula says."""
    work = ReplicaRequest(prompt_tokens, 1)
    replica = SimulatedReplica(MODEL)

    replica.submit(work, 5.0)
    run_to_the_end(replica)

    chunks = [2048] * (prompt_tokens // 2048) + [prompt_tokens % 2048] * (prompt_tokens % 2048 > 0)
    linear_s = sum(1.5e-3 + max(4.6e-3, 3e-3 + 20.1e-6 * chunk) + 6e-6 for chunk in chunks)
    expected_s = linear_s + 0.953e-9 * prompt_tokens**2 / 2
    assert work.first_token_at == pytest.approx(5.0 + expected_s, rel=1e-12)
    assert MODEL.step.first_token_s(prompt_tokens, 2048) == pytest.approx(expected_s, rel=1e-12)


def test_replica_single_answer_takes_the_sum_of_its_steps() -> None:
    """Decode steps that are jumped in one go take what they take one by one."""
    work = ReplicaRequest(1000, 301)
    replica = SimulatedReplica(MODEL)

    replica.submit(work, 0.0)
    run_to_the_end(replica)

    steps_s = sum(1.5e-3 + 4.6e-3 + 6e-6 + 35.4e-9 * (1001 + step) for step in range(300))
    assert work.first_token_at is not None
    assert work.finished_at == pytest.approx(work.first_token_at + steps_s, rel=1e-12)


def test_replica_half_speed_takes_twice_as_long() -> None:
    """`speed` divides every time, that of copies from the host included."""
    ends = []
    for speed in (1.0, 0.5):
        work = ReplicaRequest(5000, 100)
        replica = SimulatedReplica(replace(MODEL, step=ReplicaStepTime(speed=speed)))
        replica.submit(work, 0.0)
        run_to_the_end(replica)
        ends.append(work.finished_at or 0.0)

    assert ends[1] == pytest.approx(2 * ends[0])


def test_replica_same_prompt_again_is_cached_but_for_its_last_token() -> None:
    """What a prompt has in common with one before needs no computing; one token always does."""
    replica = SimulatedReplica(MODEL)
    first, second = ReplicaRequest(1024, 5, (7, 8)), ReplicaRequest(1024, 5, (7, 8))
    replica.submit(first, 0.0)
    run_to_the_end(replica)

    replica.submit(second, 10.0)
    run_to_the_end(replica)

    assert (first.cached_tokens, second.cached_tokens) == (0, 1023)
    assert second.first_token_at == pytest.approx(10.0 + MODEL.step.flat_s(1, 1) + MODEL.step.prefill_s(1, 1023))


def test_replica_blocks_of_a_prompt_in_progress_are_found_by_the_next() -> None:
    """A prompt's blocks can be shared as soon as the chunk that they are in is computed."""
    replica = SimulatedReplica(MODEL)
    first, second = ReplicaRequest(8192, 2, tuple(range(16))), ReplicaRequest(8192, 2, tuple(range(16)))
    replica.submit(first, 0.0)
    replica.submit(second, replica.step_ends_at / 2)

    run_to_the_end(replica)

    # The second is taken up when the first one's last chunk leaves room in a step, or after it.
    assert second.cached_tokens == 8191


def test_replica_full_room_makes_the_next_one_wait() -> None:
    """What does not fit waits for room, and whoever is behind it waits too."""
    replica = SimulatedReplica(replace(MODEL, kv_tokens=1000))
    works = [ReplicaRequest(600, 100), ReplicaRequest(600, 100), ReplicaRequest(10, 1)]
    for work in works:
        replica.submit(work, 0.0)

    run_to_the_end(replica)

    ends = [work.finished_at or 0.0 for work in works]
    assert works[1].first_token_at is not None
    assert works[2].first_token_at is not None
    assert works[1].first_token_at > ends[0]
    assert works[2].first_token_at >= works[1].first_token_at


def test_replica_cancelled_work_gives_its_room_back() -> None:
    """A request that is taken out in any phase leaves nothing behind, and the others go on."""
    replica = SimulatedReplica(replace(MODEL, kv_tokens=20_000))
    decoding, prefilling, waiting = ReplicaRequest(100, 500), ReplicaRequest(9000, 500), ReplicaRequest(15_000, 100)
    replica.submit(decoding, 0.0)
    replica.advance(0.1)
    replica.submit(prefilling, 0.1)
    replica.advance(0.2)
    replica.submit(waiting, 0.2)
    stays = ReplicaRequest(10, 3)
    replica.submit(stays, 0.2)

    for work in (decoding, prefilling, waiting):
        replica.cancel(work, 0.2)
    run_to_the_end(replica)

    assert stays.finished_at is not None
    assert (replica.num_running, replica.num_waiting, replica.cache.used) == (0, 0, 0)
    assert decoding.finished_at is prefilling.finished_at is waiting.finished_at is None


_arrivals = st.lists(
    st.tuples(
        st.floats(0, 3),
        st.integers(1, 6000),
        st.integers(1, 200),
        st.integers(0, 3),
        st.one_of(st.none(), st.floats(0, 2)),
    ),
    min_size=1,
    max_size=25,
)


@settings(max_examples=60, deadline=None)
@given(_arrivals)
def test_replica_conserves_requests(arrivals: list[tuple[float, int, int, int, float | None]]) -> None:
    """Whatever comes and is cancelled, each other request ends once with all its tokens, and its room is given back."""
    replica = SimulatedReplica(replace(MODEL, kv_tokens=9000, host_kv_tokens=4000, max_sequences=4))
    events: list[tuple[float, int, ReplicaRequest, bool]] = []
    works = []
    for number, (at, prompt, output, family, cancel_after) in enumerate(arrivals):
        work = ReplicaRequest(prompt, output, tuple(range(family * 100, family * 100 + prompt // 512)))
        works.append((at, work, cancel_after))
        events.append((at, number, work, False))
        if cancel_after is not None:
            events.append((at + cancel_after, number, work, True))
    seen: dict[ReplicaRequest, int] = {}
    now = 0.0
    for at, _, work, is_cancel in sorted(events, key=lambda event: event[:2]):
        while replica.step_ends_at <= at:
            assert replica.step_ends_at >= now
            now = replica.step_ends_at
            for changed in replica.advance(now):
                seen[changed] = seen.get(changed, 0) + 1
        now = at
        if is_cancel:
            replica.cancel(work, at)
        else:
            replica.submit(work, at)
        assert replica.cache.used <= 9000
    while replica.step_ends_at < math.inf:
        for changed in replica.advance(replica.step_ends_at):
            seen[changed] = seen.get(changed, 0) + 1

    for at, work, _ in works:
        if work.is_cancelled:
            continue
        assert work.first_token_at is not None
        assert work.finished_at is not None
        assert at < work.first_token_at <= work.finished_at
        assert seen[work] == (1 if work.output_tokens == 1 else 2)
        assert replica.num_output(work) == work.output_tokens
    assert (replica.num_running, replica.num_waiting) == (0, 0)
    assert replica.cache.used == 512 * replica.cache.num_blocks


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1), st.integers(1, 3000), st.integers(1, 80)), min_size=1, max_size=12))
def test_replica_jumps_are_exact(arrivals: list[tuple[float, int, int]]) -> None:
    """Jumping over decode steps changes no time: one step at a time gives the same."""
    ends = []
    for max_run in (0, 1):
        replica = SimulatedReplica(replace(MODEL, max_run=max_run))
        works = []
        for at, prompt, output in sorted(arrivals):
            work = ReplicaRequest(prompt, output)
            replica.advance(at)
            replica.submit(work, at)
            works.append(work)
        run_to_the_end(replica)
        ends.append([(work.first_token_at or math.inf, work.finished_at or math.inf) for work in works])

    assert ends[0] == [(pytest.approx(first, abs=1e-9), pytest.approx(end, abs=1e-9)) for first, end in ends[1]]


def test_block_cache_without_limits_hits_whatever_was_there() -> None:
    """With room for everything, what hits is what occurred before."""
    cache = BlockCache(10**9, 512)
    prompts = [tuple(range(number % 5, number % 5 + number % 7)) for number in range(200)]
    seen: set[int] = set()
    for blocks in prompts:
        expected = next((place for place, block in enumerate(blocks) if block not in seen), len(blocks))
        lease = cache.acquire(blocks, len(blocks) * 512 + 100)

        assert lease is not None
        assert lease.cached_tokens == expected * 512
        cache.publish(lease, blocks)
        cache.release(lease)
        seen.update(blocks)


def test_block_cache_forgets_the_least_recently_used_and_the_host_remembers() -> None:
    """Without room the oldest goes first; with a host tier it can be copied back."""
    for host_tokens, expected in ((0, (0, 0)), (2048, (512, 512))):
        cache = BlockCache(1024, 512, host_tokens)
        for block in (1, 2, 3):
            lease = cache.acquire((block,), 512)
            assert lease is not None
            cache.publish(lease, (block,))
            cache.release(lease)

        newest, oldest = cache.acquire((3,), 512), cache.acquire((1,), 512)

        assert newest is not None
        assert oldest is not None
        assert newest.cached_tokens == 512
        assert (oldest.cached_tokens, oldest.host_tokens) == expected


def test_block_cache_held_blocks_are_never_evicted() -> None:
    """Room that is in use is not given away."""
    cache = BlockCache(1024, 512)
    lease = cache.acquire((1,), 512)
    assert lease is not None
    cache.publish(lease, (1,))

    assert cache.acquire((2, 3), 1024) is None
    cache.release(lease)

    assert cache.acquire((2, 3), 1024) is not None
