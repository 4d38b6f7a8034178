"""OpenTelemetry: spans reach a collector over OTLP, under the client's trace, and the upstream continues it."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.support.gateway import Gateway, start_gateway
from tests.support.servers.openai_server import Behaviour, OpenAIServer, error

PATH = "/v1/chat/completions"
TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
POLICY = """
version: 1
backends: {{up: {{type: openai, base_url: "{url}"}}}}
defaults: {{retry: {{attempts: 0}}}}
routes:
  - {{name: cached, match: {{models: [kept]}}, backends: [{{ref: up}}], cache: {{exact: {{ttl: 60s}}}}}}
  - {{name: all, match: {{models: ["*"]}}, backends: [{{ref: up, model: real}}]}}
"""


def chat(model: str = "m", **fields: Any) -> dict[str, Any]:
    """A call of one word."""
    return {"model": model, "messages": [{"role": "user", "content": "hello"}], **fields}


@pytest.fixture
async def collector() -> AsyncIterator[OpenAIServer]:
    """Takes in what is exported: any server that answers 200 will do."""
    async with OpenAIServer(Behaviour(body=b"", content_type="application/x-protobuf")) as server:
        yield server


@pytest.fixture
async def gateway(openai_server: OpenAIServer, collector: OpenAIServer) -> AsyncIterator[Gateway]:
    """A gateway that exports to it."""
    async with start_gateway(POLICY.format(url=openai_server.base_url), environ=_environ(collector)) as gateway:
        yield gateway


async def test_spans_are_exported_and_the_trace_goes_on(
    gateway: Gateway, openai_server: OpenAIServer, collector: OpenAIServer
) -> None:
    """One server span per request with its parts as children, what it was about, and no prompt in it."""
    openai_server.next(Behaviour(), Behaviour(), Behaviour(), error(500, "upstream-words"))
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "vendor=1"}
    async with httpx.AsyncClient(base_url=gateway.url, verify=False) as client:
        plain = await client.post(PATH, json=chat(), headers=headers)
        await client.post(PATH, json=chat("streamed", stream=True))
        for _ in range(2):
            await client.post(PATH, json=chat("kept"))
        await client.post(PATH, json=chat("failing"))
        await client.post(PATH, content=b"[]")
    assert await gateway.terminate() == 0
    spans = _spans(collector)

    servers = {name: [span for span in spans if span["name"] == name] for name in {span["name"] for span in spans}}
    first = servers["chat m"][0]
    assert (first["trace"], first["parent"]) == (TRACE, PARENT)
    assert first["gen_ai.request.model"] == "m"
    assert first["gen_ai.response.model"] == "real"
    assert first["gen_ai.usage.output_tokens"] == 1
    assert first["slipstream.request_id"] == plain.headers["x-request-id"]
    assert first["slipstream.backend"] == "up"
    assert (first["http.response.status_code"], first["has_error"]) == (200, False)
    assert _children(spans, first) == ["attempt", "receive", "upstream"]
    assert _children(spans, servers["chat streamed"][0]) == ["attempt", "receive", "stream", "upstream"]
    assert servers["chat streamed"][0]["slipstream.stream_end"] == "clean"
    assert [span["slipstream.cache"] for span in servers["chat kept"]] == ["miss", "hit"]
    assert _children(spans, servers["chat kept"][0]) == ["attempt", "cache.exact", "receive", "upstream"]
    assert _children(spans, servers["chat kept"][1]) == ["cache.exact"]
    assert [span["slipstream.found"] for span in servers["cache.exact"]] == ["miss", "hit"]
    assert servers["chat failing"][0]["has_error"]
    assert servers["chat"][0]["http.response.status_code"] == 400
    assert len({span["trace"] for span in spans}) == 6
    for span in spans:
        assert span["start"] <= span["end"]
    forwarded = openai_server.requests[0].header("traceparent") or ""
    assert forwarded.split("-")[:3] == ["00", TRACE, first["id"]]
    assert openai_server.requests[0].header("tracestate") == "vendor=1"
    assert openai_server.requests[1].header("traceparent") is not None
    exported = b"".join(request.body for request in collector.requests)
    assert b"hello" not in exported
    assert b"upstream-words" not in exported


async def test_spans_tell_usage_in_the_names_of_the_conventions(
    gateway: Gateway, openai_server: OpenAIServer, collector: OpenAIServer
) -> None:
    """Cached and reasoning tokens, and of streams that they are some and when they began; nothing that nobody told."""
    usage = {
        "prompt_tokens": 900,
        "completion_tokens": 70,
        "prompt_tokens_details": {"cached_tokens": 600},
        "completion_tokens_details": {"reasoning_tokens": 50},
    }
    message = {"role": "assistant", "content": "yes"}
    choices = [{"index": 0, "finish_reason": "stop", "message": message}]
    told = {"id": "c", "object": "chat.completion", "created": 1, "model": "real", "choices": choices, "usage": usage}
    openai_server.next(Behaviour(body=json.dumps(told).encode()), Behaviour(), Behaviour())
    async with httpx.AsyncClient(base_url=gateway.url, verify=False) as client:
        await client.post(PATH, json=chat())
        await client.post(PATH, json=chat("streamed", stream=True))
        await client.post("/v1/embeddings", json={"model": "vectors", "input": "hello"})
        await client.get("/v1/models")
    assert await gateway.terminate() == 0
    spans = {span["name"]: span for span in _spans(collector)}

    whole, streamed, embedded = spans["chat m"], spans["chat streamed"], spans["embedding vectors"]
    assert {name: value for name, value in whole.items() if name.startswith("gen_ai.")} == {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "m",
        "gen_ai.response.model": "real",
        "gen_ai.usage.input_tokens": 900,
        "gen_ai.usage.output_tokens": 70,
        "gen_ai.usage.cache_read.input_tokens": 600,
        "gen_ai.usage.cache_creation.input_tokens": 0,
        "gen_ai.usage.reasoning.output_tokens": 50,
    }
    assert streamed["gen_ai.request.stream"] is True
    first_s = streamed["gen_ai.response.time_to_first_chunk"]
    assert 0 < first_s <= (streamed["end"] - streamed["start"]) / 1e9
    assert embedded["gen_ai.operation.name"] == "embeddings"


async def test_each_stage_that_a_call_passes_is_a_span(openai_server: OpenAIServer, collector: OpenAIServer) -> None:
    """What was tried and failed, what waited for its like or in a window, what limits said."""
    policy = f"""
version: 1
backends: {{up: {{type: openai, base_url: "{openai_server.base_url}"}}}}
defaults: {{retry: {{backoff: {{initial: 1ms}}}}}}
limits: [{{name: many, per: tenant, rpm: 1000}}]
routes:
  - {{name: vectors, match: {{models: [vectors]}}, backends: [{{ref: up}}], batching: {{max_in_flight: 1}}}}
  - {{name: kept, match: {{models: [kept]}}, backends: [{{ref: up}}], cache: {{exact: {{ttl: 60s}}}}}}
  - {{name: all, match: {{models: ["*"]}}, backends: [{{ref: up}}]}}
"""
    async with start_gateway(policy, environ=_environ(collector)) as gateway:
        async with httpx.AsyncClient(base_url=gateway.url, verify=False, timeout=20) as client:
            openai_server.next(error(503, "full"), Behaviour())
            await client.post(PATH, json=chat("retried"))
            openai_server.next(Behaviour(delay_s=0.2))
            await asyncio.gather(*(client.post(PATH, json=chat("kept")) for _ in range(2)))
            openai_server.default = Behaviour(delay_s=0.1)
            words = [{"model": "vectors", "input": word} for word in ("a", "b", "c")]
            await asyncio.gather(*(client.post("/v1/embeddings", json=body) for body in words))
        assert await gateway.terminate() == 0
    spans = _spans(collector)

    tried = [span for span in spans if span["name"] == "attempt" and span["slipstream.model"] == "retried"]
    assert [span.get("error.type") for span in tried] == ["503", None]
    assert [span["has_error"] for span in tried] == [True, False]
    assert {span["slipstream.backend"] for span in tried} == {"up"}
    assert [span["name"] for span in spans].count("limits") == 6
    joined = [_children(spans, span) for span in spans if span["name"] == "chat kept"]
    assert sorted(joined) == [["attempt", "cache.exact", "limits", "receive", "upstream"], ["cache.join", "limits"]]
    windows = {span["slipstream.callers"]: span for span in spans if span["name"] == "batch.window"}
    assert set(windows) == {1, 2}
    assert windows[2]["end"] - windows[2]["start"] > 50_000_000
    embedded = [_children(spans, span) for span in spans if span["name"] == "embedding vectors"]
    assert embedded == 3 * [["attempt", "batch.window", "limits", "receive", "upstream"]]
    by_id = {span["id"]: span for span in spans}
    for span in spans:
        if span["parent"] in by_id:
            assert by_id[span["parent"]]["start"] - 1_000_000 <= span["start"]
            assert span["end"] <= by_id[span["parent"]]["end"] + 1_000_000


async def test_wait_for_admission_is_a_span_of_its_own(openai_server: OpenAIServer, collector: OpenAIServer) -> None:
    """Between what was received and what was sent, so that nobody takes a queue for a slow client."""
    policy = POLICY.format(url=openai_server.base_url).replace(
        'models: ["*"]}', 'models: ["*"]}, slo: {ttft: 20s}, admission: {on_overload: queue}'
    )
    openai_server.default = Behaviour(delay_s=0.2)
    async with start_gateway(policy, environ=_environ(collector)) as gateway:
        async with httpx.AsyncClient(base_url=gateway.url, verify=False, timeout=20) as client:
            await asyncio.gather(*(client.post(PATH, json=chat()) for _ in range(20)))
        assert await gateway.terminate() == 0
    spans = _spans(collector)

    waits = [span for span in spans if span["name"] == "admission"]
    assert waits
    for wait in waits:
        beside = {span["name"]: span for span in spans if span["parent"] == wait["parent"]}
        assert beside["receive"]["end"] <= wait["start"] + 1_000_000
        assert wait["end"] <= beside["upstream"]["start"] + 1_000_000
        assert wait["end"] > wait["start"]


async def test_collector_that_is_gone_costs_spans_only(
    gateway: Gateway, openai_server: OpenAIServer, collector: OpenAIServer
) -> None:
    """No request notices, and the end does not wait for it longer than a moment."""
    await collector.refuse()
    async with httpx.AsyncClient(base_url=gateway.url, verify=False) as client:
        answers = await asyncio.gather(*(client.post(PATH, json=chat()) for _ in range(10)))

    gateway.process.send_signal(signal.SIGTERM)

    assert {answer.status_code for answer in answers} == {200}
    assert await gateway.wait_exit(timeout_s=8) == 0


def _environ(collector: OpenAIServer) -> dict[str, str]:
    return {
        "SLIPSTREAM_TRACING": "true",
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{collector.port}",
        "OTEL_BSP_SCHEDULE_DELAY": "50",
    }


def _spans(collector: OpenAIServer) -> list[dict[str, Any]]:
    spans = []
    for request in collector.requests:
        assert request.path == "/v1/traces"
        for resource in ExportTraceServiceRequest.FromString(request.body).resource_spans:
            for scope in resource.scope_spans:
                spans += [_span(span) for span in scope.spans]
    return spans


def _span(span: Any) -> dict[str, Any]:
    values = {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in span.attributes}
    return {
        **values,
        "name": span.name,
        "id": span.span_id.hex(),
        "trace": span.trace_id.hex(),
        "parent": span.parent_span_id.hex(),
        "start": span.start_time_unix_nano,
        "end": span.end_time_unix_nano,
        "has_error": span.status.code == 2,
    }


def _children(spans: list[dict[str, Any]], parent: dict[str, Any]) -> list[str]:
    return sorted(span["name"] for span in spans if span["parent"] == parent["id"])
