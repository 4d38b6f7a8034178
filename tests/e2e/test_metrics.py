"""Metrics and the access log after traffic that is known, from one process and from several."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.support.gateway import Gateway, Metrics, start_gateway
from tests.support.servers.openai_server import Behaviour, OpenAIServer, error, html_error

PATH = "/v1/chat/completions"
KEY = "sk-canary-key-0123456789"
UPSTREAM_KEY = "sk-canary-upstream-0123456789"
POLICY = """
version: 1
backends: {{up: {{type: openai, base_url: "{url}", api_key: "env:UPSTREAM_KEY"}}}}
keys: [{{name: dev, key: "env:KEY", tenant: red}}]
defaults: {{retry: {{attempts: 0}}, circuit_breaker: {{slow_start: 0s}}}}
routes:
  - {{name: cached, match: {{models: [kept]}}, backends: [{{ref: up}}], cache: {{exact: {{ttl: 60s}}}}}}
  - {{name: all, match: {{models: [named, "*"]}}, backends: [{{ref: up}}]}}
"""
ENVIRON = {"KEY": KEY, "UPSTREAM_KEY": UPSTREAM_KEY}


def chat(model: str, **fields: Any) -> dict[str, Any]:
    """A call of one word."""
    return {"model": model, "messages": [{"role": "user", "content": "hello"}], **fields}


@pytest.fixture
async def gateway(openai_server: OpenAIServer) -> AsyncIterator[Gateway]:
    """A gateway that has counted nothing yet."""
    async with start_gateway(POLICY.format(url=openai_server.base_url), environ=ENVIRON) as gateway:
        yield gateway


@pytest.fixture
async def client(gateway: Gateway) -> AsyncIterator[httpx.AsyncClient]:
    """A client of it."""
    headers = {"authorization": f"Bearer {KEY}"}
    async with httpx.AsyncClient(base_url=gateway.url, headers=headers, verify=False, timeout=20) as client:
        yield client


async def test_metrics_count_what_happened(
    gateway: Gateway, client: httpx.AsyncClient, openai_server: OpenAIServer
) -> None:
    """Requests, tokens, cache outcomes, stream ends, attempts and errors, each once."""
    await client.post(PATH, json=chat("named"))
    await client.post(PATH, json=chat("named", stream=True))
    for _ in range(3):
        await client.post(PATH, json=chat("kept"))
    openai_server.next(error(500), html_error(), Behaviour(cut_after_events=1))
    await client.post(PATH, json=chat("named"))
    await client.post(PATH, json=chat("named"))
    with pytest.raises(httpx.RemoteProtocolError):
        await client.post(PATH, json=chat("named", stream=True))
    await client.post(PATH, content=b"{")
    await client.post(PATH, json=chat("named"), headers={"authorization": "Bearer wrong"})
    metrics = await gateway.metrics()

    requests = "slipstream_requests_total"
    assert metrics.value(requests) == 10
    assert metrics.value(requests, route="all", operation="chat", model="named", status="200") == 3
    assert metrics.value(requests, route="cached", model="kept", status="200") == 3
    assert metrics.value(requests, status="500") == metrics.value(requests, status="502") == 1
    assert metrics.value(requests, route="_other", status="400") == 1
    assert metrics.value(requests, route="_other", status="401") == 1
    # The upstream repeats the one word, and counts it on both sides: two answers, and one that the cache kept.
    tokens = "slipstream_tokens_total"
    assert metrics.value(tokens, model="named", kind="prompt") == 2
    assert metrics.value(tokens, model="named", kind="completion") == 2
    assert metrics.value(tokens, model="kept", kind="completion") == 1
    assert metrics.value("slipstream_saved_tokens_total", model="kept", kind="completion") == 2
    lookups = "slipstream_cache_lookups_total"
    assert (metrics.value(lookups, outcome="hit"), metrics.value(lookups, outcome="miss")) == (2, 1)
    ends = "slipstream_stream_end_total"
    assert (metrics.value(ends, how="clean"), metrics.value(ends, how="upstream_cut")) == (1, 1)
    assert metrics.value("slipstream_upstream_attempts_total", backend="up") == 6
    errors = "slipstream_errors_total"
    assert metrics.value(errors, code="upstream_invalid_response") == 1
    assert metrics.value(errors, code="upstream_cut") == 1
    assert metrics.value(errors, code="invalid_api_key") == 1
    assert metrics.value("slipstream_request_seconds_count", route="all") == 5
    assert metrics.value("slipstream_first_token_seconds_count") == 2
    assert metrics.value("slipstream_overhead_seconds_count", route="all") == 5
    assert metrics.value("slipstream_requests_in_flight") == 0
    assert metrics.value("slipstream_cache_entries") == 1
    assert metrics.value("slipstream_backend_connections", backend="up", kind="opened") >= 1


async def test_what_alerts_wait_for_begins_at_zero(openai_server: OpenAIServer) -> None:
    """Prometheus sees no increase in what is 1 when it is first there; nor is a cost lost on its way to dollars."""
    policy = POLICY.format(url=openai_server.base_url).replace(
        '"*"]}, backends: [{ref: up',
        '"*"]}, slo: {ttft: 5s}, backends: [{ref: up, price: {input_per_1m: 3, output_per_1m: 7}',
        1,
    )
    async with start_gateway(policy, environ=ENVIRON) as gateway:
        before = await gateway.metrics()
        assert not await gateway.reload("version: 1\nroutes: nothing")
        async with httpx.AsyncClient(
            verify=False, base_url=gateway.url, headers={"authorization": f"Bearer {KEY}"}
        ) as client:
            await client.post(PATH, json=chat("named"))
        after = await gateway.metrics()

    reloads = "slipstream_policy_reloads_total"
    for outcome, then in (("applied", 0), ("refused", 1)):
        assert f'{reloads}{{outcome="{outcome}"}} 0.0' in before.text
        assert after.value(reloads, outcome=outcome) == then
    met = {labels["outcome"]: value for name, labels, value in after.samples if name == "slipstream_slo_requests_total"}
    assert met == {"met": 1, "ttft": 0, "tpot": 0, "total": 0, "shed": 0, "failed": 0}
    assert after.value("slipstream_upstream_cost_usd_total", route="all", backend="up") == pytest.approx(10e-6)
    assert 10e6 < after.value("process_resident_memory_bytes") < 1e9


async def test_work_in_flight_shows(gateway: Gateway, client: httpx.AsyncClient, openai_server: OpenAIServer) -> None:
    """A stream that goes on is one request and one call of its backend."""
    openai_server.next(Behaviour(stall_after_events=1))
    async with client.stream("POST", PATH, json=chat("named", stream=True)) as answer:
        pieces = answer.aiter_raw()
        await anext(pieces)
        during = await gateway.metrics()
    await openai_server.wait_disconnected()
    await gateway.wait_log(lambda line: line.get("stream_end") == "client_gone")
    after = await gateway.metrics()

    for name in ("slipstream_requests_in_flight", "slipstream_backend_in_flight"):
        assert (during.value(name), after.value(name)) == (1, 0)
    assert after.value("slipstream_stream_end_total", how="client_gone") == 1
    assert (
        after.value("slipstream_requests_total", status="499") + after.value("slipstream_requests_total", status="200")
        == 1
    )


async def test_random_models_paths_and_keys_make_no_new_series(
    gateway: Gateway, client: httpx.AsyncClient, openai_server: OpenAIServer
) -> None:
    """Whatever clients make up, the number of series is the policy's."""

    async def bother() -> None:
        word = secrets.token_hex(8)
        await client.post(PATH, json=chat(word))
        await client.post(PATH, json=chat(f"named{word}", user=word, stream=True))
        await client.get(f"/v1/{word}")
        await client.get(f"/{word}")
        await client.get(f"/v1/models/{word}")
        await client.request("PUT", f"/v1/files/{word}")
        await client.post(PATH, json=chat("named"), headers={"authorization": f"Bearer {word}"})
        await client.post(PATH, json=chat("named"), headers={"x-request-id": word, "user-agent": word})

    await bother()
    num_before = len((await gateway.metrics()).samples)
    for _ in range(20):
        await bother()
    metrics = await gateway.metrics()

    assert len(metrics.samples) == num_before
    assert {labels["model"] for _, labels, _ in metrics.samples if "model" in labels} <= {"named", "kept", "_other"}


async def test_what_a_reload_takes_away_leaves_no_series_behind(
    gateway: Gateway, client: httpx.AsyncClient, openai_server: OpenAIServer
) -> None:
    """Only the revision, the backends and the breakers of the policy in force are there."""
    text = POLICY.format(url=openai_server.base_url)
    with_one_down = text.replace("backends: {", 'backends: {down: {type: openai, base_url: "http://127.0.0.1:9"}, ', 1)
    with_one_down = with_one_down.replace('"*"]}, backends: [', '"*"]}, backends: [{ref: down}, ')
    for number in range(5):
        assert await gateway.reload(f"{with_one_down}\n# {number}")
    await client.post(PATH, json=chat("kept"))
    for _ in range(20):
        await client.post(PATH, json=chat("named"))
    before = await gateway.metrics()
    assert await gateway.reload(text.replace("up:", "new:").replace("ref: up", "ref: new").replace("cached", "moved"))
    metrics = await gateway.metrics()

    assert [value for name, _, value in metrics.samples if name == "slipstream_policy_info"] == [1]
    gauges = ("slipstream_backend_in_flight", "slipstream_backend_connections", "slipstream_breaker_open")
    shown = [labels for name, labels, _ in metrics.samples if name in gauges]
    assert {labels["backend"] for labels in shown} == {"new"}
    opened = [labels for name, labels, _ in before.samples if name == "slipstream_breaker_open"]
    assert opened == [{"route": "all", "backend": "down"}], "the others have never opened"
    assert not any("route" in labels for labels in shown)


def _canaries() -> dict[str, str]:
    return {
        place: f"canary-{place}-{secrets.token_hex(4)}" for place in ("prompt", "answer", "header", "query", "user")
    }


async def test_prompts_answers_and_keys_appear_in_no_signal(
    gateway: Gateway, client: httpx.AsyncClient, openai_server: OpenAIServer
) -> None:
    """Whole, streamed, failed, refused, cut, gone and unread: neither log, metrics nor standard error repeat them."""
    canaries = _canaries()
    body = {
        "model": "named",
        "messages": [{"role": "user", "content": canaries["prompt"]}],
        "user": canaries["user"],
        "tools": [{"type": "function", "function": {"name": canaries["prompt"]}}],
    }
    headers = {"x-secret": canaries["header"], "cookie": f"a={canaries['header']}"}
    said = Behaviour(text=canaries["answer"])
    page = Behaviour(status=500, body=canaries["answer"].encode(), content_type="text/html")
    openai_server.default = said
    for model in ("named", "kept"):
        for stream in (False, True):
            openai_server.next(said, page, Behaviour(text=canaries["answer"], cut_after_events=1))
            for _ in range(3):
                with contextlib.suppress(httpx.RemoteProtocolError):
                    await client.post(
                        f"{PATH}?q={canaries['query']}",
                        json={**body, "model": model, "stream": stream},
                        headers=headers,
                    )
    await client.post(PATH, content=f'{{"model":"named","messages":"{canaries["prompt"]}"}}')
    await client.post(PATH, content=f'{{"x":"{canaries["prompt"]}",')
    await client.post(PATH, json=body, headers={"authorization": f"Bearer {canaries['header']}"})
    await client.post("/v1/moderations", json={"input": canaries["prompt"]})
    last = await client.get("/v1/models/named", headers={"x-request-id": "the-last"})
    await gateway.wait_log(lambda line: line["request_id"] == "the-last")
    metrics = await gateway.metrics()

    assert last.status_code == 200
    for text in (gateway.stdout, gateway.stderr, metrics.text):
        for secret in (*canaries.values(), KEY, UPSTREAM_KEY):
            assert secret not in text


async def test_each_request_has_one_line(
    gateway: Gateway, client: httpx.AsyncClient, openai_server: OpenAIServer
) -> None:
    """As many lines as requests, each with what an operator looks for; pages for machines have none."""
    openai_server.next(Behaviour(headers=(("x-request-id", "up-7"),)))
    await client.post(PATH, json=chat("named"), headers={"x-request-id": "r-0"})
    await client.post(PATH, json=chat("other", stream=True), headers={"x-request-id": "r-1"})
    await client.post(PATH, content=b"[]", headers={"x-request-id": "r-2"})
    await client.post("/v1/embeddings", json={"model": "named", "input": "x"}, headers={"x-request-id": "r-3"})
    await client.get("/v1/models", headers={"x-request-id": "r-4"})
    await client.get("/v1/files", headers={"x-request-id": "r-5"})
    await client.get("/health")
    await client.get("/metrics")
    await gateway.wait_log(count=6)
    lines = gateway.log

    assert [line["request_id"] for line in lines] == [f"r-{number}" for number in range(6)]
    assert [line["status"] for line in lines] == [200, 200, 400, 200, 200, 200]
    first, streamed, refused = lines[:3]
    assert first["upstream_request_id"] == "up-7"
    assert (first["route"], first["backend"], first["key"], first["tenant"]) == ("all", "up", "dev", "red")
    assert first["usage"] == {"prompt_tokens": 1, "completion_tokens": 1, "cached_tokens": 0}
    assert 0 < first["total_ms"] < 10_000
    assert (streamed["stream_end"], streamed["model"]) == ("clean", "other")
    assert 0 < streamed["first_token_ms"] <= streamed["total_ms"]
    assert refused["operation"] == "chat"
    assert lines[3]["operation"] == "embedding"


async def test_log_can_be_turned_off(openai_server: OpenAIServer) -> None:
    """Nothing on standard output then."""
    environ = {**ENVIRON, "SLIPSTREAM_ACCESS_LOG": "off"}
    async with start_gateway(POLICY.format(url=openai_server.base_url), environ=environ) as gateway:
        async with httpx.AsyncClient(base_url=gateway.url, verify=False) as client:
            await client.get("/v1/models")
        assert await gateway.terminate() == 0

        assert gateway.stdout == ""


async def test_two_workers_share_the_port_and_sum_their_metrics(openai_server: OpenAIServer) -> None:
    """Any of them answers for both, also for what the other counted; a reload and the end reach both."""
    policy = POLICY.format(url=openai_server.base_url)
    async with start_gateway(policy, environ=ENVIRON, args=["--workers", "2"]) as gateway:
        headers = {"authorization": f"Bearer {KEY}"}
        prefixes: set[str] = set()
        num_asked = 0
        async with asyncio.timeout(20):
            while len(prefixes) < 2 or num_asked < 40:
                # A connection of its own for each, so that both workers get some.
                async with httpx.AsyncClient(base_url=gateway.url, headers=headers, verify=False) as client:
                    answer = await client.post(PATH, json=chat("named"))
                prefixes.add(answer.headers["x-request-id"][:16])
                num_asked += 1
        metrics = await _metrics_with(gateway, "slipstream_requests_total", num_asked)
        lines = gateway.log
        since = len(gateway.stderr)
        assert await gateway.reload(f"{policy}\n# changed")
        await gateway.wait_stderr(r"(?s)is in force.*is in force", since)
        code = await gateway.terminate()

    assert len(prefixes) == 2
    assert metrics.value("slipstream_requests_total", model="named", status="200") == num_asked
    assert metrics.value("slipstream_tokens_total", kind="completion") == num_asked
    assert metrics.value("slipstream_request_seconds_count") == num_asked
    assert len({line["request_id"] for line in lines}) == len(lines) <= num_asked
    assert code == 0


async def _metrics_with(gateway: Gateway, name: str, value: float) -> Metrics:
    """A scrape in which that metric has come to `value`: workers share what they counted every few seconds."""
    async with asyncio.timeout(10):
        while (metrics := await gateway.metrics()).value(name) < value:
            await asyncio.sleep(0.05)
    return metrics
