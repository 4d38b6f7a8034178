"""Several keys of one backend, against an upstream on a real socket that keeps a quota for each of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from backends.clock import SystemClock
from backends.errors import UpstreamExhausted, UpstreamRejectedKey
from backends.http.anthropic.messages import KIND as ANTHROPIC
from backends.http.openai import KIND as OPENAI
from backends.operations import Operation
from backends.protocol import Call, Reply
from backends.quotas.upstream_keys import Keyed
from tests.support.calls import make_call, read_all
from tests.support.clock import FakeClock
from tests.support.servers.quota_server import Fields, Quota, QuotaServer, as_anthropic

A, B, C = "sk-key-a-0123456789", "sk-key-b-0123456789", "sk-key-c-0123456789"


@asynccontextmanager
async def backend_at(server: QuotaServer, *keys: str, clock: Any = None, **settings: Any) -> AsyncIterator[Any]:
    """A backend with these keys."""
    names = [f"env:K{number}" for number in range(len(keys))]
    config = OPENAI.config.model_validate(
        {"base_url": server.base_url, "api_keys": names, **settings},
        context={"environ": {f"K{number}": key for number, key in enumerate(keys)}},
    )
    backend = OPENAI.build("up", config, clock or SystemClock())
    await backend.open()
    try:
        yield backend
    finally:
        await backend.aclose()


async def ask(backend: Any, *calls: Call) -> list[Reply]:
    """One after the other, each read to its end."""
    replies = []
    for call in calls:
        reply = await backend.send(call)
        await read_all(reply)
        replies.append(reply)
    return replies


async def test_calls_are_split_by_what_is_left() -> None:
    """A key with three times the quota takes three times the calls, and none is refused."""
    server = QuotaServer({A: Quota(requests=90), B: Quota(requests=30)})
    async with server, backend_at(server, A, B) as backend:
        await ask(backend, *(make_call(str(number)) for number in range(100)))

    assert server.statuses() == {200: 100}
    assert server.answered()[A] == pytest.approx(75, abs=3)


async def test_an_exhausted_key_is_left_out_and_its_call_goes_on_with_another() -> None:
    """The 429 is seen by nobody; nobody asks with it again before its time."""
    server = QuotaServer({A: Quota(requests=0), B: Quota(requests=50)}, tells=lambda *_: [])
    async with server, backend_at(server, A, B) as backend:
        replies = await ask(backend, *(make_call(str(number)) for number in range(20)))

    assert {reply.status for reply in replies} == {200}
    assert server.statuses() == {200: 20, 429: 1}


async def test_a_key_comes_back_when_it_said_so() -> None:
    """After its retry-after, by the clock."""
    clock = FakeClock()
    server = QuotaServer({A: Quota(requests=0), B: Quota()}, tells=lambda *_: [])
    server.retry_after = lambda _: [("retry-after", "20")]
    async with server, backend_at(server, A, B, clock=clock) as backend:
        await ask(backend, make_call(deadline=1e9), make_call(deadline=1e9))
        await clock.advance(19)
        await ask(backend, make_call(deadline=1e9), make_call(deadline=1e9))
        before = server.statuses()[429]
        await clock.advance(2)
        server.quotas[A].requests = None
        await ask(backend, *(make_call(deadline=1e9) for _ in range(6)))

    assert before == 1
    assert server.answered()[A] > 0


async def test_all_exhausted_is_answered_without_asking_and_says_until_when() -> None:
    """The last refusal goes to the client, and later calls are not sent at all."""
    clock = FakeClock()
    server = QuotaServer({A: Quota(requests=0), B: Quota(requests=0)}, tells=lambda *_: [])
    server.retry_after = lambda _: [("retry-after", "20")]
    async with server, backend_at(server, A, B, clock=clock) as backend:
        (first,) = await ask(backend, make_call(deadline=1e9))
        await clock.advance(5)
        with pytest.raises(UpstreamExhausted) as caught:
            await ask(backend, make_call(deadline=1e9))

    assert first.status == 429
    assert first.header(b"retry-after") == b"20"
    assert caught.value.retry_after_s == pytest.approx(15)
    assert server.statuses() == {429: 2}


@pytest.mark.parametrize("said", ["99999999999", "-5", "nan", "tomorrow", "1e300"])
async def test_a_wait_that_lies_keeps_a_key_out_for_minutes_at_most(said: str) -> None:
    """No upstream takes a key away for a day by one header."""
    clock = FakeClock()
    server = QuotaServer({A: Quota(requests=0)}, tells=lambda *_: [])
    server.retry_after = lambda _: [("retry-after", said)]
    async with server, backend_at(server, A, clock=clock) as backend:
        await ask(backend, make_call(deadline=1e9))
        server.quotas[A].requests = None
        await clock.advance(301)
        (reply,) = await ask(backend, make_call(deadline=1e9))

    assert reply.status == 200


async def test_a_wait_in_the_body_counts_as_in_the_header() -> None:
    """Gemini's way; the client gets it as a header."""
    clock = FakeClock()
    server = QuotaServer({A: Quota(requests=0)}, tells=lambda *_: [])
    server.retry_after = lambda _: []
    server.refusal_body = (
        b'[{"error": {"code": 429, "message": "quota", "status": "RESOURCE_EXHAUSTED", "details": [{"@type": '
        b'"type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "45.837906927s"}]}}]'
    )
    async with server, backend_at(server, A, clock=clock) as backend:
        (reply,) = await ask(backend, make_call(deadline=1e9))
        with pytest.raises(UpstreamExhausted) as caught:
            await ask(backend, make_call(deadline=1e9))

    assert reply.header(b"retry-after") == b"46"
    assert caught.value.retry_after_s == pytest.approx(45.84, abs=0.01)


async def test_a_key_that_is_revoked_in_the_middle_is_left_out() -> None:
    """No call fails, and it is asked once."""
    server = QuotaServer({A: Quota(), B: Quota()})
    async with server, backend_at(server, A, B) as backend:
        await ask(backend, *(make_call(str(number)) for number in range(10)))
        server.quotas[A].is_revoked = True
        replies = await ask(backend, *(make_call(str(number)) for number in range(20)))

    assert {reply.status for reply in replies} == {200}
    assert server.statuses() == {200: 30, 401: 1}


async def test_all_keys_rejected_is_the_error_of_one_key() -> None:
    """And a key that is mended is found by the next call."""
    server = QuotaServer({A: Quota(is_revoked=True), B: Quota(is_revoked=True)})
    async with server, backend_at(server, A, B) as backend:
        with pytest.raises(UpstreamRejectedKey):
            await ask(backend, make_call())
        server.quotas[A].is_revoked = False
        (reply,) = await ask(backend, make_call())

    assert reply.status == 200


async def test_a_call_that_every_key_is_forbidden_leaves_none_out() -> None:
    """A provider's filter answers 403 too: no caller talks the keys away."""
    server = QuotaServer({A: Quota(is_forbidden=True), B: Quota(is_forbidden=True)})
    async with server, backend_at(server, A, B) as backend:
        (reply,) = await ask(backend, make_call())
        for quota in server.quotas.values():
            quota.is_forbidden = False
        await ask(backend, *(make_call(str(number)) for number in range(10)))

    assert reply.status == 403
    assert set(server.answered()) == {A, B}


async def test_what_passes_through_takes_no_key_away() -> None:
    """An administrator's path wants rights that the keys need not have, and any caller may ask it."""
    server = QuotaServer({A: Quota(is_revoked=True), B: Quota(is_revoked=True)})
    async with server, backend_at(server, A, B, shares_objects=True) as backend:
        with pytest.raises(UpstreamRejectedKey):
            await ask(backend, make_call(operation=Operation.PASSTHROUGH))
        is_out = [key.is_out for key in backend.keys.statistics()]

    assert server.statuses() == {401: 2}
    assert is_out == [False, False]


async def test_a_call_that_is_too_large_for_any_minute_takes_no_key_away() -> None:
    """OpenAI answers 429, and says in its words that it is the request."""
    server = QuotaServer({A: Quota(tokens=1000), B: Quota(tokens=1000)}, tells=lambda *_: [])
    server.refusal_body = (
        b'{"error": {"message": "Request too large for m on tokens per min (TPM): Limit 1000, Requested 2000. The '
        b'input or output tokens must be reduced in order to run successfully.", "type": "tokens", "code": '
        b'"rate_limit_exceeded"}}'
    )
    async with server, backend_at(server, A, B) as backend:
        replies = await ask(
            backend, make_call("x" * 8000), make_call("small"), make_call("x" * 8000), make_call("small")
        )

    assert [reply.status for reply in replies] == [429, 200, 429, 200]


async def test_models_that_callers_make_up_are_forgotten() -> None:
    """The oldest of more than 64, for each key."""
    server = QuotaServer({A: Quota(requests=10**6)})
    async with server, backend_at(server, A) as backend:
        await ask(backend, *(make_call(model=f"model-{number}") for number in range(200)))

    assert len(backend.keys.all[0]._allowances) == 64


async def test_a_key_that_is_forbidden_what_another_may_is_left_out() -> None:
    """For that model."""
    server = QuotaServer({A: Quota(is_forbidden=True), B: Quota()})
    async with server, backend_at(server, A, B) as backend:
        await ask(backend, *(make_call(str(number)) for number in range(10)))

    assert server.statuses() == {200: 10, 403: 1}


def _long(number: int) -> str:
    return f"{number} " * 3000


async def test_prompts_that_begin_alike_stay_with_a_key() -> None:
    """Thirty conversations of five turns: each is kept by one key, and all keys have some."""
    server = QuotaServer({A: Quota(), B: Quota(), C: Quota()})
    async with server, backend_at(server, A, B, C) as backend:
        for turn in range(5):
            await ask(backend, *(make_call(_long(number) + str(turn)) for number in range(30)))

    keys = {(each.beginning, each.key) for each in server.asked}
    assert len(keys) == 30
    assert min(Counter(key for _, key in keys).values()) >= 4


async def test_a_prompt_cache_key_decides_where_a_caller_has_set_one() -> None:
    """Whatever the prompt."""
    server = QuotaServer({A: Quota(), B: Quota(), C: Quota()})
    async with server, backend_at(server, A, B, C) as backend:
        calls = [make_call(f"short {number}", extra={"prompt_cache_key": "session-7"}) for number in range(9)]
        await ask(backend, *calls)

    assert len(server.answered()) == 1


async def test_a_sticky_prompt_goes_elsewhere_where_its_key_has_no_room() -> None:
    """And comes back: the order of keys is its own."""
    server = QuotaServer({A: Quota(requests=3, window_s=0.4), B: Quota(requests=3, window_s=0.4)})
    async with server, backend_at(server, A, B) as backend:
        replies = await ask(backend, *(make_call(_long(1)) for _ in range(6)))

    assert {reply.status for reply in replies} == {200}
    assert server.statuses() == {200: 6}
    assert sorted(server.answered().values()) == [3, 3]


def _lies(quota: Quota, now: float) -> Fields:
    """A different one each time."""
    lies = [
        [("x-ratelimit-remaining-requests", "-1"), ("x-ratelimit-limit-requests", "0")],
        [("x-ratelimit-remaining-requests", "99999999999999999999"), ("x-ratelimit-reset-requests", "NaN")],
        [("x-ratelimit-remaining-tokens", "0"), ("x-ratelimit-reset-tokens", "9999999h")],
        [("x-ratelimit-remaining-requests", "0"), ("x-ratelimit-limit-requests", "0")],
        [("x-ratelimit-remaining-tokens", "5"), ("x-ratelimit-reset-tokens", "0001-01-01T00:00:00Z")],
        [("x-ratelimit-" + "remaining-requests" * 200, "1"), ("x-ratelimit-remaining-requests", "7" * 5000)],
    ]
    return lies[len(quota.spent) % len(lies)]


async def test_headers_that_lie_stop_no_call() -> None:
    """What is told as left is a preference; only a refusal leaves a key out."""
    server = QuotaServer({A: Quota(), B: Quota()}, tells=_lies)
    async with server, backend_at(server, A, B) as backend:
        replies = await ask(backend, *(make_call(_long(number)) for number in range(40)))

    assert {reply.status for reply in replies} == {200}


@pytest.mark.parametrize(
    "asked",
    [
        {"operation": Operation.PASSTHROUGH},
        {"operation": Operation.RESPONSES},
        {"pinned": "up"},
        {"extra": {"store": True}},
    ],
    ids=["passed through", "responses", "pinned", "stored"],
)
async def test_what_an_account_keeps_is_asked_with_the_first_key(asked: dict[str, Any]) -> None:
    """The others would not find it; unless they are of one account."""
    server = QuotaServer({A: Quota(), B: Quota()})
    async with server:
        async with backend_at(server, A, B) as backend:
            await ask(backend, *(make_call(**asked) for _ in range(6)))
        bound = server.answered()
        async with backend_at(server, A, B, shares_objects=True) as backend:
            await ask(backend, *(make_call(**asked) for _ in range(6)))

    assert bound == {A: 6}
    assert server.answered() == {A: 9, B: 3}


async def test_no_key_is_shown() -> None:
    """Not by the settings, and not where an upstream repeats it."""
    server = QuotaServer({A: Quota(), B: Quota()}, tells=lambda *_: [("x-echo", f"{A} {B}")])
    async with server, backend_at(server, A, B) as backend:
        (reply,) = await ask(backend, make_call())
        (probe,) = [key for key in backend.keys.statistics() if key.name == "1"]

    assert reply.header(b"x-echo") == b"[redacted] [redacted]"
    assert A not in f"{probe!r}{backend._config!r}"


async def test_a_backend_with_one_key_tells_what_is_left_too() -> None:
    """For metrics; nothing is decided by it."""
    server = QuotaServer({A: Quota(requests=10)})
    async with server:
        config = OPENAI.config.model_validate(
            {"base_url": server.base_url, "api_key": "env:K"}, context={"environ": {"K": A}}
        )
        backend = OPENAI.build("up", config, SystemClock())
        await ask(backend, make_call(), make_call())
        await backend.aclose()

    assert isinstance(backend, Keyed)
    (key,) = backend.keys.statistics()
    assert key.left["requests"].limit == 10
    assert key.left["requests"].left == pytest.approx(8, abs=0.5)


@asynccontextmanager
async def anthropic_at(server: QuotaServer, *keys: str) -> AsyncIterator[Any]:
    """A backend that speaks the Messages API."""
    config = ANTHROPIC.config.model_validate(
        {"base_url": server.base_url, "api_keys": [f"env:K{number}" for number in range(len(keys))]},
        context={"environ": {f"K{number}": key for number, key in enumerate(keys)}},
    )
    backend = ANTHROPIC.build("up", config, SystemClock())
    await backend.open()
    try:
        yield backend
    finally:
        await backend.aclose()


async def test_anthropic_keys_are_split_by_what_is_left() -> None:
    """Told in its own words; one that is revoked costs no call."""
    server = QuotaServer({A: Quota(requests=90), B: Quota(requests=30), C: Quota()}, tells=as_anthropic)
    async with server, anthropic_at(server, A, B) as backend:
        await ask(backend, *(make_call(str(number)) for number in range(60)))
        split = server.answered()
        server.quotas[A].is_revoked = True
        replies = await ask(backend, *(make_call(str(number)) for number in range(10)))

    assert split[A] == pytest.approx(45, abs=3)
    assert {reply.status for reply in replies} == {200}
    assert server.statuses() == {200: 70, 401: 1}


async def test_anthropic_keys_that_are_all_rejected_are_an_error() -> None:
    """Each was tried."""
    server = QuotaServer({A: Quota(is_revoked=True), B: Quota(is_revoked=True)})
    async with server, anthropic_at(server, A, B) as backend:
        with pytest.raises(UpstreamRejectedKey):
            await ask(backend, make_call())

    assert {each.key for each in server.asked} == {A, B}
