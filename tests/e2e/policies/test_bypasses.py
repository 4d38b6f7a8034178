"""No way round a budget: other spellings, methods, paths, bodies, headers, reloads in the middle, lines of batches."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import httpx
import pytest

from tests.benchmarks.faults.bypasses import BY, COST, KEY, LARGE, SMALL, attempts_on, stage
from tests.support.bypasses import Attempt, attempts
from tests.support.gateway import Gateway, start_gateway
from tests.support.servers.lax_server import LaxServer

_ASK = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
FITS = int(float(SMALL) / float(COST))
"""So many calls."""


@pytest.mark.parametrize("group", ["operation", "spelling", "method", "other call", "reading", "body", "header"])
async def test_whatever_is_sent_is_metered_or_has_no_model_work(group: str) -> None:
    """While there is a budget: each is refused, paid for, or free for a reason."""
    async with stage(LARGE) as there:
        trials = await there.tried([attempt for attempt in attempts() if attempt.group == group])

    assert [trial for trial in trials if not trial.is_held] == []
    assert any(trial.num_sent for trial in trials) or group == "method"


@pytest.mark.parametrize("by", BY)
async def test_nothing_is_sent_once_the_budget_is_spent(by: str) -> None:
    """But what reads or ends what there is; whoever's budget it is."""
    async with stage(SMALL, by) as spent:
        num_calls = await spent.spend()
        trials = await spent.tried(attempts_on(by))

    assert num_calls == FITS
    assert [trial for trial in trials if trial.num_sent and not trial.attempt.is_reading] == []
    assert {trial.status for trial in trials if trial.attempt.is_reading} == {200}


async def test_a_reload_in_the_middle_gives_nothing_back() -> None:
    """Calls race it, before, meanwhile and after; all together fit, to the last."""
    # It may have as long an answer as the upstream gives.
    chat = Attempt("chat", body=b'{"model":"m","messages":[{"role":"user","content":"hi"}]}')
    async with stage(SMALL) as there:

        async def race(who: int) -> None:
            for number in range(20):
                await there.ask(chat, f"{who}-{number}")

        async with asyncio.TaskGroup() as group:
            for who in range(4):
                group.create_task(race(who))
            for number in range(3):
                await there.reload(number)
        num_sent = len(there.upstream.requests)
        await there.spend()
        await there.reload(9)
        later = await there.ask(chat, "later")

    assert 1 <= num_sent <= FITS
    assert len(there.upstream.requests) == FITS
    assert later == 429


@pytest.mark.parametrize("mode", ["calls", "provider"])
async def test_lines_of_batches_are_not_sent_once_the_budget_is_spent(tmp_path: Path, mode: str) -> None:
    """They wait, also where others go to a provider's own Batch API, which tells too late what it takes.

    Others of the route are not held up.
    """
    async with LaxServer() as upstream:
        policy = f"""
version: 1
backends: {{up: {{type: openai, base_url: "{upstream.base_url}"}}}}
stores: {{batches: {{folder: {tmp_path}}}}}
keys: [{{name: alice, key: "env:ALICE"}}, {{name: bob, key: "env:BOB", tenant: rich}}]
budgets: [{{name: of-the-key, keys: [alice], usd: {SMALL}, every: total}}]
routes:
  - name: all
    match: {{models: ["*"]}}
    backends: [{{ref: up, price: {{input_per_1m: 1, output_per_1m: 9}}}}]
    batch: {{mode: {mode}, collect_for: 10ms}}
"""
        async with start_gateway(policy, environ={"ALICE": KEY, "BOB": f"{KEY}-bob"}) as gateway:
            async with _client(gateway, KEY) as alice, _client(gateway, f"{KEY}-bob") as bob:
                while (await alice.post("/v1/chat/completions", json=_ASK)).status_code == 200:
                    continue
                hers = await _batch(alice)
                # The first of these was a call's.
                await gateway.wait_log(lambda line: line["status"] == 429, count=2)
                num_sent = len(upstream.requests)
                if mode == "calls":
                    await _batch(bob)
                    await gateway.wait_log(
                        lambda line: (line["operation"], line["tenant"]) == ("chat", "rich"), count=5
                    )
                batch = (await alice.get(f"/v1/batches/{hers}")).json()

    assert (batch["status"], batch["request_counts"]["completed"]) == ("in_progress", 0)
    assert num_sent == FITS
    assert len(upstream.requests) == FITS + (5 if mode == "calls" else 0)


async def test_lines_of_a_caller_with_a_budget_are_calls_on_a_route_of_a_provider(tmp_path: Path) -> None:
    """As long as there is a budget each is answered, and paid for."""
    async with LaxServer() as upstream:
        policy = f"""
version: 1
backends: {{up: {{type: openai, base_url: "{upstream.base_url}"}}}}
stores: {{batches: {{folder: {tmp_path}}}}}
budgets: [{{name: all, per: all, usd: {LARGE}, every: total}}]
routes:
  - name: all
    match: {{models: ["*"]}}
    backends: [{{ref: up, price: {{input_per_1m: 1, output_per_1m: 9}}}}]
    batch: {{mode: provider, collect_for: 10ms}}
"""
        async with start_gateway(policy) as gateway, _client(gateway, KEY) as client:
            made = await _batch(client)
            async with asyncio.timeout(20):
                while (batch := (await client.get(f"/v1/batches/{made}")).json())["status"] != "completed":
                    await asyncio.sleep(0.02)

    assert batch["request_counts"] == {"total": 5, "completed": 5, "failed": 0}
    assert {received.path for received in upstream.requests} == {"/v1/chat/completions"}


async def test_a_batch_is_paid_by_who_makes_it_whosever_its_file_is(tmp_path: Path) -> None:
    """A file is its tenant's: a key whose budget is spent gets nothing by the file of another, nor do other tenants."""
    async with LaxServer() as upstream:
        policy = f"""
version: 1
backends: {{up: {{type: openai, base_url: "{upstream.base_url}"}}}}
stores: {{batches: {{folder: {tmp_path}}}}}
keys:
  - {{name: alice, key: "env:ALICE", budget: {{usd: {SMALL}, every: total}}}}
  - {{name: carol, key: "env:CAROL"}}
  - {{name: bob, key: "env:BOB", tenant: rich}}
routes:
  - name: all
    match: {{models: ["*"]}}
    backends: [{{ref: up, price: {{input_per_1m: 1, output_per_1m: 9}}}}]
    batch: {{collect_for: 10ms}}
"""
        environ = {"ALICE": KEY, "CAROL": f"{KEY}-carol", "BOB": f"{KEY}-bob"}
        async with start_gateway(policy, environ=environ) as gateway:
            async with (
                _client(gateway, KEY) as alice,
                _client(gateway, f"{KEY}-carol") as carol,
                _client(gateway, f"{KEY}-bob") as bob,
            ):
                while (await alice.post("/v1/chat/completions", json=_ASK)).status_code == 200:
                    continue
                file = await _file(carol)
                hers = await _batch(alice, file)
                await gateway.wait_log(lambda line: line["status"] == 429, count=2)
                num_sent = len(upstream.requests)
                refused = await bob.post("/v1/batches", json=_wanted(file))
                await _batch(carol, await _file(alice))
                await gateway.wait_log(lambda line: (line["operation"], line["key"]) == ("chat", "carol"), count=5)
                batch = (await alice.get(f"/v1/batches/{hers}")).json()

    assert num_sent == FITS
    assert (refused.status_code, len(upstream.requests)) == (404, FITS + 5)
    assert (batch["status"], batch["request_counts"]["completed"]) == ("in_progress", 0)


def _client(gateway: Gateway, key: str) -> httpx.AsyncClient:
    headers = {"authorization": f"Bearer {key}"}
    return httpx.AsyncClient(base_url=gateway.url, headers=headers, verify=False, timeout=20)


async def _batch(client: httpx.AsyncClient, file: str | None = None) -> str:
    """The id of a new batch of five lines."""
    made = (await client.post("/v1/batches", json=_wanted(file or await _file(client)))).json()
    assert isinstance(made["id"], str)
    return made["id"]


async def _file(client: httpx.AsyncClient) -> str:
    """The id of a new file of five lines."""
    asked = {"method": "POST", "url": "/v1/chat/completions", "body": _ASK}
    lines = "\n".join(json.dumps({"custom_id": f"{number}", **asked}) for number in range(5))
    file = await client.post("/v1/files", files={"file": ("a.jsonl", lines)}, data={"purpose": "batch"})
    made: str = file.json()["id"]
    return made


def _wanted(file: str) -> dict[str, str]:
    return {"input_file_id": file, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
