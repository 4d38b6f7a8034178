"""The semantic cache as a backend: what it serves, in which form, what it learns, and what it leaves alone."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import msgspec
import pytest

from backends.charges.charge import Charge
from backends.charges.usage import Usage
from backends.errors import ConnectFailed, UpstreamCut
from backends.protocol import CacheOutcome, Call, Reply, Timeouts
from policies.cache.exact import ExactCache
from policies.cache.pacing import Pacing
from policies.cache.semantic.learning.judge import RouteJudge
from policies.cache.semantic.sameness.forms import SURE
from policies.cache.semantic.settings import JudgePolicy
from policies.cache.settings import CachePolicy
from policies.cache.store_memory import MemoryEntryStore
from tests.support.calls import read_all, streamed_text
from tests.support.clock import FakeClock, settle
from tests.support.policy.cache import Exchange, Upstream, chat_answer, chat_chunk, chat_events
from tests.support.policy.semantic import FixedDecider, MemoryStates, Stage, question

RESET = "how do I reset my password please"
RESET_TOO = "how do I reset the password please"
CANCEL = "what is your cancellation policy for groups"


class Answering:
    """What the upstream says, by the words of the question; everything else gets an echo."""

    def __init__(self, **said: str) -> None:
        self.said = said

    def __call__(self, exchange: Exchange) -> None:
        body = exchange.call.body or {}
        asked = body["messages"][-1]["content"]
        text = next((answer for word, answer in self.said.items() if word in asked), f"echo of {asked}")
        if exchange.call.stream:
            exchange.begin()
            exchange.feed(*chat_events(*(word + " " for word in text.split())))
            exchange.end()
        else:
            exchange.answer(chat_answer(text))


def stage_with(upstream: Upstream, **settings: Any) -> Stage:
    """A stage before that upstream."""
    return Stage(upstream, FakeClock(), **settings)


@pytest.fixture
async def upstream() -> Upstream:
    """Says the same about passwords however it is asked."""
    return Upstream(Answering(password="Press the button named Forgot.", cancel="Ten days before."))


def text_of(body: bytes) -> str:
    """The text of a whole answer."""
    content: str = msgspec.json.decode(body)["choices"][0]["message"]["content"]
    return content.strip()


async def test_semantic_other_words_get_the_stored_answer(upstream: Upstream) -> None:
    """Entry, score, age and reason are in the headers, the outcome in the facts; the upstream is asked once."""
    stage = await stage_with(upstream).open()
    first, _ = await stage.ask(question(RESET))
    call = question(RESET_TOO)
    headers, body = await stage.ask(call)

    assert (first["x-cache"], first["x-cache-reason"]) == ("miss", "no_candidate")
    assert (headers["x-cache"], headers["x-cache-reason"], headers["age"]) == ("semantic", "static", "0")
    assert 0.7 < float(headers["x-cache-score"]) < 1
    assert text_of(body) == "Press the button named Forgot."
    assert call.facts.cache is CacheOutcome.SEMANTIC
    assert call.facts.semantic is not None
    assert call.facts.semantic.entry == headers["x-cache-entry"]
    assert call.facts.usage is not None
    assert len(upstream.exchanges) == 1
    await stage.aclose()


async def test_semantic_other_question_is_a_miss(upstream: Upstream) -> None:
    """Neighbours that are too far are not served, and each question becomes an entry."""
    stage = await stage_with(upstream).open()
    await stage.ask(question(RESET))
    headers, body = await stage.ask(question(CANCEL))

    assert (headers["x-cache"], headers["x-cache-reason"]) == ("miss", "below_threshold")
    assert text_of(body) == "Ten days before."
    assert stage.answers.statistics().entries == 2
    await stage.aclose()


@pytest.mark.parametrize("first_streams", [False, True])
@pytest.mark.parametrize("then_streams", [False, True])
async def test_semantic_one_entry_serves_both_forms(
    upstream: Upstream, first_streams: bool, then_streams: bool
) -> None:
    """However it came, it is given in the form that is asked for."""
    stage = await stage_with(upstream).open()
    await stage.ask(question(RESET, stream=first_streams))
    headers, body = await stage.ask(question(RESET_TOO, stream=then_streams))

    assert headers["x-cache"] == "semantic"
    assert (streamed_text(body) if then_streams else text_of(body)).strip() == "Press the button named Forgot."
    await stage.aclose()


async def test_semantic_tenants_and_sub_scopes_never_share(upstream: Upstream) -> None:
    """The same text of somebody else is a miss; a forged header only narrows."""
    stage = await stage_with(upstream).open()
    await stage.ask(question(RESET, tenant="red"))
    outcomes = []
    for fields in (
        {"tenant": "blue"},
        {"tenant": "blue", "headers": [(b"x-tenant", b"red"), (b"x-cache-scope", b"red")]},
        {"tenant": "red", "headers": [(b"x-cache-scope", b"part")]},
        {"tenant": "red"},
    ):
        headers, _ = await stage.ask(question(RESET, **fields))
        outcomes.append(headers["x-cache"])

    assert outcomes == ["miss", "miss", "miss", "semantic"]
    await stage.aclose()


@pytest.mark.parametrize(
    ("control", "outcomes"),
    [("no-store", ("bypass", "no_store")), ("no-cache", ("refresh", "refresh")), ("max-age=5", ("semantic", "static"))],
)
async def test_semantic_cache_control_is_honoured(upstream: Upstream, control: str, outcomes: tuple[str, str]) -> None:
    """`no-store` neither reads nor keeps, `no-cache` asks anew and keeps, an age is a limit."""
    stage = await stage_with(upstream).open()
    await stage.ask(question(RESET))
    headers, _ = await stage.ask(question(RESET_TOO, cache_control=control))

    assert (headers["x-cache"], headers["x-cache-reason"]) == outcomes
    assert stage.answers.statistics().entries == (2 if control == "no-cache" else 1)
    await stage.aclose()


async def test_semantic_answer_older_than_asked_for_or_than_its_ttl_is_a_miss(upstream: Upstream) -> None:
    """`max-age` of the client, `ttl` of the route; hits prolong nothing."""
    clock = FakeClock()
    stage = await Stage(upstream, clock, ttl="100s").open()
    await stage.ask(question(RESET))
    await clock.advance(50)
    young, _ = await stage.ask(question(RESET_TOO, cache_control="max-age=60"))
    old, _ = await stage.ask(question(RESET_TOO, cache_control="max-age=40", stream=True))
    await clock.advance(200)
    gone, _ = await stage.ask(question(RESET_TOO))

    assert [each["x-cache"] for each in (young, old, gone)] == ["semantic", "miss", "miss"]
    assert young["age"] == "50"
    await stage.aclose()


NOT_KEPT: dict[str, bytes] = {
    "length": chat_answer().replace(b'"stop"', b'"length"'),
    "filtered": chat_answer().replace(b'"stop"', b'"content_filter"'),
    "tool_call": chat_answer().replace(b'"refusal":null', b'"refusal":null,"tool_calls":[{"id":"1"}]'),
    "empty": chat_answer(""),
    "error": b'{"error":{"message":"no"}}',
    "no_choice": b'{"choices":[]}',
    "not_json": b"<html>",
}


@pytest.mark.parametrize("name", NOT_KEPT)
async def test_semantic_answer_that_is_not_whole_and_good_is_not_kept(name: str) -> None:
    """Cut short, filtered, a tool call, empty, an error: never an entry."""
    upstream = Upstream(lambda exchange: exchange.answer(NOT_KEPT[name]))
    stage = await stage_with(upstream).open()
    await stage.ask(question(RESET))

    assert stage.answers.statistics().entries == 0
    assert stage.index.groups == {}
    await stage.aclose()


async def test_semantic_cut_stream_and_upstream_errors_pass_and_are_not_kept() -> None:
    """A stream that breaks off, a 500, no connection: what the client sees is the upstream's matter."""
    upstream = Upstream()
    stage = await stage_with(upstream).open()

    def cut(exchange: Exchange) -> None:
        exchange.begin()
        exchange.feed(chat_chunk({"role": "assistant", "content": "half"}))
        exchange.fail(UpstreamCut("gone"))

    async def ask(play: Any) -> None:
        task = asyncio.ensure_future(stage.ask(question(RESET, stream=True)))
        await settle()
        play(upstream.exchanges[-1])
        await task

    with pytest.raises(UpstreamCut):
        await ask(cut)
    with pytest.raises(ConnectFailed):
        await ask(lambda exchange: exchange.fail(ConnectFailed("no")))
    await ask(lambda exchange: exchange.answer(b'{"error":{}}', status=500))

    assert stage.answers.statistics().entries == 0
    await stage.aclose()


async def test_semantic_observe_says_what_it_would_have_served(upstream: Upstream) -> None:
    """The upstream answers; the label is counted, the decision learns."""
    stage = await stage_with(upstream, mode="observe").open()
    await stage.ask(question(RESET))
    call = question(RESET_TOO)
    headers, _ = await stage.ask(call)

    assert (headers["x-cache"], headers["x-cache-reason"]) == ("miss", "would_hit")
    assert call.facts.semantic is not None
    assert call.facts.semantic.entry is not None
    assert len(upstream.exchanges) == 2
    assert [given[1:] for given in stage.decider.given] == [(True, 1.0, None)]
    await stage.aclose()


async def test_semantic_equal_answers_are_aliases_that_vote_together(upstream: Upstream) -> None:
    """Another way to ask for the same answer has its answer id; another answer has its own."""
    stage = await stage_with(upstream, decider=FixedDecider(threshold=2.0)).open()
    for text in (RESET, RESET_TOO, CANCEL):
        await stage.ask(question(text))

    listed = [answer for answer, _ in await stage.answers.listing(None, 10)]
    by_text = {answer.question.text: answer.answer_id for answer in listed}
    assert by_text[RESET] == by_text[RESET_TOO] != by_text[CANCEL]
    await stage.aclose()


async def test_semantic_asking_the_same_text_again_replaces_its_entry(upstream: Upstream) -> None:
    """One text has one entry, however often it is refreshed."""
    stage = await stage_with(upstream).open()
    for _ in range(3):
        await stage.ask(question(RESET, cache_control="no-cache"))

    assert stage.answers.statistics().entries == 1
    assert sum(len(group) for group in stage.index.groups.values()) == 1
    await stage.aclose()


async def test_semantic_shadow_checks_off_the_clients_path(upstream: Upstream) -> None:
    """The client has its answer before the upstream is asked for another; the label weighs as rare checks do."""
    stage = await stage_with(upstream, decider=FixedDecider(shadow_probability=0.25)).open()
    await stage.ask(question(RESET))
    upstream._respond = None
    reply = await stage.cache.send(question(RESET_TOO))
    body = await read_all(reply)
    await settle()
    shadow = upstream.exchanges[-1]
    score = float(dict(reply.headers)[b"x-cache-score"])

    assert text_of(body) == "Press the button named Forgot."
    assert len(upstream.exchanges) == 2
    assert stage.decider.given == []
    shadow.answer(chat_answer("Press the button named Forgot."))
    await stage.cache.settle()
    assert [given[1:] for given in stage.decider.given] == [(True, 4.0, pytest.approx(score, abs=1e-4))]
    taken = stage.cache.take_tally()
    assert (taken.shadows, taken.shadow_tokens, taken.wrong_hits) == (1, 5, 0)
    await stage.aclose()


class ChargingUpstream(Upstream):
    """One that takes something for every call."""

    async def send(self, call: Call) -> Reply:
        call.facts.charge("up", call.model).settle_at(7, Usage(3, 2))
        return await super().send(call)


async def test_semantic_checks_and_judges_are_charged_to_the_call_that_they_are_made_for() -> None:
    """The caller's own attempts are not among them: a hit has none."""
    upstream = ChargingUpstream(Answering(password="Press the red button on the left side."))
    judge = RouteJudge(
        ChargingUpstream(Answering(First="yes")), Timeouts(), JudgePolicy(route="j", model="s"), FakeClock()
    )
    stage = await stage_with(upstream, decider=FixedDecider(shadow_probability=1.0), judge=judge).open()
    await stage.ask(question(RESET))
    upstream._respond = Answering(password="Press the blue button on the left side.")
    asked = question(RESET_TOO)
    told: list[Charge] = []
    asked.facts.extra = told.append
    headers, _ = await stage.ask(asked)
    await stage.cache.settle()

    assert headers["x-cache"] == "semantic"
    assert asked.facts.charges is None
    assert [(charge.cost, charge.usage) for charge in told] == [(7, Usage(3, 2))] * 2
    assert judge.calls == 1
    await stage.aclose()


async def test_semantic_check_on_a_paced_route_is_stored_with_its_tempo(upstream: Upstream) -> None:
    """What a check brings may be given to others: then as slowly as it came."""
    clock = FakeClock()
    stage = await Stage(upstream, clock, decider=FixedDecider(shadow_probability=0.25)).open()
    paced = Pacing(stage.cache, clock, Random(1))
    await read_all(await paced.send(question(RESET, stream=True)))
    await stage.cache.settle()
    upstream._respond = None
    await read_all(await paced.send(question(RESET_TOO, stream=True)))
    await settle()
    shadow = upstream.exchanges[-1]
    await clock.advance(1.5)
    shadow.begin()
    await clock.advance(0.5)
    shadow.feed(*chat_events("Press ", "it."))
    shadow.end()
    await stage.cache.settle()
    tempos = [stored.entry.tempo for stored, _ in await stage.answers.listing(None, 10)]

    assert len(upstream.exchanges) == len(tempos) == 2
    assert sorted((tempo.head_s, tempo.events_s[0]) for tempo in tempos if tempo is not None) == [(0, 0), (1.5, 2.0)]
    await stage.aclose()


async def test_semantic_wrong_hits_found_by_shadows_end_an_entry(upstream: Upstream) -> None:
    """Two of them that are nearly sure remove it and its vector."""
    stage = await stage_with(upstream, decider=FixedDecider(shadow_probability=0.5)).open()
    stage.encoder.sameness = -SURE
    await stage.ask(question(RESET))
    upstream._respond = Answering(password="Write a letter of 40 pages to our office in Rome.")
    for text in (RESET_TOO, "how do I reset my own password please"):
        await stage.ask(question(text))
    taken = stage.cache.take_tally()

    texts = [answer.question.text for answer, _ in await stage.answers.listing(None, 10)]
    assert taken.wrong_hits == 2
    assert RESET not in texts
    assert {(round(given[1], 3), given[2]) for given in stage.decider.given} == {(0.0, 2.0)}
    await stage.aclose()


async def test_semantic_check_without_room_is_made_on_the_clients_path(upstream: Upstream) -> None:
    """A check that is due is never skipped: it would hide wrong answers when there is much to do."""
    decider = FixedDecider(shadow_probability=0.5)
    stage = await stage_with(upstream, decider=decider, max_shadows=1).open()
    await stage.ask(question(RESET))
    upstream._respond = None
    await read_all(await stage.cache.send(question(RESET_TOO)))
    await settle()
    late = asyncio.ensure_future(stage.ask(question("how do I reset a password please")))
    await settle()
    for exchange in upstream.exchanges[1:]:
        exchange.answer(chat_answer("Press the button named Forgot."))
    headers, _ = await late

    assert (headers["x-cache"], headers["x-cache-reason"]) == ("miss", "shadow_busy")
    assert [given[1:3] for given in decider.given] == [(True, 2.0)] * 2
    assert all(served_at is not None for *_, served_at in decider.given)
    await stage.aclose()


async def test_semantic_close_cancels_shadows_and_saves_what_was_learned(upstream: Upstream) -> None:
    """Nothing is left running, and another stage goes on from there."""
    states = MemoryStates()
    stage = await stage_with(upstream, decider=FixedDecider(shadow_probability=0.5), states=states).open()
    await stage.ask(question(RESET))
    upstream._respond = None
    await read_all(await stage.cache.send(question(RESET_TOO)))
    await settle()
    await stage.aclose()

    again = await stage_with(upstream, states=states).open()
    upstream._respond = Answering()
    await again.ask(question(RESET))
    assert upstream.exchanges[1].is_closed
    assert again.decider.lookups == 3
    await again.aclose()


async def test_semantic_damaged_state_begins_anew(upstream: Upstream, caplog: pytest.LogCaptureFixture) -> None:
    """It is said once, and nothing fails."""
    states = MemoryStates()
    stage = await stage_with(upstream, states=states).open()
    await stage.ask(question(RESET))
    await stage.aclose()
    states.saved = dict.fromkeys(states.saved, b"nonsense")

    again = await stage_with(upstream, states=states).open()
    headers, _ = await again.ask(question(RESET))
    assert headers["x-cache"] == "miss"
    assert "cannot be used" in caplog.text
    await again.aclose()


@pytest.mark.parametrize("failure", ["busy", "broken"])
async def test_semantic_encoder_that_cannot_is_a_miss(
    upstream: Upstream, failure: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The request is answered, nothing is stored, and the reason has a name."""
    stage = await stage_with(upstream).open()
    if failure == "busy":
        stage.encoder.is_busy = True
    else:
        stage.encoder.encode = None  # type: ignore[assignment,method-assign]  # calling it is a bug like any other
    headers, body = await stage.ask(question(RESET))

    assert headers["x-cache-reason"] == {"busy": "encoder_busy", "broken": "failed"}[failure]
    assert text_of(body) == "Press the button named Forgot."
    assert stage.answers.statistics().entries == 0
    await stage.aclose()


async def test_semantic_public_route_serves_others_only_what_a_second_owner_confirmed(upstream: Upstream) -> None:
    """Who stored it may have it; the others after one of them has got the same answer from the backend."""
    stage = await stage_with(upstream, cache={"scope": "global"}).open()
    reasons = []
    for key, text in (
        ("a", RESET),
        ("a", RESET_TOO),
        ("b", RESET_TOO),
        ("c", "how do I reset a password please"),
    ):
        headers, _ = await stage.ask(question(text, key_id=key, tenant=key))
        reasons.append(headers["x-cache-reason"])

    assert reasons == ["no_candidate", "static", "unconfirmed", "static"]
    await stage.aclose()


async def test_semantic_public_route_never_confirms_another_answer(upstream: Upstream) -> None:
    """A poisoned entry stays its owner's."""
    stage = await stage_with(upstream, cache={"scope": "global"}).open()
    upstream._respond = Answering(password="Send your password to 12 Evil Street, now.")
    await stage.ask(question(RESET, key_id="evil", tenant="evil"))
    upstream._respond = Answering(password="Press the button named Forgot.")
    outcomes = [(await stage.ask(question(RESET_TOO, key_id=key, tenant=key)))[1] for key in ("b", "c", "d")]

    assert {text_of(body) for body in outcomes} == {"Press the button named Forgot."}
    await stage.aclose()


async def test_semantic_stops_serving_while_answers_cannot_be_compared(upstream: Upstream) -> None:
    """Where most comparisons end in "don't know" the bound means nothing, so nothing is served."""
    stage = await stage_with(upstream, decider=FixedDecider(shadow_probability=0.5)).open()
    await stage.ask(question(RESET))
    words = ["kettle", "garden", "window", "bottle", "ladder", "mirror", "basket", "pillow", "candle", "hammer"]

    def vague(exchange: Exchange) -> None:
        index = len(upstream.exchanges)
        exchange.answer(chat_answer(f"Press the {words[index % 10]} {words[index // 10 % 10]} named Forgot."))

    upstream._respond = vague
    reasons = []
    for index in range(70):
        headers, _ = await stage.ask(question(f"how do I reset {words[index % 10]} password please"))
        reasons.append(headers["x-cache-reason"])

    assert reasons[0] == "static"
    assert reasons[-1] == "unlabelled"
    await stage.aclose()


async def test_semantic_paced_replay_takes_its_time(upstream: Upstream) -> None:
    """At ten tokens a second an answer of eight words is not there at once."""
    clock = FakeClock()
    stage = await Stage(upstream, clock, replay_tps=10).open()
    await stage.ask(question(RESET))
    reply = await stage.cache.send(question(RESET_TOO, stream=True))
    reading = asyncio.ensure_future(read_all(reply))
    await settle()
    assert not reading.done()
    await clock.advance(10)

    assert streamed_text(await reading).strip() == "Press the button named Forgot."
    await stage.aclose()


async def test_exact_cache_never_stores_a_semantic_answer(upstream: Upstream) -> None:
    """The same words asked again are looked up again; identical calls in flight each look for themselves."""
    clock = FakeClock()
    stage = Stage(upstream, clock)
    store = MemoryEntryStore(1024**2, clock)
    exact = ExactCache(stage.cache, CachePolicy(), store, clock, "route")
    await stage.space.open()
    await stage.answers.open()
    await exact.open()

    async def ask(**fields: Any) -> str:
        call = question(RESET_TOO, **fields)
        reply = await exact.send(call)
        await read_all(reply)
        assert call.facts.cache is CacheOutcome(str(reply.header(b"x-cache"), "ascii"))
        return str(reply.header(b"x-cache"), "ascii")

    await read_all(await exact.send(question(RESET)))
    await stage.cache.settle()
    outcomes = [await ask(), await ask(stream=True), await ask(cache_control="no-cache")]
    outcomes += [await ask()]
    stage.decider.threshold = 2.0
    together = await asyncio.gather(*(ask(extra={"seed": 1}) for _ in range(3)))
    await exact.aclose()

    assert outcomes == ["semantic", "semantic", "refresh", "hit"]
    assert sorted(together) == ["joined", "joined", "miss"]
    assert store.statistics().entries == 3


@pytest.mark.parametrize("stream", [False, True])
async def test_exact_cache_flight_that_ends_in_a_semantic_answer_serves_each(upstream: Upstream, stream: bool) -> None:
    """Followers get a semantic answer of their own, with its entry in the headers."""
    clock = FakeClock()
    stage = Stage(upstream, clock)
    exact = ExactCache(stage.cache, CachePolicy(), MemoryEntryStore(1024**2, clock), clock, "route")
    await stage.space.open()
    await exact.open()
    await read_all(await exact.send(question(RESET)))
    await stage.cache.settle()

    replies = await asyncio.gather(*(exact.send(question(RESET_TOO, stream=stream)) for _ in range(5)))
    bodies = {await read_all(reply) for reply in replies}
    await exact.aclose()

    assert {reply.header(b"x-cache") for reply in replies} == {b"semantic"}
    assert all(reply.header(b"x-cache-entry") for reply in replies)
    assert len(bodies) == 1
    assert len(upstream.exchanges) == 1
