"""Answers in memory: what goes when there is no room, whose quota pays for it, and who is told."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.cache.entry import AnswerForm, Entry
from policies.cache.semantic.answers.eviction import (
    NUM_SAMPLED,
    RandomIds,
    RecentUse,
    spread_expiry,
    tokens_saved,
    value_per_byte,
)
from policies.cache.semantic.answers.memory import MemoryAnswerStore
from policies.cache.semantic.answers.quotas import Quota
from policies.cache.semantic.contracts import History, Question
from tests.support.clock import FakeClock
from tests.support.policy.vectors import OTHER_SCOPE, SCOPE, make_answer, make_question

SMALL_BYTES = 64 * 1024
BODY = b"x" * 2000


class Gone:
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.groups: set[bytes] = set()

    def __call__(self, question: Question, ids: Sequence[str]) -> None:
        """Some ids have died."""
        self.ids += ids
        self.groups.add(question.group)


@pytest.fixture
def gone() -> Gone:
    """Nobody yet."""
    return Gone()


@pytest.fixture
def store(clock: FakeClock, gone: Gone) -> MemoryAnswerStore:
    """A store with room for about fourteen answers."""
    return MemoryAnswerStore(SMALL_BYTES, clock, Random(3), on_gone=gone)


def _fill(store: MemoryAnswerStore, clock: FakeClock, count: int, *, scope: bytes = SCOPE, name: str = "") -> None:
    for number in range(count):
        question = make_question(scope=scope)
        store.put(make_answer(f"{name}{number}", clock.wall() + 1000.0, body=BODY, question=question))


async def _ids(store: MemoryAnswerStore, scope: bytes | None = None) -> list[str]:
    return [answer.id for answer, _ in await store.listing(scope, 10_000)]


async def test_put_beyond_its_bytes_lets_others_go_and_tells(
    store: MemoryAnswerStore, clock: FakeClock, gone: Gone
) -> None:
    """The store stays within its bytes; who goes is told once, and only they are gone."""
    _fill(store, clock, 50)
    kept = await _ids(store)

    assert store.statistics().bytes <= SMALL_BYTES
    assert 10 <= len(kept) < 20
    assert sorted(kept + gone.ids) == sorted(str(number) for number in range(50))
    assert store.statistics().evicted == len(gone.ids)
    assert gone.groups == {make_question().group}


async def test_put_beyond_its_bytes_keeps_what_is_served(store: MemoryAnswerStore, clock: FakeClock) -> None:
    """Answers in use outlive those that nobody asks for."""
    _fill(store, clock, 10)
    for _ in range(5):
        store.record(SCOPE, "3", served=1)
    _fill(store, clock, 200, name="new ")

    assert "3" in await _ids(store)


async def test_put_beyond_its_bytes_lets_go_of_what_was_served_long_ago(
    store: MemoryAnswerStore, clock: FakeClock
) -> None:
    """Past uses fade."""
    _fill(store, clock, 5)
    for _ in range(20):
        store.record(SCOPE, "3", served=1)
    await clock.advance(700.0)
    assert "3" in await _ids(store)
    await clock.advance(86_400.0)
    _fill(store, clock, 100, name="new ")

    assert "3" not in await _ids(store)


async def test_put_beyond_its_bytes_lets_go_of_doubtful_answers_first(
    store: MemoryAnswerStore, clock: FakeClock
) -> None:
    """One that was found wrong once is worth less than its equals."""
    _fill(store, clock, 12)
    store.record(SCOPE, "5", bad=1.0)
    for number in range(12):
        if number != 5:
            store.record(SCOPE, str(number), good=1.0)
    for number in range(20):
        _fill(store, clock, 1, name=f"new {number} ")
        if store.statistics().evicted:
            break

    assert store.statistics().evicted == 1
    assert "5" not in await _ids(store)


async def test_put_of_what_never_fits_is_dropped(store: MemoryAnswerStore, clock: FakeClock, gone: Gone) -> None:
    """One answer does not push all others out."""
    _fill(store, clock, 5)
    store.put(make_answer("huge", clock.wall() + 1000.0, body=b"x" * SMALL_BYTES))

    assert len(await _ids(store)) == 5
    assert store.statistics().dropped == 1
    assert gone.ids == []


async def test_put_beyond_a_tenants_quota_costs_that_tenant(clock: FakeClock, gone: Gone) -> None:
    """A tenant that stores much drives out its own answers, of all its scopes, and nobody else's."""
    third = bytes(32)
    quotas = {SCOPE: Quota("a", 16_000), third: Quota("a", 16_000), OTHER_SCOPE: Quota("b", SMALL_BYTES)}
    store = MemoryAnswerStore(SMALL_BYTES, clock, Random(3), quota=quotas.__getitem__, on_gone=gone)
    _fill(store, clock, 5, scope=OTHER_SCOPE, name="b")
    _fill(store, clock, 50, name="a")
    _fill(store, clock, 2, scope=third, name="c")

    assert len(await _ids(store, OTHER_SCOPE)) == 5
    assert len(await _ids(store, SCOPE)) + len(await _ids(store, third)) <= 4
    assert not any(name.startswith("b") for name in gone.ids)
    store.put(make_answer("too large", clock.wall() + 1000.0, body=b"x" * 16_000))
    assert "too large" not in await _ids(store)


async def test_put_of_an_id_of_another_group_is_refused(store: MemoryAnswerStore, clock: FakeClock) -> None:
    """Nobody replaces another's answer."""
    store.put(make_answer("one", clock.wall() + 1000.0))
    store.put(make_answer("one", clock.wall() + 1000.0, question=make_question(scope=OTHER_SCOPE)))

    assert await _ids(store, SCOPE) == ["one"]
    assert await _ids(store, OTHER_SCOPE) == []
    assert store.statistics().dropped == 1


async def test_get_of_expired_answers_tells_that_they_are_gone(
    store: MemoryAnswerStore, clock: FakeClock, gone: Gone
) -> None:
    """Expiry needs no look-up of the expired: any use of the store finds them."""
    for number in range(5):
        store.put(make_answer(str(number), clock.wall() + 10.0))
    await clock.advance(12.0)
    await store.get(SCOPE, ["unknown"])

    assert sorted(gone.ids) == ["0", "1", "2", "3", "4"]
    assert store.statistics().expired == 5
    assert store.statistics().entries == store.statistics().bytes == 0


@pytest.mark.parametrize("way", ["delete", "reject"])
async def test_delete_and_rejection_tell_that_answers_are_gone(
    store: MemoryAnswerStore, clock: FakeClock, gone: Gone, way: str
) -> None:
    """The index must not go on finding them."""
    for name in ("one", "alias"):
        store.put(make_answer(name, clock.wall() + 10.0, answer_id="same"))
    if way == "delete":
        store.delete(SCOPE, ["one", "alias", "one"])
    else:
        store.record(SCOPE, "one", bad=1.0)
        store.record(SCOPE, "one", bad=1.0)

    assert sorted(gone.ids) == ["alias", "one"]


async def test_put_and_delete_for_long_keeps_no_trace(clock: FakeClock) -> None:
    """What was there and is not costs nothing: memory follows what is stored, not what was."""
    store = MemoryAnswerStore(SMALL_BYTES, clock, Random(3))
    tracemalloc.start()
    for turn in range(3):
        for number in range(2000):
            store.put(make_answer(f"{turn} {number}", clock.wall() + 1e6))
            store.delete(SCOPE, [f"{turn} {number}"])
        if turn == 0:
            first, _ = tracemalloc.get_traced_memory()
    last, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert last - first < 100_000
    assert store.statistics().bytes == 0


async def test_statistics_bytes_are_about_what_answers_take(clock: FakeClock) -> None:
    """The bound is on memory, not on bodies: what is counted is what is used, give or take a half."""
    store = MemoryAnswerStore(1024**3, clock, Random(3))
    tracemalloc.start()
    for number in range(1000):
        question = make_question(f"question number {number}?", scope=number.to_bytes(32, "big"))
        store.put(make_answer(f"answer {number}", clock.wall() + 1000.0, body=b"%d" % number * 100, question=question))
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert 0.67 < store.statistics().bytes / used < 1.5


def test_value_per_byte_orders_by_each_part() -> None:
    """More use, more tokens, a better record and fewer bytes are worth more; an hour halves a use."""
    plain = value_per_byte(RecentUse(1.0, 0.0), History(), 100, 1000, 0.0)

    assert value_per_byte(RecentUse(2.0, 0.0), History(), 100, 1000, 0.0) == 2 * plain
    assert value_per_byte(RecentUse(1.0, 0.0), History(), 200, 1000, 0.0) == 2 * plain
    assert value_per_byte(RecentUse(1.0, 0.0), History(), 100, 2000, 0.0) == plain / 2
    assert value_per_byte(RecentUse(1.0, 0.0), History(), 100, 1000, 3600.0) == plain / 2
    assert value_per_byte(RecentUse(1.0, 0.0), History(good=3.0), 100, 1000, 0.0) > plain
    assert value_per_byte(RecentUse(1.0, 0.0), History(bad=1.0), 100, 1000, 0.0) < plain


def test_tokens_saved_without_usage_are_guessed_from_the_body() -> None:
    """Never nothing."""
    assert tokens_saved(Entry(AnswerForm.JSON, b"x" * 400, b"", 0.0)) == 101
    assert tokens_saved(Entry(AnswerForm.JSON, b"", b"", 0.0)) == 1


@given(left_s=st.floats(0.001, 1e7), seed=st.integers(0, 1000))
def test_spread_expiry_stays_within_a_tenth(left_s: float, seed: int) -> None:
    """Earlier or later, never by more."""
    assert 0.9 * left_s <= spread_expiry(left_s, 0.0, Random(seed)) <= 1.1 * left_s


@settings(max_examples=100)
@given(actions=st.lists(st.tuples(st.booleans(), st.integers(0, 40)), max_size=80))
def test_sampler_holds_what_a_set_holds(actions: list[tuple[bool, int]]) -> None:
    """Additions and removals in any order; samples come from inside, and from everywhere."""
    sampler, model, random = RandomIds(), set[str](), Random(1)
    for is_added, number in actions:
        if is_added:
            sampler.add(str(number))
            model.add(str(number))
        else:
            sampler.discard(str(number))
            model.discard(str(number))

    assert len(sampler) == len(model)
    drawn = sampler.sample(random)
    assert len(drawn) == min(len(model), NUM_SAMPLED)
    for _ in range(40 if len(model) > NUM_SAMPLED else 0):
        drawn = [*drawn, *sampler.sample(random)]
    assert set(drawn) == model
