"""Forms are routed, renamed and refused by their `model`; paths at the root of an engine are found there."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest

from tests.support.errors import openai_error
from tests.support.gateway import Gateway, reserved_port, running_gateway
from tests.support.servers.openai_server import Behaviour, OpenAIServer

ENVIRON = {"WIDE_KEY": "sk-wide-0123456789", "NARROW_KEY": "sk-narrow-0123456789"}
POLICY = """
version: 1
backends:
  one: {{type: openai, base_url: "{one}"}}
  two: {{type: openai, preset: vllm, base_url: "{two}"}}
keys:
  - {{name: wide, key: "env:WIDE_KEY"}}
  - {{name: narrow, key: "env:NARROW_KEY", models: [whisper]}}
routes:
  - {{name: sound, match: {{models: [whisper]}}, backends: [{{ref: one, model: openai/whisper-large-v3}}]}}
  - {{name: others, match: {{models: ["*"]}}, backends: [{{ref: two}}]}}
"""
WIDE = {"authorization": f"Bearer {ENVIRON['WIDE_KEY']}"}
NARROW = {"authorization": f"Bearer {ENVIRON['NARROW_KEY']}"}
Trio = tuple[httpx.AsyncClient, OpenAIServer, OpenAIServer]


@pytest.fixture(scope="module")
def ports() -> Iterator[tuple[int, int]]:
    """Where the two upstreams are."""
    with reserved_port() as one, reserved_port() as two:
        yield one, two


@pytest.fixture(scope="module")
def gateway(ports: tuple[int, int]) -> Iterator[Gateway]:
    """One for all of these tests."""
    one, two = (f"http://127.0.0.1:{port}/v1" for port in ports)
    with running_gateway(POLICY.format(one=one, two=two), environ=ENVIRON) as gateway:
        yield gateway


@pytest.fixture
async def trio(gateway: Gateway, ports: tuple[int, int]) -> AsyncIterator[Trio]:
    """A client, and this test's own upstreams."""
    one, two = (OpenAIServer(Behaviour(body=b'{"text": "hello"}')) for _ in range(2))
    one.port, two.port = ports
    async with one, two, httpx.AsyncClient(base_url=gateway.url, verify=False, timeout=20) as client:
        yield client, one, two


async def _transcribe(client: httpx.AsyncClient, key: dict[str, str], model: str, sound: bytes) -> httpx.Response:
    files = {"file": ("a.wav", sound, "audio/wav")}
    return await client.post("/v1/audio/transcriptions", data={"model": model}, files=files, headers=key)


async def test_form_goes_where_its_model_is_and_is_renamed(trio: Trio) -> None:
    """The sound stays byte for byte, in front of the model or behind it."""
    client, one, two = trio
    sound = os.urandom(3_000_000)
    answer = await _transcribe(client, WIDE, "whisper", sound)
    await _transcribe(client, WIDE, "another", sound)
    behind = {"file": ("a.wav", sound, "audio/wav"), "model": (None, "whisper")}
    await client.post("/audio/transcriptions", files=behind, headers=NARROW)

    assert answer.json() == {"text": "hello"}
    assert [len(upstream.requests) for upstream in (one, two)] == [2, 1]
    for received, model in zip(
        [*one.requests, *two.requests], ["openai/whisper-large-v3"] * 2 + ["another"], strict=True
    ):
        assert sound in received.body
        assert b'name="model"\r\n\r\n%b\r\n' % model.encode() in received.body
        assert received.header("content-length") == str(len(received.body))


async def test_key_for_some_models_may_send_forms_for_these(trio: Trio) -> None:
    """And for no others, nor one that names none."""
    client, one, two = trio

    assert (await _transcribe(client, NARROW, "whisper", b"x")).status_code == 200
    assert openai_error(await _transcribe(client, NARROW, "another", b"x"), 404)["code"] == "model_not_found"
    nothing = await client.post("/v1/audio/transcriptions", files={"file": b"x"}, headers=NARROW)
    assert openai_error(nothing, 404)["code"] == "unknown_url"
    assert [len(upstream.requests) for upstream in (one, two)] == [1, 0]


async def test_form_with_two_models_reaches_nobody(trio: Trio) -> None:
    """Ours would route by one, theirs read the other; the same goes for two content types."""
    client, one, two = trio
    twice = [("model", (None, "whisper")), ("file", ("a", b"x")), ("model", (None, "another"))]
    refused = await client.post("/v1/images/edits", files=twice, headers=NARROW)
    body = b'--x\r\ncontent-disposition: form-data; name="model"\r\n\r\nwhisper\r\n--x--\r\n'
    types = [("content-type", "multipart/form-data; boundary=y"), ("content-type", "multipart/form-data; boundary=x")]
    doubtful = await client.post("/v1/images/edits", content=body, headers=[*NARROW.items(), *types])

    assert openai_error(refused, 400)["param"] == "model"
    assert "content types" in openai_error(doubtful, 400)["message"]
    assert not one.requests + two.requests


@pytest.mark.parametrize("path", ["tokenize", "detokenize", "pooling", "classify"])
async def test_path_at_the_root_of_an_engine_is_found_there(trio: Trio, path: str) -> None:
    """With and without /v1, for a server whose preset says so; others keep theirs."""
    client, one, two = trio
    for root in ("/", "/v1/"):
        for model in ("qwen", "whisper"):
            assert (await client.post(root + path, json={"model": model}, headers=WIDE)).status_code == 200

    assert [received.target for received in two.requests] == [f"/{path}"] * 2
    assert [received.target for received in one.requests] == [f"/v1/{path}"] * 2


@pytest.mark.parametrize("path", ["score", "rerank"])
async def test_path_that_is_below_v1_too_stays_there(trio: Trio, path: str) -> None:
    """vLLM has these in both places."""
    client, _, two = trio
    await client.post(f"/{path}", json={"model": "qwen"}, headers=WIDE)

    assert two.requests[0].target == f"/v1/{path}"
