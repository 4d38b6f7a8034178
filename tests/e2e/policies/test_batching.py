"""Batching windows in a running gateway: what the upstream is asked, what clients get, what is counted."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import msgspec

from tests.support.gateway import running_gateway
from tests.support.servers.openai_server import Behaviour, OpenAIServer

POLICY = """
version: 1
backends:
  up: {{type: openai, base_url: "{url}"}}
routes:
  - name: embed
    match: {{models: ["embed"]}}
    backends: [{{ref: up}}]
    batching: {batching}
"""


def _answer(*vectors: str, tokens: int) -> Behaviour:
    """An answer with these vectors, as base64."""
    data = [{"object": "embedding", "index": at, "embedding": vector} for at, vector in enumerate(vectors)]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return Behaviour(body=msgspec.json.encode({"object": "list", "data": data, "model": "up-model", "usage": usage}))


async def test_batching_callers_share_an_upstream_call_and_nothing_else() -> None:
    """Each gets its own vector and bill, in its answer and in the log; the metrics say how they went."""
    async with OpenAIServer() as upstream:
        upstream.next(Behaviour(stall_before_head=True), _answer("AAAA", "BBBB", "CCCC", tokens=9))
        with running_gateway(POLICY.format(url=upstream.base_url, batching="{}")) as gateway:
            async with httpx.AsyncClient(base_url=gateway.url, verify=False, timeout=20) as client:

                async def ask(value: object) -> dict[str, Any]:
                    body = {"model": "embed", "input": value, "encoding_format": "base64"}
                    answer = await client.post("/v1/embeddings", json=body, headers={"traceparent": str(value)})
                    assert answer.status_code == 200
                    decoded: dict[str, Any] = answer.json()
                    return decoded

                first = asyncio.create_task(ask("first"))
                await upstream.wait_request(0)
                others = [asyncio.create_task(ask("aa")), asyncio.create_task(ask(["b", "ccc"]))]
                async with asyncio.timeout(5):
                    while (await gateway.metrics()).value("slipstream_batching_waiting") < 3:
                        await asyncio.sleep(0.01)
                first.cancel()
                answers = await asyncio.gather(*others)
                await gateway.wait_log(lambda line: line["status"] == 200, count=2)
                metrics = await gateway.metrics()
            lines = [line for line in gateway.log if line["status"] == 200]
            await gateway.reload(POLICY.format(url=upstream.base_url, batching="null"))
            retired = await gateway.metrics()

    asked = sorted(upstream.requests[1].json()["input"])
    assert asked == ["aa", "b", "ccc"]
    vectors = {}
    for answer in answers:
        assert answer["model"] == "up-model"
        assert [item["index"] for item in answer["data"]] == list(range(len(answer["data"])))
        vectors[len(answer["data"])] = "".join(item["embedding"] for item in answer["data"])
    assert vectors in ({1: "AAAA", 2: "BBBBCCCC"}, {1: "CCCC", 2: "AAAABBBB"})
    assert sorted(answer["usage"]["prompt_tokens"] for answer in answers) == [3, 6]
    assert sorted(line["usage"]["prompt_tokens"] for line in lines) == [3, 6]
    assert metrics.value("slipstream_tokens_total", kind="prompt") == 9
    assert metrics.value("slipstream_batching_calls_total", route="embed", how="merged") == 2
    assert metrics.value("slipstream_batching_inputs_sum", route="embed") == 4
    assert metrics.value("slipstream_upstream_attempts_total", backend="up") == 2
    assert "slipstream_batching_waiting{" not in retired.text
    assert retired.value("slipstream_batching_calls_total", how="merged") == 2


async def test_batching_full_window_refuses_with_the_code_of_an_overload() -> None:
    """429, and nobody else is disturbed."""
    async with OpenAIServer() as upstream:
        upstream.next(Behaviour(delay_s=0.3, body=_answer("AAAA", tokens=1).body), *[_answer("BBBB", tokens=1)] * 2)
        with running_gateway(POLICY.format(url=upstream.base_url, batching="{max_waiting: 1}")) as gateway:
            async with httpx.AsyncClient(base_url=gateway.url, verify=False, timeout=20) as client:

                async def ask(value: str) -> tuple[int, dict[str, Any]]:
                    answer = await client.post("/v1/embeddings", json={"model": "embed", "input": value})
                    return answer.status_code, answer.json()

                first = asyncio.create_task(ask("a"))
                await upstream.wait_request(0)
                answers = await asyncio.gather(*(ask(text) for text in "bcd"))
                status, _ = await first

    assert status == 200
    assert sorted(status for status, _ in answers) == [200, 429, 429]
    assert {body["error"]["code"] for status, body in answers if status == 429} == {"slo_shed"}
