"""Streams that break off go on: two engine servers behind a gateway, one of which is killed in the middle."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.gateway import Gateway, gateway_process, running_gateway
from tests.support.servers.openai_server import Behaviour, OpenAIServer

pytest.importorskip("torch")
pytest.importorskip("transformers")

QUESTION = {"model": "m", "stream": True, "stream_options": {"include_usage": True}, "max_tokens": 300}
QUESTION |= {"ignore_eos": True, "messages": [{"role": "user", "content": "Tell me of rivers"}]}

ENGINE = """
version: 1
backends:
  local: {{type: engine, model: {model}, device: cpu, dtype: float32, threads: 1}}
routes:
- {{name: all, match: {{models: ["*"]}}, backends: [{{ref: local}}]}}
"""
FRONT = """
version: 1
backends:
  one: {{type: openai, base_url: "{one}/v1", continues: slipstream}}
  two: {{type: openai, base_url: "{two}/v1", continues: slipstream}}
keys:
- {{name: red, key: "env:RED", tenant: red}}
routes:
- name: all
  match: {{models: ["*"]}}
  backends: [{{ref: one}}, {{ref: two, priority: 1}}]
  resume: {{mode: exact}}
  cache: {{scope: tenant}}
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny random model."""
    from tests.support.engine.tiny_pair import make_pair

    return make_pair(tmp_path_factory.mktemp("pair")).target


@pytest.fixture(scope="module")
def spare(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """The server that stays: the same weights in another folder."""
    copy = shutil.copytree(model, tmp_path_factory.mktemp("other") / "copy")
    with running_gateway(ENGINE.format(model=copy)) as gateway:
        yield gateway


@pytest.fixture
def engines(model: Path, spare: Gateway) -> Iterator[tuple[Gateway, Gateway]]:
    """Two servers of the same weights, of which a test may kill the first."""
    with running_gateway(ENGINE.format(model=model)) as gateway:
        yield gateway, spare


@pytest.fixture
def front(engines: tuple[Gateway, Gateway]) -> Iterator[Gateway]:
    """The gateway before them."""
    policy = FRONT.format(one=engines[0].url, two=engines[1].url)
    with running_gateway(policy, environ={"RED": "sk-red"}) as gateway:
        yield gateway


async def pieces_of(gateway: Gateway, **fields: Any) -> AsyncIterator[bytes]:
    """A stream as it comes."""
    headers = {"authorization": "Bearer sk-red"}
    async with (
        httpx.AsyncClient(verify=False, timeout=60) as client,
        client.stream("POST", f"{gateway.url}/v1/chat/completions", json=QUESTION | fields, headers=headers) as answer,
    ):
        assert answer.status_code == 200
        async for piece in answer.aiter_bytes():
            yield piece


def told(stream: bytes) -> tuple[str, list[Any], set[str], Any]:
    """Its text, its ends, the ids of its chunks, and its usage."""
    chunks = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith(b"data: {")]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    text = "".join(choice["delta"].get("content") or "" for choice in choices)
    ends = [choice["finish_reason"] for choice in choices if choice["finish_reason"]]
    return text, ends, {chunk["id"] for chunk in chunks}, chunks[-1].get("usage")


@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"seed": 7}], ids=["greedy", "seeded"])
async def test_stream_survives_the_kill_of_its_engine(
    engines: tuple[Gateway, Gateway], front: Gateway, sampling: dict[str, Any]
) -> None:
    """Token for token what it would have been, said at the seam, in the log and a metric; and never cached. One that
    does not break before is as ever.
    """
    await check_unbroken(engines[0], front)
    whole = b"".join([piece async for piece in pieces_of(engines[1], **sampling)])
    passed = b""
    async for piece in pieces_of(front, **sampling):
        if b"content" in passed and engines[0].process.poll() is None:
            engines[0].process.kill()
        passed += piece

    text, ends, ids, usage = told(passed)
    assert (text, ends, usage) == (told(whole)[0], ["length"], told(whole)[3])
    assert len(ids) == 1
    assert passed.endswith(b"data: [DONE]\n\n")
    [seam] = [line for line in passed.splitlines() if line.startswith(b":")]
    assert seam.startswith(b": slipstream resumed exact backend=two tokens=")
    line = await front.wait_log(lambda line: "resumed" in line)
    [resumed] = line["resumed"]
    tokens = int(seam.rpartition(b"=")[2])
    assert resumed == {"backend": "one", "kind": "exact", "outcome": "resumed", "to": "two", "tokens": tokens}
    assert 0 < tokens < 300
    assert (line["backend"], line["stream_end"], line["attempts"]) == ("two", "clean", 2)
    assert line["usage"]["completion_tokens"] == 300
    metrics = await front.metrics()
    labels = {"route": "all", "backend": "one", "kind": "exact", "outcome": "resumed"}
    assert metrics.value("slipstream_resumes_total", **labels) == 1
    assert metrics.value("slipstream_tokens_total", kind="completion") == 600
    again = b"".join([piece async for piece in pieces_of(front, **sampling)])
    assert told(again)[0] == text
    assert b"slipstream" not in again
    assert (await front.wait_log(count=4))["cache"] == "miss"


async def check_unbroken(engine: Gateway, front: Gateway) -> None:
    """Marks stay between the two, and the answer is cached as any other."""
    plain = b"".join([piece async for piece in pieces_of(engine, seed=3)])
    passed = b"".join([piece async for piece in pieces_of(front, seed=3)])
    again = b"".join([piece async for piece in pieces_of(front, seed=3)])

    assert told(passed)[0] == told(plain)[0]
    assert b"slipstream" not in passed
    assert told(again) == told(passed)
    line = await front.wait_log(count=2)
    assert (line["cache"], "resumed" in line) == ("hit", False)


TEXT = """
version: 1
backends:
  one: {{type: openai, preset: vllm, base_url: "{one}"}}
  two: {{type: openai, preset: vllm, base_url: "{two}"}}
routes:
- name: all
  match: {{models: ["*"]}}
  backends: [{{ref: one}}, {{ref: two, priority: 1}}]
  resume: {{mode: best_effort}}
  cache: {{scope: tenant}}
"""


async def test_text_that_went_on_is_labelled_and_never_cached() -> None:
    """Servers that continue a last message; the next call asks anew, and what it gets is cached as ever."""
    async with OpenAIServer() as one, OpenAIServer() as two:
        with running_gateway(TEXT.format(one=one.base_url, two=two.base_url)) as gateway:
            one.next(Behaviour(text="Rivers are long and wet.", cut_after_events=3))
            two.next(Behaviour(text="and wet."))
            broken = b"".join([piece async for piece in pieces_of(gateway)])
            whole = b"".join([piece async for piece in pieces_of(gateway)])
            again = b"".join([piece async for piece in pieces_of(gateway)])

            begun = two.requests[0].json()["messages"][-1]["content"]
            assert told(broken)[:2] == (begun + "and wet.", ["stop"])
            seam = f": slipstream resumed best_effort backend=two characters={len(begun)}".encode()
            assert broken.count(seam + b"\n\n") == 1
            assert b"slipstream" not in whole
            assert told(again) == told(whole)
            assert (len(one.requests), len(two.requests)) == (2, 1)
            lines = [await gateway.wait_log(count=number) for number in (1, 2, 3)]
            assert [line["cache"] for line in lines] == ["miss", "miss", "hit"]
            assert lines[0]["resumed"][0]["kind"] == "best_effort"


@pytest.mark.parametrize(("mode", "way"), [("exact", ", continues: final_message"), ("best_effort", "")])
def test_route_whose_streams_have_nowhere_to_go_on_is_refused(mode: str, way: str) -> None:
    """At the start, and not when the first stream breaks."""
    policy = (
        TEXT.replace(", preset: vllm", way).replace("best_effort", mode).format(one="http://h/v1", two="http://h/v1")
    )

    with gateway_process(policy) as gateway:
        assert gateway.process.wait(30) != 0
        assert 'route "all": resume needs' in gateway.stderr
