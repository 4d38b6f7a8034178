"""What backends may be asked, kept to by a pool, with upstreams on real sockets that keep real quotas."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import msgspec
import pytest

from backends.clock import SystemClock
from backends.errors import NoBackendAvailable, UpstreamExhausted
from backends.http.openai import KIND
from backends.operations import Operation
from backends.quotas.key_demand import prompt_tokens
from policies.pool.attempts.settings import RetryPolicy
from policies.pool.member import Member
from policies.pool.pool import Pool
from policies.pool.settings import CircuitBreakerPolicy
from tests.support.calls import make_call, read_all
from tests.support.servers.openai_server import Behaviour, OpenAIServer
from tests.support.servers.quota_server import Quota, QuotaServer

KEY = "sk-upstream-0123456789"
_CLOCK = SystemClock()


@asynccontextmanager
async def leaf_at(url: str, name: str = "up", **settings: Any) -> AsyncIterator[Any]:
    """A backend there."""
    given = {"base_url": url, "api_key": "env:KEY", **settings}
    leaf = KIND.build(name, KIND.config.model_validate(given, context={"environ": {"KEY": KEY}}), _CLOCK)
    await leaf.open()
    try:
        yield leaf
    finally:
        await leaf.aclose()


def pool_of(*members: Member, attempts: int = 0) -> Pool:
    """A pool that takes turns."""
    return Pool(
        "all",
        members,
        retry=RetryPolicy(attempts=attempts),
        breaker=CircuitBreakerPolicy(max_ejection_percent=100),
        clock=_CLOCK,
        random=Random(1),
    )


async def ask(pool: Pool, number: int = 1, text: str = "hello") -> list[int]:
    """The statuses of so many calls, one after the other."""
    statuses = []
    for _ in range(number):
        reply = await pool.send(make_call(text))
        await read_all(reply)
        statuses.append(reply.status)
    return statuses


async def test_a_member_with_room_is_asked_before_one_without() -> None:
    """Though it has less of the weight, and only stands by."""
    async with QuotaServer({KEY: Quota(requests=30)}) as first, QuotaServer({KEY: Quota()}) as second:
        async with (
            leaf_at(first.base_url, "a", quota={"rpm": 30}) as a,
            leaf_at(second.base_url, "b") as b,
        ):
            statuses = await ask(pool_of(Member(a, weight=9), Member(b, priority=1)), 40)

    assert set(statuses) == {200}
    assert first.statuses() == {200: 3}
    assert second.statuses() == {200: 37}


async def test_where_none_has_room_the_call_is_refused_unsent_and_told_until_when() -> None:
    """The wait is the shortest of all members, and it is true."""
    async with QuotaServer({KEY: Quota()}) as server:
        async with (
            leaf_at(server.base_url, "a", quota={"rpm": 60, "burst": "1s"}) as a,
            leaf_at(server.base_url, "b", quota={"rpm": 1200, "burst": "100ms"}) as b,
        ):
            pool = pool_of(Member(a), Member(b))
            await ask(pool, 3)
            with pytest.raises(UpstreamExhausted) as caught:
                await ask(pool)
            assert caught.value.retry_after_s is not None
            sent = len(server.asked)
            await _CLOCK.sleep(caught.value.retry_after_s + 0.001)
            statuses = await ask(pool)

    assert sent == 3
    assert caught.value.retry_after_s <= 61 / 1200
    assert statuses == [200]


async def test_a_backend_by_itself_keeps_to_its_quota_too() -> None:
    """Whoever asks it, and whether or not a pool has looked."""
    async with QuotaServer({KEY: Quota()}) as server:
        async with leaf_at(server.base_url, quota={"rpm": 60, "burst": "1s"}) as leaf:
            await read_all(await leaf.send(make_call()))
            with pytest.raises(UpstreamExhausted):
                await leaf.send(make_call())

    assert server.statuses() == {200: 1}


async def test_out_of_rotation_is_not_out_of_quota() -> None:
    """A member that is down does not make the other's quota the reason, nor the other way round."""
    async with QuotaServer({KEY: Quota()}) as server, OpenAIServer(Behaviour(status=500, body=b"{}")) as broken:
        async with (
            leaf_at(server.base_url, "a", quota={"rpm": 60, "burst": "1s"}) as a,
            leaf_at(broken.base_url, "b") as b,
        ):
            pool = pool_of(Member(a), Member(b))
            for breaker in pool.breakers_of(b):
                breaker.mark_down(60)
            await ask(pool)
            with pytest.raises(UpstreamExhausted):
                await ask(pool)
            for breaker in pool.breakers_of(a):
                breaker.mark_down(60)
            with pytest.raises(NoBackendAvailable):
                await ask(pool)


async def test_tokens_are_reserved_and_then_settled_by_what_was_used() -> None:
    """An answer that was longer than the mean is waited for, below zero if need be; a short one is given back."""
    async with QuotaServer({KEY: Quota()}, output_tokens=5_000) as long, QuotaServer({KEY: Quota()}) as short:
        async with (
            leaf_at(long.base_url, "a", quota={"tpm": 60_000}) as a,
            leaf_at(short.base_url, "b", quota={"tpm": 60_000}) as b,
        ):
            await ask(pool_of(Member(a)), 2)
            with pytest.raises(UpstreamExhausted) as caught:
                await ask(pool_of(Member(a)))
            await ask(pool_of(Member(b)), 60)
            left = b.keys.declared_left()["all"]["tokens"].left

    assert caught.value.retry_after_s == pytest.approx((10_000 - 6_000 + 400) / (54_000 / 61), rel=0.2)
    assert left == pytest.approx(6_000 - 60 * 30, abs=400)


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_what_was_refused_gives_its_tokens_back(status: int) -> None:
    """Only its request counts."""
    async with OpenAIServer(Behaviour(status=status, body=b'{"error": {"message": "no"}}')) as server:
        async with leaf_at(server.base_url, quota={"rpm": 600, "tpm": 60_000}) as leaf:
            await ask(pool_of(Member(leaf)), 1, "x" * 8_000)
            left = leaf.keys.declared_left()["all"]

    assert left["requests"].left == pytest.approx(59, abs=1)
    assert left["tokens"].left == 6_000


async def test_a_prompt_that_is_larger_than_all_that_goes_at_once_goes_when_all_is_there() -> None:
    """And those behind it wait for longer: it is not refused for ever."""
    async with QuotaServer({KEY: Quota()}) as server:
        async with leaf_at(server.base_url, quota={"tpm": 6_000}) as leaf:
            pool = pool_of(Member(leaf))
            statuses = await ask(pool, 1, "x" * 40_000)
            with pytest.raises(UpstreamExhausted) as caught:
                await ask(pool)

    assert statuses == [200]
    assert caught.value.retry_after_s == pytest.approx(10_000 / (5_400 / 61), rel=0.1)


async def test_what_a_caller_says_of_itself_keeps_others_waiting_for_a_minute_at_most() -> None:
    """A body of megabytes, which the upstream refuses in the end, is not a quota of hours."""
    async with OpenAIServer(Behaviour(stall_before_head=True)) as server:
        async with leaf_at(server.base_url, quota={"tpm": 6_000}) as leaf:
            pool = pool_of(Member(leaf))
            asking = asyncio.create_task(ask(pool, 1, "x" * 4_000_000))
            await server.wait_request()
            with pytest.raises(UpstreamExhausted) as caught:
                await ask(pool)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)

    assert caught.value.retry_after_s is not None
    assert 55 < caught.value.retry_after_s < 75


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 900_000}},
        {"type": "input_audio", "input_audio": {"data": "A" * 900_000, "format": "wav"}},
        {"type": "file", "file": {"file_data": "data:application/pdf;base64," + "A" * 900_000}},
    ],
    ids=["picture", "sound", "file"],
)
def test_pictures_are_not_counted_as_text(part: dict[str, Any]) -> None:
    """900 KB of base64 are no 225,000 tokens; what is beside them is counted."""
    plain = make_call(extra={"messages": [{"role": "user", "content": [{"type": "text", "text": "word " * 8000}]}]})
    both = [{"type": "text", "text": "word " * 8000}, part, part]
    rich = make_call(extra={"messages": [{"role": "user", "content": both}]})

    assert prompt_tokens(plain) == pytest.approx(10_000, rel=0.01)
    assert prompt_tokens(rich) - prompt_tokens(plain) == pytest.approx(2_000, abs=100)


def test_what_passes_unread_has_no_tokens() -> None:
    """A file of 100 MB that is uploaded is no prompt."""
    call = make_call(operation=Operation.PASSTHROUGH, raw=b"x" * 10_000_000, body=None)

    assert prompt_tokens(call) == 0


async def test_a_key_with_a_quota_of_its_own_is_kept_to() -> None:
    """The other one takes the rest; the first may do no more."""
    keys = {"A": "sk-a-0123456789", "B": "sk-b-0123456789"}
    async with QuotaServer({key: Quota() for key in keys.values()}) as server:
        given = {"base_url": server.base_url, "api_keys": [{"key": "env:A", "rpm": 60}, "env:B"]}
        leaf = KIND.build("up", KIND.config.model_validate(given, context={"environ": keys}), _CLOCK)
        await leaf.open()
        await ask(pool_of(Member(leaf)), 30)
        await leaf.aclose()

    assert server.statuses() == {200: 30}
    assert server.answered()[keys["A"]] <= 7


async def test_embeddings_reserve_no_answer() -> None:
    """They have none."""
    async with OpenAIServer() as server, leaf_at(server.base_url, quota={"tpm": 6_000}) as leaf:
        call = make_call(operation=Operation.EMBEDDING)
        room = leaf.keys.reserve(call, call.model).tokens
        chat = leaf.keys.reserve(make_call(), "m").tokens

    assert room == len(call.raw) // 4
    assert chat > 256


async def test_a_hedge_does_not_settle_the_charge_of_the_other_attempt() -> None:
    """Each attempt's own charge settles its own reservation."""
    async with QuotaServer({KEY: Quota()}) as server, leaf_at(server.base_url, quota={"tpm": 60_000}) as leaf:
        call = make_call()
        first, second = call.facts, call.facts.apart()
        one, two = first.charge("up", "m"), second.charge("up", "m")
        await read_all(await leaf.send(call))
        await read_all(await leaf.send(msgspec.structs.replace(call, facts=second)))
        before = leaf.keys.declared_left()["all"]["tokens"].left
        one.settle(None)
        after = leaf.keys.declared_left()["all"]["tokens"].left

    assert first.attempt_charge is one
    assert second.attempt_charge is two
    assert after - before == pytest.approx(270, abs=60)
