"""The ledger through `slipstream serve` and `slipstream ledger`: a row for every call, whatever becomes of it."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from gateway.cli.main import cli
from tests.faults.test_workers import workers_of
from tests.support.gateway import Gateway, start_gateway
from tests.support.ledger import running_postgres

CHAT = "/v1/chat/completions"
POLICY = """
version: 1
backends:
  words: {{type: scripted}}
  broken: {{type: scripted, script: [{{status: 500}}]}}
  slow: {{type: scripted, script: [{{delay: 60s}}]}}
ledger: {{url: "sqlite:///{path}", time_zone: Asia/Kathmandu}}
stores: {{batches: {{folder: {folder}}}}}
keys:
  - {{name: red, key: "env:RED_KEY", tenant: fire}}
  - {{name: blue, key: "env:BLUE_KEY", tenant: water}}
routes:
  - {{name: broken, match: {{models: [broken]}}, backends: [{{ref: broken}}], retry: {{attempts: 0}}}}
  - {{name: slow, match: {{models: [slow]}}, backends: [{{ref: slow}}]}}
  - {{name: all, match: {{models: ["*"]}}, backends: [{{ref: words}}], cache: {{}}, slo: {{ttft: 5s, tpot: 1s}}}}
"""
ENVIRON = {"RED_KEY": "sk-red-0123456789", "BLUE_KEY": "sk-blue-0123456789"}


def ledger(
    gateway: Gateway,
    *arguments: str,
    code: int = 0,
    policy: Path | None = None,
    environ: Mapping[str, str] | None = None,
) -> str:
    """What `slipstream ledger` prints; on standard error where it is to fail. A process each time takes a second."""
    command = ["ledger", arguments[0], "--config", str(policy or gateway.policy), *arguments[1:]]
    done = CliRunner().invoke(cli, command, env=environ)
    assert done.exit_code == code, done.output
    return done.stdout if code == 0 else done.stderr


def reported(gateway: Gateway, *by: str, environ: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
    dimensions = [word for name in by for word in ("--by", name)]
    lines: list[dict[str, Any]] = json.loads(
        ledger(gateway, "report", *dimensions, "--format", "json", environ=environ)
    )
    return lines


def exported(gateway: Gateway, environ: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
    return [json.loads(line) for line in ledger(gateway, "export", environ=environ).splitlines()]


async def wait_exported(
    gateway: Gateway, number: int, limit_s: float = 30.0, environ: Mapping[str, str] | None = None
) -> list[dict[str, Any]]:
    """The rows, once there are so many."""
    async with asyncio.timeout(limit_s):
        while len(rows := await asyncio.to_thread(exported, gateway, environ)) < number:
            await asyncio.sleep(0.1)
    return rows


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    """One worker."""
    policy = POLICY.format(path=tmp_path / "ledger.sqlite3", folder=tmp_path / "batches")
    async with start_gateway(policy, environ=ENVIRON) as running:
        yield running


def client_of(gateway: Gateway, key: str = "RED_KEY") -> httpx.AsyncClient:
    return httpx.AsyncClient(
        base_url=gateway.url, headers={"authorization": f"Bearer {ENVIRON[key]}"}, timeout=30.0, verify=False
    )


def chat(text: str = "hello", **fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": text}], **fields}


async def test_every_call_has_a_row_that_says_what_came_of_it(gateway: Gateway) -> None:
    """Answered, streamed, from the cache, failed, of either tenant; what no route took has none."""
    async with client_of(gateway) as red, client_of(gateway, "BLUE_KEY") as blue:
        whole = await red.post(CHAT, json=chat(user="bob"), headers={"x-request-id": "same"})
        await red.post(CHAT, json=chat(user="bob"), headers={"x-request-id": "same"})
        await blue.post(CHAT, json=chat(stream=True))
        failed = await red.post(CHAT, json=chat(model="broken"))
        await red.get("/v1/models")
        await red.post(CHAT, json=chat(), headers={"authorization": "Bearer nobody"})
    rows = await wait_exported(gateway, 4)

    first, again, streamed, broken = rows
    usage = whole.json()["usage"]
    assert failed.status_code == 500
    assert [row["request_id"] for row in rows[:2]] == ["same", "same"]
    assert (first["key"], first["tenant"], first["user"], first["route"]) == ("red", "fire", "bob", "all")
    assert (first["backend"], first["model"], first["stream"], first["end"]) == ("words", "m", False, "clean")
    assert (first["input_tokens"], first["output_tokens"]) == (usage["prompt_tokens"], usage["completion_tokens"])
    assert (first["cache"], again["cache"], again["backend"]) == ("miss", "hit", "")
    assert (streamed["tenant"], streamed["stream"], streamed["end"]) == ("water", True, "clean")
    assert streamed["ttft_us"] > 0
    assert (broken["status"], broken["route"], broken["end"]) == (500, "broken", "clean")
    assert [row["fault"] for row in rows] == ["", "", "", "upstream"]
    assert {row["in_slo"] for row in rows} == {True, None}
    # The scripted backend has no price; a cache and a refusal cost nothing, and nobody knows what the cache saved.
    assert [row["cost_usd"] for row in rows] == [None, "0", None, "0"]
    assert [row["saved_usd"] for row in rows] == [None, None, None, "0"]
    assert {row["kind"] for row in rows} == {"call"}


async def test_report_adds_up_what_export_lists(gateway: Gateway) -> None:
    """By each dimension, in each format; metrics have counted the same calls and tokens."""
    async with client_of(gateway) as red, client_of(gateway, "BLUE_KEY") as blue:
        for number in range(30):
            client = (red, blue)[number % 3 == 0]
            fields = {"user": "=cmd|' /C calc'!A0"} if number == 7 else {}
            call = chat(f"hello {number % 4}", model=f"m{number % 2}", stream=number % 5 == 0, **fields)
            await client.post(CHAT, json=call)
    rows = await wait_exported(gateway, 30)

    for by in ("tenant", "key", "model", "route", "user", "session", "day", "backend"):
        told = {line[by]: line["calls"] for line in reported(gateway, by)}
        assert told == Counter(row[by] for row in rows)
    text = ledger(gateway, "report", "--by", "day", "--by", "tenant", "--format", "csv")
    table = list(csv.DictReader(io.StringIO(text)))
    assert sum(int(line["input_tokens"]) for line in table) == sum(row["input_tokens"] for row in rows)
    assert {line["cost_usd"] for line in table} == {"0"}
    assert sum(int(line["unknown"]) for line in table) == sum(row["cost_usd"] is None for row in rows) > 0
    assert "unknown" in ledger(gateway, "report", "--by", "tenant")
    assert "no calls" in ledger(gateway, "report", "--by", "tenant", "--until", "2020-01-01")
    spread = json.loads(ledger(gateway, "latency", "--by", "model", "--by", "prompt", "--format", "json"))
    assert {(line["model"], line["prompt"]) for line in spread} == {("m0", "0"), ("m1", "0")}
    totals = [line for line in spread if line["measure"] == "total"]
    assert sum(line["calls"] for line in totals) == 30
    slowest_ms = max(row["total_us"] for row in rows) / 1e3
    assert max(line["p99_ms"] for line in totals) == pytest.approx(slowest_ms, rel=0.032)
    assert "p95_ms" in ledger(gateway, "latency", "--by", "hour")
    assert "no calls" in ledger(gateway, "latency", "--until", "2020-01-01")
    exported = list(csv.DictReader(io.StringIO(ledger(gateway, "export", "--format", "csv"))))
    assert len(exported) == 30
    # No spreadsheet takes it for a formula, nor an amount below 0 for a text.
    assert [line["user"] for line in exported if "cmd" in line["user"]] == ["'=cmd|' /C calc'!A0"]
    assert not any(line["saved_usd"].startswith("'") for line in exported)
    metrics = await gateway.metrics()
    assert metrics.value("slipstream_requests_total") == 30
    counted = metrics.value("slipstream_tokens_total", kind="prompt") + metrics.value(
        "slipstream_saved_tokens_total", kind="prompt"
    )
    assert counted == sum(row["input_tokens"] for row in rows)
    assert metrics.value("slipstream_ledger_rows_total") == 30


async def test_lines_of_batches_have_rows(gateway: Gateway) -> None:
    """They are calls like others, of the key that made the batch."""
    line = {"custom_id": "a", "method": "POST", "url": CHAT, "body": chat()}
    async with client_of(gateway) as red:
        files = {"file": ("f.jsonl", json.dumps(line))}
        file = await red.post("/v1/files", files=files, data={"purpose": "batch"})
        body = {"input_file_id": file.json()["id"], "endpoint": CHAT, "completion_window": "24h"}
        assert (await red.post("/v1/batches", json=body)).status_code == 200
        (row,) = await wait_exported(gateway, 1)

    assert (row["key"], row["tenant"], row["model"], row["output_tokens"] > 0) == ("red", "fire", "m", True)


async def test_killed_worker_leaves_a_row_for_each_call(tmp_path: Path) -> None:
    """What was answered is there once; what was in flight in the worker says that it was killed."""
    policy = POLICY.format(path=tmp_path / "ledger.sqlite3", folder=tmp_path / "batches")
    async with start_gateway(policy, environ=ENVIRON, args=("--workers", "2")) as gateway:
        async with client_of(gateway) as red:
            answered = [(await red.post(CHAT, json=chat(f"{n}"))).headers["x-request-id"] for n in range(40)]
            hanging = [asyncio.create_task(red.post(CHAT, json=chat(f"{n}", model="slow"))) for n in range(6)]
            await asyncio.sleep(0.5)
            for victim in workers_of(gateway):
                os.kill(victim, signal.SIGKILL)
            ends = await asyncio.gather(*hanging, return_exceptions=True)
            rows = await wait_exported(gateway, 46)

    killed = [row for row in rows if row["end"] == "worker_killed"]
    assert all(isinstance(end, httpx.HTTPError) for end in ends)
    assert sorted(row["request_id"] for row in rows if row not in killed) == sorted(answered)
    assert [(row["route"], row["estimated"], row["cost_usd"]) for row in killed] == [("slow", True, None)] * 6
    assert {row["fault"] for row in killed} == {"gateway"}


async def test_two_gateways_share_a_ledger_in_postgres(tmp_path: Path) -> None:
    """Each with a journal of its own, over an outage; the URL is a secret, and one report has all of it."""
    with running_postgres() as server:
        environ = {**ENVIRON, "LEDGER_URL": server.url}
        texts = [
            POLICY.format(path="", folder=tmp_path / f"batches-{side}").replace(
                'url: "sqlite:///"', f'url: "env:LEDGER_URL", journal: "{tmp_path / side}"'
            )
            for side in ("left", "right")
        ]
        async with start_gateway(texts[0], environ=environ) as left, start_gateway(texts[1], environ=environ) as right:
            async with client_of(left) as first, client_of(right, "BLUE_KEY") as second:
                for number in range(40):
                    if number == 10:
                        server.stop()
                    if number == 30:
                        server.start()
                    for client in (first, second):
                        assert (await client.post(CHAT, json=chat(f"{number}"))).status_code == 200
                rows = await wait_exported(left, 80, environ=environ)

            told = reported(right, "tenant", environ=environ)
            assert {line["tenant"]: line["calls"] for line in told} == {"fire": 40, "water": 40}
            assert len({row["request_id"] for row in rows}) == 80
            assert server.url not in left.stderr + right.stderr


async def test_client_that_leaves_has_a_row(gateway: Gateway) -> None:
    """It says so, as the stream's end does."""
    async with client_of(gateway) as red:
        with pytest.raises(httpx.ReadTimeout):
            await red.post(CHAT, json=chat(model="slow"), timeout=0.3)
        (row,) = await wait_exported(gateway, 1)

    assert (row["status"], row["end"]) == (499, "client_gone")


async def test_commands_say_what_is_wrong(gateway: Gateway) -> None:
    """No section, no file yet, sums that nobody keeps, a day that is none."""
    assert "choose among" in ledger(gateway, "report", "--by", "user", "--by", "model", code=1)
    assert "is not one of" in ledger(gateway, "report", "--by", "moon", code=2)
    assert "does not match the format" in ledger(gateway, "export", "--since", "yesterday", code=2)
    text = gateway.policy.read_text()
    other = gateway.policy.with_name("other.yaml")
    other.write_text(text.replace("ledger.sqlite3", "other.sqlite3"))
    assert "there is no ledger" in ledger(gateway, "export", code=1, policy=other)
    assert not other.with_name("other.sqlite3").exists()
    other.write_text("\n".join(line for line in text.splitlines() if not line.startswith("ledger:")))
    assert "the policy keeps no ledger; add `ledger:" in ledger(gateway, "export", code=1, policy=other)


async def test_ledger_cannot_change_while_it_is_written(gateway: Gateway) -> None:
    """A reload says so, and the old one goes on."""
    await gateway.reload(gateway.policy.read_text().replace("Asia/Kathmandu", "Asia/Tokyo"))

    await gateway.wait_stderr("`ledger` cannot change while the gateway runs")
