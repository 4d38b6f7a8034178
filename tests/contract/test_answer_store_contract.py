"""What every store of the semantic cache's answers keeps, whatever it is made of."""

from __future__ import annotations

from collections.abc import AsyncIterator
from random import Random

import pytest

from policies.cache.redis_link import RedisLink
from policies.cache.semantic.answers.memory import MemoryAnswerStore
from policies.cache.semantic.answers.redis import RedisAnswerStore
from policies.cache.semantic.contracts import AnswerStore, History
from tests.support.clock import FakeClock
from tests.support.policy.vectors import OTHER_SCOPE, SCOPE, make_answer, make_question
from tests.support.servers.redis_server import RedisServer, redis_policy, semantic_link

_PATIENT_S = 5
"""What Redis and a connection to it may take on a busy machine; as long as a policy may say."""


class Case:
    """An open store with nothing in it, its clock, and a way to wait for what was put."""

    def __init__(self, store: AnswerStore, clock: FakeClock, link: RedisLink | None = None) -> None:
        self.store = store
        self.clock = clock
        self._link = link

    @property
    def tomorrow(self) -> float:
        """When most answers here expire."""
        return self.clock.wall() + 86_400.0

    async def settle(self) -> None:
        """Wait until what was put and recorded has reached where it is kept."""
        if self._link is not None:
            await self._link.flush(_PATIENT_S)
            # What does not reach Redis in time is dropped by design, and every test here is about what is not.
            told = self._link.statistics()
            assert (told.waiting, told.dropped, told.errors) == (0, 0, 0)

    async def ids(self, *names: str, scope: bytes = SCOPE) -> list[str]:
        """Which of these are there."""
        return [pair[0].id for pair in await self.store.get(scope, names) if pair is not None]


@pytest.fixture(params=["memory", "redis"])
async def case(request: pytest.FixtureRequest, clock: FakeClock) -> AsyncIterator[Case]:
    """Each store in turn."""
    if request.param == "memory":
        memory = MemoryAnswerStore(1024**2, clock, Random(7))
        await memory.open()
        yield Case(memory, clock)
        await memory.aclose()
        return
    async with RedisServer() as server:
        link = semantic_link(redis_policy(server.url, timeout=f"{_PATIENT_S}s"), clock)
        await link.open()
        store = RedisAnswerStore(link, clock, Random(7))
        await store.open()
        yield Case(store, clock, link)
        await store.aclose()
        await link.aclose()


async def test_get_after_put_returns_the_answer_with_an_empty_history(case: Case) -> None:
    """What was put comes back whole, at once and once it is written, in the order asked for."""
    answer = make_answer("one", case.tomorrow, body=b"\x00\xff{}", tags=("red", "blue"))
    case.store.put(answer)
    case.store.put(make_answer("two", case.tomorrow))
    early = await case.store.get(SCOPE, ["two", "none", "one"])
    await case.settle()
    late = await case.store.get(SCOPE, ["two", "none", "one"])

    assert early == late
    assert [pair and pair[0].id for pair in late] == ["two", None, "one"]
    assert late[2] is not None
    stored, history = late[2]
    assert stored.entry == answer.entry
    assert stored.question == answer.question
    assert stored.tags == answer.tags
    assert history == History()


async def test_get_in_another_scope_finds_nothing(case: Case) -> None:
    """An id is worth nothing without its scope."""
    case.store.put(make_answer("one", case.tomorrow))
    await case.settle()

    assert await case.ids("one", scope=OTHER_SCOPE) == []
    assert await case.ids("one") == ["one"]


async def test_put_spreads_ends_by_a_tenth_at_most(case: Case) -> None:
    """Answers that came together do not go together."""
    names = [str(number) for number in range(40)]
    for name in names:
        case.store.put(make_answer(name, case.tomorrow))
    await case.settle()
    found = await case.store.get(SCOPE, names)
    lives = [pair[0].expires - case.clock.wall() for pair in found if pair is not None]

    assert len(lives) == 40
    assert 0.9 * 86_400 <= min(lives) < 0.95 * 86_400
    assert 1.05 * 86_400 < max(lives) <= 1.1 * 86_400


async def test_get_after_the_end_finds_nothing_however_often_it_was_served(case: Case) -> None:
    """Hits do not prolong a life."""
    case.store.put(make_answer("one", case.clock.wall() + 100.0))
    await case.settle()
    for _ in range(8):
        await case.clock.advance(10.0)
        assert await case.ids("one") == ["one"]
        case.store.record(SCOPE, "one", served=1)
        await case.settle()
    await case.clock.advance(31.0)

    assert await case.ids("one") == []


async def test_put_of_what_has_expired_is_nothing(case: Case) -> None:
    """Too late is never."""
    case.store.put(make_answer("one", case.clock.wall() - 1.0))
    await case.settle()

    assert await case.ids("one") == []


async def test_record_adds_up(case: Case) -> None:
    """Labels and servings of one entry are summed, written or waiting; an unknown entry has none."""
    case.store.put(make_answer("one", case.tomorrow))
    await case.settle()
    case.store.record(SCOPE, "one", good=1.0)
    case.store.record(SCOPE, "one", good=0.5, served=2)
    case.store.record(SCOPE, "none", good=1.0)
    case.store.record(OTHER_SCOPE, "one", bad=1.0)
    await case.settle()
    case.store.record(SCOPE, "one", bad=3.0, served=1)
    await case.settle()
    found = await case.store.get(SCOPE, ["one", "none"])

    assert found[0] is not None
    assert found[0][1] == History(good=1.5, bad=3.0, served=3)
    assert found[1] is None


async def test_put_again_keeps_history_and_end(case: Case) -> None:
    """What is learned about an answer later replaces it, but does not make it younger or better."""
    case.store.put(make_answer("one", case.tomorrow))
    case.store.record(SCOPE, "one", bad=1.0)
    await case.settle()
    (before,) = await case.store.get(SCOPE, ["one"])
    await case.clock.advance(100.0)
    case.store.put(make_answer("one", case.tomorrow, model="other"))
    await case.settle()
    (after,) = await case.store.get(SCOPE, ["one"])

    assert before is not None
    assert after is not None
    assert after[0].model == "other"
    assert after[0].expires == before[0].expires
    assert after[1] == before[1] == History(bad=1.0)
    case.store.record(SCOPE, "one", bad=1.0)
    await case.settle()
    assert await case.ids("one") == []


async def test_put_again_under_another_answer_leaves_those_that_it_was_one_with(case: Case) -> None:
    """What ends them does not end it, and what ends it ends those that it is one with now."""
    for name, answer_id in (("moved", "before"), ("left", "before"), ("there", "after")):
        case.store.put(make_answer(name, case.tomorrow, answer_id=answer_id))
    await case.settle()
    case.store.put(make_answer("moved", case.tomorrow, answer_id="after"))
    await case.settle()
    for name, expected in (("left", ["moved", "there"]), ("moved", [])):
        for _ in range(2):
            case.store.record(SCOPE, name, bad=1.0)
            await case.settle()
        assert await case.ids("moved", "left", "there") == expected


@pytest.mark.parametrize("is_turned", [False, True])
async def test_unite_makes_one_answer_of_all_that_say_the_same(case: Case, is_turned: bool) -> None:
    """Whatever ends one of them ends all; history and end stay, and other scopes have answers of their own. The smaller
    one moves, whichever it is."""
    for name, answer_id in (("one", "many"), ("two", "many"), ("there", "few"), ("other", "apart")):
        case.store.put(make_answer(name, case.tomorrow, answer_id=answer_id))
    case.store.put(make_answer("elsewhere", case.tomorrow, answer_id="few", question=make_question(scope=OTHER_SCOPE)))
    case.store.record(SCOPE, "two", bad=1.0)
    await case.settle()
    ends = [pair[0].expires for pair in await case.store.get(SCOPE, ["one", "two", "there"]) if pair is not None]
    for pair in (("few", "many") if is_turned else ("many", "few")), ("many", "many"), ("many", "unknown"):
        case.store.unite(SCOPE, *pair)
    await case.settle()
    found = [pair for pair in await case.store.get(SCOPE, ["one", "two", "there", "other"]) if pair is not None]

    assert [answer.answer_id for answer, _ in found] == ["many", "many", "many", "apart"]
    assert [answer.expires for answer, _ in found[:3]] == ends
    assert [history.bad for _, history in found] == [0.0, 1.0, 0.0, 0.0]
    assert {answer.answer_id for answer, _ in await case.store.listing(OTHER_SCOPE, 10)} == {"few"}
    case.store.put(make_answer("late", case.tomorrow, answer_id="few"))
    case.store.record(SCOPE, "two", bad=1.0)
    await case.settle()
    assert await case.ids("one", "two", "there", "late", "other") == ["late", "other"]
    assert await case.ids("elsewhere", scope=OTHER_SCOPE) == ["elsewhere"]


@pytest.mark.parametrize("weights", [(1.0, 1.0), (0.1, 20.0)], ids=["whole", "weighted"])
async def test_record_of_a_second_bad_label_removes_all_that_say_the_same(
    case: Case, weights: tuple[float, float]
) -> None:
    """One may be an error; two remove the entry with its aliases, and nothing else. Weights are for averages."""
    for name in ("one", "alias", "far alias"):
        case.store.put(make_answer(name, case.tomorrow, answer_id="wrong"))
    case.store.put(make_answer("other", case.tomorrow))
    case.store.put(
        make_answer("elsewhere", case.tomorrow, answer_id="wrong", question=make_question(scope=OTHER_SCOPE))
    )
    case.store.record(SCOPE, "one", bad=weights[0])
    await case.settle()
    assert len(await case.ids("one", "alias", "far alias")) == 3
    case.store.record(SCOPE, "one", bad=weights[1])
    await case.settle()

    assert await case.ids("one", "alias", "far alias", "other") == ["other"]
    assert await case.ids("elsewhere", scope=OTHER_SCOPE) == ["elsewhere"]
    assert case.store.statistics().rejected == 3


async def test_record_of_bad_labels_for_different_entries_removes_none(case: Case) -> None:
    """One bad label each is not two of one."""
    case.store.put(make_answer("one", case.tomorrow, answer_id="same"))
    case.store.put(make_answer("two", case.tomorrow, answer_id="same"))
    case.store.record(SCOPE, "one", bad=1.0)
    case.store.record(SCOPE, "two", bad=1.0)
    await case.settle()

    assert len(await case.ids("one", "two")) == 2


async def test_delete_forgets_at_once(case: Case) -> None:
    """What is deleted is not served again, even before it is written; unknown and repeated ids are nothing."""
    case.store.put(make_answer("one", case.tomorrow))
    case.store.put(make_answer("two", case.tomorrow))
    await case.settle()
    case.store.delete(SCOPE, ["one", "one", "none"])
    case.store.delete(OTHER_SCOPE, ["two"])

    assert await case.ids("one", "two") == ["two"]
    await case.settle()
    assert await case.ids("one", "two") == ["two"]
    assert [pair[0].id for pair in await case.store.listing(None, 10)] == ["two"]


async def test_listing_pages_through_a_scope_in_order(case: Case) -> None:
    """Every entry once, whatever is added or removed between pages."""
    names = [f"{number:03}" for number in range(25)]
    for name in reversed(names):
        case.store.put(make_answer(name, case.tomorrow))
    case.store.put(make_answer("elsewhere", case.tomorrow, question=make_question(scope=OTHER_SCOPE)))
    await case.settle()
    seen: list[str] = []
    after = None
    while page := await case.store.listing(SCOPE, 10, after=after):
        seen += [answer.id for answer, _ in page]
        after = (SCOPE, seen[-1])
        case.store.delete(SCOPE, [seen[-1]])
        await case.settle()

    assert seen == names
    everything = await case.store.listing(None, 100)
    assert [answer.id for answer, _ in everything][-1] == "elsewhere"
    assert len(everything) == 23
    assert [answer.id for answer, _ in await case.store.listing(None, 5, after=(SCOPE, "023"))] == ["elsewhere"]


async def test_listing_keeps_to_tag_and_model(case: Case) -> None:
    """What an operator deletes by."""
    case.store.put(make_answer("one", case.tomorrow, tags=("red",)))
    case.store.put(make_answer("two", case.tomorrow, tags=("red", "blue"), model="other"))
    case.store.put(make_answer("three", case.tomorrow, model="other"))
    await case.settle()

    assert [pair[0].id for pair in await case.store.listing(SCOPE, 10, tag="red")] == ["one", "two"]
    assert [pair[0].id for pair in await case.store.listing(SCOPE, 10, model="other")] == ["three", "two"]
    assert [pair[0].id for pair in await case.store.listing(SCOPE, 10, tag="red", model="other")] == ["two"]
    assert await case.store.listing(SCOPE, 10, tag="green") == []


async def test_statistics_count_hits_and_misses_by_entry(case: Case) -> None:
    """Each id that was asked for is one or the other."""
    case.store.put(make_answer("one", case.tomorrow))
    await case.settle()
    await case.store.get(SCOPE, ["one", "none", "one"])
    await case.store.get(SCOPE, [])

    assert case.store.statistics().hits == 2
    assert case.store.statistics().misses == 1
    assert case.store.statistics().errors == 0


async def test_aclose_twice_is_safe(case: Case) -> None:
    """Whoever closes need not know whether it is closed."""
    await case.store.aclose()
    await case.store.aclose()
