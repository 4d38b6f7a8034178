"""Limits and budgets as clients meet them: what is let in, what the headers say, and that nothing refused is sent."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.gateway import Gateway, running_gateway
from tests.support.servers.openai_server import Behaviour, OpenAIServer, error

POLICY = """
version: 1
backends:
  up: {{type: openai, base_url: "{url}"}}
keys:
  - {{name: alice, key: env:ALICE, tenant: red}}
  - {{name: bob, key: env:BOB, tenant: red}}
  - {{name: carol, key: env:CAROL, tenant: blue, team: search, tags: ["project:a", "beta"]}}
  - {{name: dave, key: env:DAVE, tenant: blue, team: search, tags: [beta], limit: {{rpm: 20}}, budget: {{usd: 0.002}}}}
routes:
  - {{name: priced, match: {{models: ["priced*"]}}, backends: [{{ref: up, price: {price}}}], cache: {{exact: {{}}}}}}
  - {{name: cheap, match: {{models: ["cheap"]}}, backends: [{{ref: up, price: {cheap}, model: small}}]}}
  - {{name: unpriced, match: {{models: ["*"]}}, backends: [{{ref: up}}]}}
{rules}
"""
PRICE = "{input_per_1m: 1, output_per_1m: 1000}"
"""A word of an answer is a tenth of a cent."""
KEYS = {"ALICE": "sk-alice", "BOB": "sk-bob", "CAROL": "sk-carol", "DAVE": "sk-dave"}
PATH = "/v1/chat/completions"


class Limited:
    """A gateway with rules in front of one upstream."""

    def __init__(self, gateway: Gateway, upstream: OpenAIServer, client: httpx.AsyncClient) -> None:
        self.gateway = gateway
        self.upstream = upstream
        self._client = client

    async def ask(self, who: str = "alice", model: str = "priced", words: str = "one two", **fields: Any) -> Any:
        """A chat of this key; the upstream says the words again, and counts each of them."""
        headers = {"authorization": f"Bearer sk-{who}", **fields.pop("headers", {})}
        body = {"model": model, "messages": [{"role": "user", "content": words}], **fields}
        return await self._client.post(fields.pop("path", PATH), json=body, headers=headers)

    async def ask_until_refused(self, most: int = 50, **fields: Any) -> tuple[int, httpx.Response]:
        """How many were answered before one was not, and that one."""
        for number in range(most):
            answer = await self.ask(**fields)
            if answer.status_code != 200:
                return number, answer
        raise AssertionError(f"none of {most} was refused")


@pytest.fixture
async def upstream() -> AsyncIterator[OpenAIServer]:
    """One for each test."""
    async with OpenAIServer() as server:
        yield server


@pytest.fixture
async def limited(upstream: OpenAIServer, request: pytest.FixtureRequest) -> AsyncIterator[Limited]:
    """With the rules that the test names."""
    with running_gateway(policy_of(upstream, request.param), environ=KEYS) as gateway:
        async with httpx.AsyncClient(verify=False, base_url=gateway.url, timeout=20) as client:
            yield Limited(gateway, upstream, client)


def policy_of(upstream: OpenAIServer, rules: str) -> str:
    """The whole file."""
    cheap = "{input_per_1m: 0, output_per_1m: 0}"
    return POLICY.format(url=upstream.base_url, price=PRICE, cheap=cheap, rules=rules)


def with_rules(rules: str) -> pytest.MarkDecorator:
    """The rules of a test."""
    return pytest.mark.parametrize("limited", [rules], indirect=True)


def code_of(answer: httpx.Response) -> str:
    """Why it was refused."""
    code: str = answer.json()["error"]["code"]
    return code


@with_rules("limits: [{name: each, rpm: 120, tpm: 120000, burst: 3s}]")
async def test_requests_are_counted_down_and_refused_with_a_true_wait(limited: Limited) -> None:
    """Six at once, two a second behind them; another key has its own."""
    remaining = []
    for number in range(6):
        answer = await limited.ask(words=f"word {number}")
        assert answer.headers["x-ratelimit-limit-requests"] == "120"
        assert answer.headers["x-ratelimit-limit-tokens"] == "120000"
        remaining.append(int(answer.headers["x-ratelimit-remaining-requests"]))
    assert remaining[0] == 5
    assert remaining == sorted(remaining, reverse=True)
    answered, refused = await limited.ask_until_refused(words="more")
    assert answered <= 2
    assert (refused.status_code, code_of(refused)) == (429, "rate_limit_exceeded")
    assert refused.headers["x-ratelimit-remaining-requests"] == "0"
    assert "120 requests a minute" in refused.json()["error"]["message"]
    wait_s = int(refused.headers["retry-after-ms"]) / 1000
    assert 0 < wait_s <= 0.5
    assert (await limited.ask(who="bob")).status_code == 200
    await asyncio.sleep(wait_s)
    assert (await limited.ask(words="again")).status_code == 200
    metrics = await limited.gateway.metrics()
    assert metrics.value("slipstream_limit_refused_total", rule="each", reached="requests") == 1


@with_rules("limits: [{name: words, per: tenant, tpm: 600, burst: 60s}]")
async def test_tokens_are_settled_with_what_the_upstream_told(limited: Limited) -> None:
    """Six hundred words of an answer that was expected to have fewer: the tenant waits, its other key too."""
    answer = await limited.ask(words="word " * 400, max_tokens=1000)
    assert answer.status_code == 200
    refused = await limited.ask(who="bob")
    assert (refused.status_code, code_of(refused)) == (429, "rate_limit_exceeded")
    assert 10 < int(refused.headers["retry-after"]) <= 60
    assert (await limited.ask(who="carol")).status_code == 200


@with_rules("limits: [{name: few, concurrent: 2}]")
async def test_no_more_calls_at_once_and_one_that_is_left_gives_its_slot_back(limited: Limited) -> None:
    """Streams hold theirs to the end, or until their client goes."""
    limited.upstream.next(*[Behaviour(stall_after_events=2)] * 2)
    url = limited.gateway.url
    async with httpx.AsyncClient(verify=False, base_url=url, timeout=20) as client:
        body = {"model": "priced", "messages": [{"role": "user", "content": "one two three"}], "stream": True}
        head = {"authorization": "Bearer sk-alice", "cache-control": "no-store"}
        for _ in range(2):
            request = client.build_request("POST", PATH, json=body, headers=head)
            assert (await client.send(request, stream=True)).status_code == 200
        refused = await limited.ask()
        assert (refused.status_code, code_of(refused)) == (429, "rate_limit_exceeded")
        assert refused.headers["retry-after"] == "1"
        assert (await limited.ask(who="bob")).status_code == 200
    async with asyncio.timeout(10):
        while (await limited.ask()).status_code != 200:
            await asyncio.sleep(0.02)


@with_rules("budgets: [{name: cents, usd: 0.01, every: day}]")
async def test_a_budget_is_used_to_its_end_and_then_nothing_is_sent(limited: Limited) -> None:
    """A tenth of a cent a word: five answers of two words, whole or streamed; then none, for this key alone."""
    sent = 0
    for number in range(5):
        answer = await limited.ask(words=f"word {number}", stream=number % 2 == 0)
        assert answer.status_code == 200
        sent = len(limited.upstream.requests)
    for path in (PATH, "/v1/completions", "/v1/responses"):
        refused = await limited.ask(words="more", path=path, prompt="more", input="more")
        assert (refused.status_code, code_of(refused)) == (429, "insufficient_quota"), path
        assert refused.json()["error"]["type"] == "insufficient_quota"
        assert "of 0.01 USD is spent for today" in refused.json()["error"]["message"]
        assert 0 < int(refused.headers["retry-after"]) <= 86400
    assert len(limited.upstream.requests) == sent
    assert (await limited.ask(who="bob")).status_code == 200


@with_rules("budgets: [{name: cents, usd: 0.01, every: day}]")
async def test_what_is_cached_and_what_an_upstream_refuses_costs_nothing(limited: Limited) -> None:
    """Sixty answers of a cache and of errors fit into a budget of ten words."""
    limited.upstream.next(*[error(400)] * 30)
    for number in range(30):
        assert (await limited.ask(words=f"no {number}")).status_code == 400
    for _ in range(30):
        assert (await limited.ask(words="the same")).status_code == 200
    answered, _ = await limited.ask_until_refused(words="and another", headers={"cache-control": "no-store"})
    assert answered == 4


@with_rules("budgets: [{name: cents, usd: 0.01, every: total}]")
async def test_many_at_once_overspend_by_one_call_at_most(limited: Limited) -> None:
    """Forty calls that may cost three words each: at most one runs over, and the budget is used up."""

    async def ask(number: int) -> int:
        answer = await limited.ask(words=f"a b {number}", max_tokens=3)
        status: int = answer.status_code
        return status

    answered = 0
    for turn in range(10):
        statuses = await asyncio.gather(*(ask(4 * turn + number) for number in range(4)))
        answered += statuses.count(200)
    assert answered == 4


@with_rules("budgets: [{name: cents, usd: 0.01}]")
async def test_a_call_that_nobody_can_price_is_not_for_a_budget(limited: Limited) -> None:
    """No price, or nobody reads what it uses: refused before it is sent."""
    refused = await limited.ask(model="unpriced")
    assert (refused.status_code, code_of(refused)) == (403, "cost_unknown")
    refused = await limited.ask(path="/v1/audio/speech")
    assert (refused.status_code, code_of(refused)) == (403, "cost_unknown")
    for fields, named in (
        ({"service_tier": "ultrafast"}, "this model as ultrafast"),
        ({"inference_geo": "us"}, "this model as us"),
        ({"tools": [{"type": "web_search"}]}, "tools: web_search"),
    ):
        refused = await limited.ask(**fields)
        assert (refused.status_code, code_of(refused)) == (403, "cost_unknown")
        assert f"({named})" in refused.text or f"for {named})" in refused.text
    assert limited.upstream.requests == []


@with_rules("budgets: [{name: cents, per: tenant, usd: 0.002, on_exceed: fallback, fallback: cheap}]")
async def test_a_cheaper_route_takes_over_when_a_budget_is_spent(limited: Limited) -> None:
    """The client is answered all the same; the upstream is asked for the route's model."""
    assert (await limited.ask(words="one two")).status_code == 200
    for words in ("three", "four"):
        assert (await limited.ask(words=words)).status_code == 200
        assert limited.upstream.requests[-1].json()["model"] == "small"
    assert (await limited.gateway.wait_log(lambda line: line["route"] == "cheap"))["model"] == "priced"
    assert (await limited.ask(who="carol")).status_code == 200
    assert limited.upstream.requests[-1].json()["model"] == "priced"


@with_rules("budgets: [{name: runs, per: session, usd: 0.004, every: total}]")
async def test_a_session_has_a_budget_of_its_own(limited: Limited) -> None:
    """By the headers that agents send; a name that is too long is an error, and none is not counted."""
    for header in ("x-session-id", "session_id", "x-claude-code-session-id"):
        answered, refused = await limited.ask_until_refused(
            words=f"in {header}", headers={header: header, "cache-control": "no-store"}
        )
        assert (answered, code_of(refused)) == (2, "insufficient_quota")
    refused = await limited.ask(words="of another tenant", who="carol", headers={"x-session-id": "x-session-id"})
    assert refused.status_code == 200
    assert (await limited.ask(words="in none")).status_code == 200
    too_long = await limited.ask(headers={"x-session-id": "x" * 2000})
    assert too_long.status_code == 400
    assert "at most 256 bytes" in too_long.json()["error"]["message"]
    megabyte = "x-session-id: " + "x" * 2**20
    head = f"POST {PATH} HTTP/1.1\r\nhost: a\r\nauthorization: Bearer sk-alice\r\n{megabyte}\r\n\r\n"
    with contextlib.suppress(ConnectionError):
        # The connection is closed before all of it is read.
        assert (await limited.gateway.raw(head.encode())).startswith(b"HTTP/1.1 431 ")
    assert (await limited.ask(words="still there")).status_code == 200
    assert len(limited.upstream.requests) == 9


@with_rules("budgets: [{name: tiny, usd: 0.000000000001, every: total}]")
async def test_a_budget_that_is_smaller_than_a_call_bears_one(limited: Limited) -> None:
    """Of a pico-dollar: what is alone is let in, and then it is spent."""
    answered, refused = await limited.ask_until_refused(headers={"cache-control": "no-store"})
    assert (answered, code_of(refused)) == (1, "insufficient_quota")
    assert "of 1e-12 USD is spent" in refused.json()["error"]["message"]


@with_rules("budgets: [{name: soft, per: all, usd: 0.004, warn_at: 0.5, on_exceed: warn}]")
async def test_a_soft_budget_warns_once_and_refuses_nobody(limited: Limited) -> None:
    """The log and the metric say so."""
    for number in range(6):
        assert (await limited.ask(words=f"word {number}")).status_code == 200
    await limited.gateway.wait_stderr('the budget "soft" of 0.004 USD has 50 % spent')
    metrics = await limited.gateway.metrics()
    assert metrics.value("slipstream_limit_warnings_total", rule="soft") == 1


async def test_a_webhook_is_told(upstream: OpenAIServer) -> None:
    """Once in the window."""
    told: asyncio.Queue[Any] = asyncio.Queue()

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split()[0])
        told.put_nowait(json.loads(await reader.readexactly(length)))
        writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(take, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    rules = "budgets: [{name: soft, per: tenant, usd: 0.004, warn_at: 0.5, on_exceed: warn, webhook: env:HOOK}]"
    environ = {**KEYS, "HOOK": f"http://127.0.0.1:{port}/hook-secret"}
    async with server:
        with running_gateway(policy_of(upstream, rules), environ=environ) as gateway:
            async with httpx.AsyncClient(verify=False, base_url=gateway.url, timeout=20) as client:
                limited = Limited(gateway, upstream, client)
                for number in range(6):
                    assert (await limited.ask(words=f"word {number}")).status_code == 200
            async with asyncio.timeout(10):
                assert await told.get() == {
                    "event": "budget_warning",
                    "budget": "soft",
                    "who": "red",
                    "window": told_window(),
                    "spent_usd": "0.002002",
                    "budget_usd": "0.004",
                }
            assert told.empty()
            assert "hook-secret" not in gateway.stderr + gateway.stdout


def told_window() -> str:
    """The first of this month."""
    return datetime.now(UTC).date().replace(day=1).isoformat()


@with_rules("budgets: [{name: whole, per: all, usd: 0.006, every: day}, {name: each, usd: 1}]")
async def test_metrics_tell_what_a_budget_of_all_calls_has_and_what_is_used(limited: Limited) -> None:
    """Nothing is claimed before somebody has asked; a budget that a reload takes away is not told of."""
    used, has = "slipstream_limit_budget_used_usd", "slipstream_limit_budget_usd"
    before = await limited.gateway.metrics()
    assert before.value(has, rule="whole") == 0.006
    assert used not in {name for name, _, _ in before.samples}

    answered, _ = await limited.ask_until_refused(headers={"cache-control": "no-store"})
    after = await limited.gateway.metrics()
    assert answered == 3
    # Three answers of two words, and prompts: what was refused says where it stands.
    assert 0.006 <= after.value(used, rule="whole") < 0.007
    assert {labels["rule"] for name, labels, _ in after.samples if name in (used, has)} == {"whole"}

    assert await limited.gateway.reload(policy_of(limited.upstream, "budgets: [{name: each, usd: 1}]"))
    assert not {name for name, _, _ in (await limited.gateway.metrics()).samples} & {used, has}


@with_rules("budgets: [{name: cents, usd: 0.004}]")
async def test_a_reload_gives_nothing_back(limited: Limited) -> None:
    """What was spent stays spent; a larger budget is there at once."""
    answered, _ = await limited.ask_until_refused(headers={"cache-control": "no-store"})
    assert answered == 2
    for usd, status in (("0.004", 429), ("0.006", 200), ("0.003", 429)):
        assert await limited.gateway.reload(
            policy_of(limited.upstream, f"budgets: [{{name: cents, usd: {usd}, warn_at: 0.9}}]")
        )
        assert (await limited.ask(headers={"cache-control": "no-store"})).status_code == status


@pytest.mark.parametrize(
    "per", ["key", "tenant", "session", "user", "agent", "tenant, keys: [al*]", "user, models: [priced]"]
)
async def test_what_was_spent_is_known_after_a_restart(upstream: OpenAIServer, tmp_path: Path, per: str) -> None:
    """From the ledger, also where the gateway was killed."""
    rules = f'ledger: {{url: "sqlite:///{tmp_path}/ledger.sqlite3", time_zone: Asia/Kathmandu}}\n'
    rules += f"budgets: [{{name: cents, per: {per}, usd: 0.004, every: day, time_zone: America/New_York}}]"
    fields = {"headers": {"cache-control": "no-store", "x-session-id": "one"}, "user": "u" * 300 + "\0"}
    for turn in range(2):
        with running_gateway(policy_of(upstream, rules), environ=KEYS) as gateway:
            async with httpx.AsyncClient(verify=False, base_url=gateway.url, timeout=20) as client:
                limited = Limited(gateway, upstream, client)
                answered, refused = await limited.ask_until_refused(**fields)
                assert (answered, code_of(refused)) == (0 if turn else 2, "insufficient_quota")
            # The journal has it, and the store may not have it yet.
            gateway.process.kill()
            await gateway.wait_exit()


async def test_call_whose_gateway_was_killed_has_spent_what_was_held_for_it(
    upstream: OpenAIServer, tmp_path: Path
) -> None:
    """Its upstream has worked, and nobody was told how much: the budget is not given out a second time."""
    rules = f'ledger: {{url: "sqlite:///{tmp_path}/ledger.sqlite3"}}\nbudgets: [{{name: cents, per: key, usd: 0.004}}]'
    upstream.next(Behaviour(stall_before_head=True))
    with running_gateway(policy_of(upstream, rules), environ=KEYS) as gateway:
        async with httpx.AsyncClient(verify=False, base_url=gateway.url, timeout=20) as client:
            hanging = asyncio.create_task(Limited(gateway, upstream, client).ask(max_tokens=3))
            await upstream.wait_request(timeout_s=5)
            gateway.process.kill()
            await gateway.wait_exit()
            with pytest.raises(httpx.HTTPError):
                await hanging
    with running_gateway(policy_of(upstream, rules), environ=KEYS) as gateway:
        async with httpx.AsyncClient(verify=False, base_url=gateway.url, timeout=20) as client:
            limited = Limited(gateway, upstream, client)
            # Three tenths of a cent were held, so what is left of four is used up by one answer of two words.
            answered, refused = await limited.ask_until_refused(headers={"cache-control": "no-store"})

    assert (answered, code_of(refused)) == (1, "insufficient_quota")


async def test_what_a_key_has_spent_of_its_own_budget_is_known_after_a_restart(
    upstream: OpenAIServer, tmp_path: Path
) -> None:
    """And nobody else's."""
    policy = policy_of(upstream, f'ledger: {{url: "sqlite:///{tmp_path}/ledger.sqlite3"}}')
    for turn in range(2):
        with running_gateway(policy, environ=KEYS) as gateway:
            async with httpx.AsyncClient(verify=False, base_url=gateway.url, timeout=20) as client:
                limited = Limited(gateway, upstream, client)
                assert (await limited.ask(who="carol", words=f"words {turn}")).status_code == 200
                answered, refused = await limited.ask_until_refused(who="dave", words=f"other {turn}")
                assert (answered, code_of(refused)) == (0 if turn else 1, "insufficient_quota")
            # The journal has it, and the store may not have it yet.
            gateway.process.kill()
            await gateway.wait_exit()


@with_rules("")
async def test_a_key_has_a_limit_and_a_budget_of_its_own(limited: Limited) -> None:
    """Two requests at once of twenty a minute, and one answer of two words; nobody else has them."""
    assert (await limited.ask(who="dave")).headers["x-ratelimit-limit-requests"] == "20"
    answered, refused = await limited.ask_until_refused(who="dave", words="other words")
    assert (answered, code_of(refused)) == (0, "insufficient_quota")
    assert "the budget of this key of 0.002 USD is spent" in refused.json()["error"]["message"]
    answered, refused = await limited.ask_until_refused(who="dave")
    assert code_of(refused) in ("insufficient_quota", "rate_limit_exceeded")
    assert "x-ratelimit-limit-requests" not in (await limited.ask()).headers


@pytest.mark.parametrize(
    ("limited", "others"),
    [
        ("budgets: [{name: of, per: team, usd: 0.002}]", {"dave": 429, "alice": 200}),
        ("budgets: [{name: of, per: tag, usd: 0.002, tags: [beta]}]", {"dave": 429, "alice": 200}),
        ("budgets: [{name: of, per: tag, usd: 0.002, tags: ['project:*']}]", {"dave": 200, "alice": 200}),
        ("budgets: [{name: of, per: agent, usd: 0.002}]", {"dave": 429, "alice": 429}),
        ("budgets: [{name: of, per: model, models: ['Priced*'], usd: 0.002}]", {"dave": 429, "alice": 429}),
        ("budgets: [{name: of, per: all, keys: [carol, alice], usd: 0.002}]", {"dave": 200, "alice": 429}),
        ("budgets: [{name: of, per: tenant, agents: [curl], usd: 0.002}]", {"carol": 200, "dave": 200}),
    ],
    indirect=["limited"],
)
async def test_whose_calls_are_counted_together(limited: Limited, others: dict[str, int]) -> None:
    """What one key has spent is spent for those that the rule counts with it, and for nobody else."""
    assert (await limited.ask(who="carol")).status_code == 200
    for who, status in others.items():
        assert (await limited.ask(who=who, words="other words")).status_code == status, who
