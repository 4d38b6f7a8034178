"""A draft in one gateway and its target behind another: the same streams, with fewer steps of the target."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.calls import event_values
from tests.support.gateway import Gateway, Line, running_gateway, start_gateway

pytest.importorskip("torch")

TARGET = """
version: 1
backends:
  model: {type: engine, model: slipstream-target, device: cpu, dtype: float32, threads: 1, speculate: "off"}
keys:
  - {name: gateway, key: "env:DRAFTS", drafts: true}
  - {name: plain, key: "env:PLAIN"}
routes: [{name: all, match: {models: ["*"]}, backends: [{ref: model}]}]
"""
POLICY = """
version: 1
ledger: {{url: "sqlite:///{ledger}"}}
backends:
  target: {{type: openai, base_url: "http://127.0.0.1:{port}/v1", api_key: "env:DRAFTS"}}
  shut: {{type: openai, base_url: "http://127.0.0.1:{port}/v1", api_key: "env:PLAIN"}}
  draft: {{type: engine, model: slipstream-draft, device: cpu, dtype: float32, threads: 1, speculate: ngram}}
routes:
  - {{name: own, match: {{models: [own]}}, backends: [{{ref: draft}}]}}
  - {{name: alone, match: {{models: [alone]}}, backends: [{{ref: target}}]}}
  - name: drafted
    match: {{models: [drafted]}}
    backends: [{{ref: target}}]
    cache: {{exact: {{ttl: 1h}}}}
    speculative: {{mode: exact, draft: draft}}
  - {{name: shut, match: {{models: [shut]}}, backends: [{{ref: shut}}], speculative: {{mode: exact, draft: draft}}}}
  - name: rounds
    match: {{models: [rounds]}}
    backends: [{{ref: target}}]
    speculative: {{mode: exact, draft: draft, verify: [session]}}
  - name: no-rounds
    match: {{models: [no-rounds]}}
    backends: [{{ref: shut}}]
    speculative: {{mode: exact, draft: draft, verify: [session]}}
"""
KEYS = {"DRAFTS": "sk-drafts-0123456789", "PLAIN": "sk-plain-0123456789"}
QUESTIONS = [
    "Repeat: the old river runs past the mill and the tall green trees by the road",
    "Spell the word: understanding",
    "Write a JSON object with name Anna, age 31 and city Lyon.",
    "Sort these words: pear, apple, fig, plum, cherry, banana",
]


@pytest.fixture(scope="module")
def target() -> Iterator[Gateway]:
    """The gateway with the large model."""
    with running_gateway(TARGET, environ=KEYS) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def gateway(target: Gateway, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """The gateway with the small one."""
    ledger = tmp_path_factory.mktemp("ledger") / "ledger.sqlite3"
    with running_gateway(POLICY.format(port=target.port, ledger=ledger), environ=KEYS) as gateway:
        yield gateway


async def texts(gateway: Gateway, model: str, **fields: object) -> list[str]:
    """The streamed answers to all questions, one after the other."""
    found = []
    async with httpx.AsyncClient(verify=False, base_url=gateway.url, timeout=60) as client:
        for question in QUESTIONS:
            messages = [{"role": "user", "content": question}]
            body = {"model": model, "messages": messages, "stream": True, "max_tokens": 60, **fields}
            stream = (await client.post("/v1/chat/completions", json=body)).content
            assert b": slipstream-draft" not in stream
            choices = [choice for value in event_values(stream) for choice in value["choices"]]
            found.append("".join(choice["delta"].get("content") or "" for choice in choices))
    return found


async def booked(gateway: Gateway, request_id: str) -> dict[str, int]:
    """The tokens of a call, by the ledger."""
    async with httpx.AsyncClient(verify=False, base_url=gateway.url, timeout=60) as client:
        return (await client.get(f"/v1/calls/{request_id}?wait=10")).json()["usage"]


@pytest.mark.parametrize("asked", [{"temperature": 0}, {"temperature": 0.8, "seed": 5}], ids=["greedy", "seeded"])
async def test_streams_with_a_draft_are_those_of_the_target_alone(gateway: Gateway, asked: dict[str, float]) -> None:
    """Also drawn ones, by their seed; and the log tells what the draft has done."""
    alone = await texts(gateway, "alone", **asked)
    drafted = await texts(gateway, "drafted", **asked)
    line = await gateway.wait_log(lambda line: line["route"] == "drafted")

    assert drafted == alone
    assert all(len(text) > 5 for text in alone)
    assert line["speculation"]["draft"] == "draft"


@pytest.mark.parametrize("asked", [{"temperature": 0}, {"temperature": 0.8, "seed": 5}], ids=["greedy", "seeded"])
async def test_answers_by_rounds_are_those_of_the_target_alone(gateway: Gateway, asked: dict[str, float]) -> None:
    """Also where the target's key may have no sessions: then it is asked as without."""
    alone = await texts(gateway, "alone", **asked)
    drafted = await texts(gateway, "rounds", **asked)
    shut = await texts(gateway, "no-rounds", **asked)
    line = await gateway.wait_log(lambda line: line["route"] == "rounds")
    refused = await gateway.wait_log(lambda line: line["route"] == "no-rounds")

    assert drafted == shut == alone
    assert line["speculation"]["draft"] == "draft"
    assert line["speculation"].get("ended", "") == ""
    assert line["usage"]["completion_tokens"] > 0
    assert refused["status"] == 200


async def test_a_draft_that_is_on_has_guesses_come_true(gateway: Gateway, target: Gateway) -> None:
    """They are in the metrics of both sides; answers at once with others are as alone."""
    for _ in range(4):
        await asyncio.gather(*(texts(gateway, "drafted", temperature=0, user=str(number)) for number in range(2)))
    metrics = await gateway.metrics()

    assert metrics.value("slipstream_drafted_answers_total", route="drafted", ended="helped") > 0
    assert metrics.value("slipstream_drafted_answers_total", route="drafted", ended="failed") == 0


@pytest.mark.parametrize("model", ["own", "drafted"])
async def test_ledger_and_log_tell_the_same_of_drafts(gateway: Gateway, model: str) -> None:
    """Of a draft of another backend, and of what an engine of this process guesses by itself."""
    found: list[Line] = []
    # An engine whose guesses have cost more than they saved lets them be for some hundred steps.
    async with asyncio.timeout(60):
        while not found:
            await texts(gateway, model, temperature=0, user=f"told-{model}")
            found = [
                line for line in gateway.log if line["route"] == model and line.get("speculation", {}).get("drafted", 0)
            ]
    line = found[0]
    call, told = await booked(gateway, line["request_id"]), line["speculation"]

    assert told["draft"] == {"own": "own", "drafted": "draft"}[model]
    assert (call["drafted_tokens"], call["accepted_tokens"]) == (told["drafted"], told.get("accepted", 0))
    assert call["accepted_tokens"] <= min(call["drafted_tokens"], call["output_tokens"])


async def test_a_target_that_grants_no_drafts_answers_alone(gateway: Gateway) -> None:
    """Its key has not the right; the log says that its streams bring no marks."""
    alone = await texts(gateway, "alone", temperature=0)

    assert await texts(gateway, "shut", temperature=0) == alone
    line = await gateway.wait_log(lambda line: line["route"] == "shut")
    assert line["speculation"] == {"draft": "draft", "ended": "unmarked"}


async def test_a_stream_with_a_draft_is_cached_as_any_other(gateway: Gateway) -> None:
    """The caches are above: what they keep has no marks."""
    first = await texts(gateway, "drafted", temperature=0, user="cached")
    again = await texts(gateway, "drafted", temperature=0, user="cached")
    line = await gateway.wait_log(lambda line: line.get("cache") == "hit")

    assert again == first
    assert "speculation" not in line


async def test_a_client_cannot_ask_the_target_for_marks_through_the_gateway(target: Gateway, tmp_path: Path) -> None:
    """Not even where its other headers travel: the gateway's key may know what the client must not."""
    policy = POLICY.replace('"env:DRAFTS"}}', '"env:DRAFTS", forward_headers: ["x-*"]}}', 1)
    policy = policy.format(port=target.port, ledger=tmp_path / "ledger.sqlite3")
    async with (
        start_gateway(policy, environ=KEYS) as gateway,
        httpx.AsyncClient(verify=False, base_url=gateway.url) as client,
    ):
        body = {"model": "alone", "messages": [{"role": "user", "content": "hello"}], "stream": True, "max_tokens": 5}
        headers = {"x-slipstream-draft": "1"}
        stream = (await client.post("/v1/chat/completions", json=body, headers=headers, timeout=30)).content

    assert b"data: [DONE]" in stream
    assert b": slipstream-draft" not in stream
