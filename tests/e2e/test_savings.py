"""What the ledger says that was saved, through `slipstream serve`: each way by hand, and every row adds up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import yaml

from tests.e2e.test_ledger import CHAT, reported, wait_exported
from tests.support.gateway import Gateway, start_gateway
from tests.support.servers.openai_server import Behaviour, OpenAIServer, error

POLICY = """
version: 1
ledger: {{url: "sqlite:///{path}"}}
backends:
  dear: {{type: openai, base_url: "{url}", price: {{input_per_1m: 10, cached_input_per_1m: 1, output_per_1m: 30}}}}
  cheap: {{type: openai, base_url: "{url}", price: {{input_per_1m: 1, output_per_1m: 3}}}}
  free: {{type: openai, base_url: "{url}"}}
routes:
  - {{name: cached, match: {{models: [cached]}}, backends: [{{ref: dear}}], cache: {{exact: {{}}}}}}
  - name: two
    match: {{models: [two]}}
    backends: [{{ref: dear}}, {{ref: cheap, priority: 1}}]
    retry: {{backoff: {{initial: 10ms}}}}
  - name: kept
    match: {{models: [kept]}}
    backends: [{{ref: dear}}]
    routing: {{provider_cache: true}}
  - {{name: unknown, match: {{models: [unknown]}}, backends: [{{ref: free}}], cache: {{exact: {{}}}}}}
  - {{name: plain, match: {{models: ["*"]}}, backends: [{{ref: dear}}]}}
"""
SAVED = ("exact", "joined", "semantic", "prompt", "provider", "cheaper", "batch", "share", "extra")


@pytest.fixture
async def upstream() -> AsyncIterator[OpenAIServer]:
    """Whose answers say what they used."""
    async with OpenAIServer() as server:
        yield server


@pytest.fixture
async def gateway(tmp_path: Path, upstream: OpenAIServer) -> AsyncIterator[Gateway]:
    """In front of it."""
    async with start_gateway(POLICY.format(path=tmp_path / "ledger.sqlite3", url=upstream.base_url)) as running:
        yield running


def used(prompt: int, cached: int, output: int, **more: Any) -> Behaviour:
    """An answer that says so."""
    details = {"cached_tokens": cached}
    usage = {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}
    choice = {"index": 0, "message": {"role": "assistant", "content": "well"}, "finish_reason": "stop"}
    answer = {"id": "a", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], **more}
    return Behaviour(body=msgspec.json.encode({**answer, "usage": {**usage, "prompt_tokens_details": details}}))


def chat(model: str, text: str = "hello") -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": text}]}


def parts(row: dict[str, Any]) -> dict[str, str]:
    """Those that are not 0, once it is known that all add up."""
    found = {name: row[f"saved_{name}_usd"] for name in SAVED}
    if row["list_usd"] is None or row["cost_usd"] is None:
        assert set(found.values()) == {None}
        assert row["saved_usd"] is None
        return {}
    total = sum(map(Decimal, found.values()))
    assert total == Decimal(row["saved_usd"]) == Decimal(row["list_usd"]) - Decimal(row["cost_usd"]), row
    return {name: amount for name, amount in found.items() if amount != "0"}


async def assert_metrics_say_so(gateway: Gateway, rows: list[dict[str, Any]]) -> None:
    """Cost and each part, in whole pico-dollars, are what the rows add up to; and the ledger says that it has all."""
    metrics = await gateway.metrics()
    for name in SAVED:
        amounts = [Decimal(row[f"saved_{name}_usd"] or 0) for row in rows]
        shown = metrics.value("slipstream_saved_usd_total", cause=name)
        shown_below = metrics.value("slipstream_overpaid_usd_total", cause=name)
        assert round(shown * 1e12) == sum(amount for amount in amounts if amount > 0) * 10**12, name
        assert round(shown_below * 1e12) == -sum(amount for amount in amounts if amount < 0) * 10**12, name
    cost = sum(Decimal(row["cost_usd"] or 0) for row in rows)
    assert round(metrics.value("slipstream_upstream_cost_usd_total") * 1e12) == cost * 10**12
    assert [value for name, _, value in metrics.samples if name == "slipstream_ledger_drift_usd"] == [0]


async def test_each_way_is_told_by_its_part(gateway: Gateway, upstream: OpenAIServer) -> None:
    """A dollar that was not paid has one reason, and what was paid besides is taken off."""
    async with httpx.AsyncClient(verify=False, base_url=gateway.url, timeout=20) as client:
        for model, *answers in (
            ("plain", used(1000, 0, 100)),
            ("cached", used(1000, 0, 100)),
            ("cached",),
            ("two", error(500), used(1000, 0, 100)),
            ("plain", used(1000, 600, 100)),
            ("kept", used(1000, 600, 100)),
            ("unknown", used(1000, 0, 100)),
            ("unknown",),
        ):
            upstream.next(*answers)
            assert (
                await client.post(CHAT, json=chat(model, "word " * 4000 if model == "kept" else "hello"))
            ).is_success
        rows = await wait_exported(gateway, 8)
    await assert_metrics_say_so(gateway, rows)

    plain, first, hit, failed_over, kept_by_itself, kept_for_us, unknown, unknown_hit = rows
    assert (plain["list_usd"], plain["cost_usd"], parts(plain)) == ("0.013", "0.013", {})
    assert parts(first) == {}
    assert (hit["list_usd"], hit["cost_usd"], parts(hit)) == ("0.013", "0", {"exact": "0.013"})
    # The first attempt was refused, which costs nothing.
    assert (failed_over["list_usd"], failed_over["cost_usd"]) == ("0.013", "0.0013")
    assert parts(failed_over) == {"cheaper": "0.0117"}
    # 600 tokens for 1 instead of 10 a million.
    assert (kept_by_itself["list_usd"], parts(kept_by_itself)) == ("0.013", {"provider": "0.0054"})
    assert (kept_for_us["list_usd"], parts(kept_for_us)) == ("0.013", {"prompt": "0.0054"})
    assert parts(unknown) == {} == parts(unknown_hit)
    assert (unknown["list_usd"], unknown_hit["cost_usd"], unknown_hit["saved_usd"]) == (None, "0", None)
    by_route = {line["route"]: line for line in reported(gateway, "route")}
    assert (by_route["cached"]["saved_usd"], by_route["plain"]["saved_usd"]) == ("0.013", "0.0054")
    assert by_route["unknown"]["saved_usd"] is None


async def test_an_attempt_that_broke_off_is_taken_off(gateway: Gateway, upstream: OpenAIServer) -> None:
    """Its tokens were worked for: the caller is answered by another one, and both are paid."""
    upstream.next(Behaviour(text="one two three", cut_after_bytes=150), used(1000, 0, 100))
    async with httpx.AsyncClient(verify=False, base_url=gateway.url, timeout=20) as client:
        assert (await client.post(CHAT, json=chat("two"))).is_success
        (row,) = await wait_exported(gateway, 1)
    await assert_metrics_say_so(gateway, [row])

    found = {name: Decimal(amount) for name, amount in parts(row).items()}
    assert found["cheaper"] == Decimal("0.0117")
    assert Decimal(row["cost_usd"]) == Decimal("0.0013") - found["extra"]
    assert found["extra"] < 0


async def test_who_joins_a_call_in_flight_pays_nothing(gateway: Gateway, upstream: OpenAIServer) -> None:
    """Two ask the same at once."""
    upstream.default = used(1000, 0, 100)
    upstream.next(Behaviour(body=upstream.default.body, delay_s=0.5))
    async with httpx.AsyncClient(verify=False, base_url=gateway.url, timeout=20) as client:
        await asyncio.gather(*(client.post(CHAT, json=chat("cached")) for _ in range(2)))
        rows = await wait_exported(gateway, 2)

    assert sorted((row["cost_usd"], str(parts(row))) for row in rows) == [("0", "{'joined': '0.013'}"), ("0.013", "{}")]


async def test_the_encoder_of_the_semantic_cache_is_paid_by_who_asked(tmp_path: Path, upstream: OpenAIServer) -> None:
    """Where it is somebody else's model. Whose question was encoded before pays nothing; one that could not be encoded
    is owed as far as the upstream has worked.
    """
    ledger = f"sqlite:///{tmp_path / 'ledger.sqlite3'}"
    encoder = {"type": "openai", "backend": "vectors", "model": "small", "dimension": 8}
    semantic = {"mode": "static", "threshold": 0.9, "encoder": encoder, "encode_timeout": "5s"}
    async with OpenAIServer() as vectors:
        embedding = {"object": "embedding", "index": 0, "embedding": [0.5] * 8}
        answer = {"object": "list", "data": [embedding], "model": "small", "usage": {"prompt_tokens": 7}}
        vectors.default = Behaviour(body=msgspec.json.encode(answer))
        policy = {
            "version": 1,
            "ledger": {"url": ledger},
            "backends": {
                "dear": {
                    "type": "openai",
                    "base_url": upstream.base_url,
                    "price": {"input_per_1m": 10, "output_per_1m": 30},
                },
                "vectors": {
                    "type": "openai",
                    "base_url": vectors.base_url,
                    "price": {"input_per_1m": 2, "output_per_1m": 2},
                },
            },
            "routes": [
                {
                    "name": "near",
                    "match": {"models": ["*"]},
                    "backends": [{"ref": "dear"}],
                    "cache": {"exact": {"enabled": False}, "semantic": semantic},
                }
            ],
        }
        async with (
            start_gateway(yaml.safe_dump(policy)) as gateway,
            httpx.AsyncClient(verify=False, base_url=gateway.url, timeout=20) as client,
        ):
            upstream.default = used(1000, 0, 100)
            for text, *told in (
                ("What is a mortgage?",),
                ("What is a mortgage?",),
                ("What is an annuity?", error(503)),
                ("What is a bond?", Behaviour(cut_after_bytes=0)),
            ):
                vectors.next(*told)
                assert (await client.post(CHAT, json={**chat("any", text), "temperature": 0})).is_success
            rows = await wait_exported(gateway, 4)
            await assert_metrics_say_so(gateway, rows)

    missed, hit, refused, cut = rows
    assert (missed["list_usd"], missed["cost_usd"], parts(missed)) == ("0.013", "0.013014", {"extra": "-0.000014"})
    assert (hit["cost_usd"], parts(hit)) == ("0", {"semantic": "0.013"})
    assert parts(refused) == {}
    assert Decimal(parts(cut)["extra"]) < 0
