"""No way round a budget: other spellings, methods, paths, bodies, headers, reloads in the middle, lines of batches."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import httpx
import pytest

from tests.benchmarks.faults.bypasses import COST, KEY, LARGE, SMALL, stage
from tests.support.bypasses import Attempt, attempts
from tests.support.gateway import start_gateway
from tests.support.servers.lax_server import LaxServer

FITS = int(float(SMALL) / float(COST))
"""So many calls."""


@pytest.mark.parametrize("group", ["operation", "spelling", "method", "other call", "reading", "body", "header"])
async def test_whatever_is_sent_is_metered_or_has_no_model_work(group: str) -> None:
    """While there is a budget: each is refused, paid for, or free for a reason."""
    async with stage(LARGE) as there:
        trials = await there.tried([attempt for attempt in attempts() if attempt.group == group])

    assert [trial for trial in trials if not trial.is_held] == []
    assert any(trial.num_sent for trial in trials) or group == "method"


async def test_nothing_is_sent_once_the_budget_is_spent() -> None:
    """But what reads or ends what there is."""
    async with stage(SMALL) as spent:
        num_calls = await spent.spend()
        trials = await spent.tried(list(attempts()))

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


async def test_lines_of_the_gateways_own_batches_are_not_sent_once_the_budget_is_spent(tmp_path: Path) -> None:
    """They wait for as long as the batch lasts."""
    async with LaxServer() as upstream:
        policy = f"""
version: 1
backends: {{up: {{type: openai, base_url: "{upstream.base_url}"}}}}
stores: {{batches: {{folder: {tmp_path}}}}}
keys: [{{name: alice, key: "env:ALICE"}}]
budgets: [{{name: of-the-key, usd: {SMALL}, every: total}}]
routes:
  - name: all
    match: {{models: ["*"]}}
    backends: [{{ref: up, price: {{input_per_1m: 1, output_per_1m: 9}}}}]
"""
        headers = {"authorization": f"Bearer {KEY}"}
        async with (
            start_gateway(policy, environ={"ALICE": KEY}) as gateway,
            httpx.AsyncClient(base_url=gateway.url, headers=headers, verify=False, timeout=20) as client,
        ):
            body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
            while (await client.post("/v1/chat/completions", json=body)).status_code == 200:
                continue
            num_sent = len(upstream.requests)
            lines = [
                json.dumps({"custom_id": f"{number}", "method": "POST", "url": "/v1/chat/completions", "body": body})
                for number in range(5)
            ]
            file = await client.post(
                "/v1/files", files={"file": ("a.jsonl", "\n".join(lines))}, data={"purpose": "batch"}
            )
            asked = {"input_file_id": file.json()["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"}
            made = await client.post("/v1/batches", json=asked)
            # The first of these was a call's.
            await gateway.wait_log(lambda line: line["status"] == 429, count=2)
            batch = (await client.get(f"/v1/batches/{made.json()['id']}")).json()

    assert (batch["status"], batch["request_counts"]["completed"]) == ("in_progress", 0)
    assert len(upstream.requests) == num_sent == FITS
