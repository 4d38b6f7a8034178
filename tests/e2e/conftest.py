"""One gateway for all of these tests, and an upstream of each test's own on the port that it knows."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

import httpx
import pytest
from openai import AsyncOpenAI

from tests.support.gateway import Gateway, reserved_port, running_gateway
from tests.support.servers.openai_server import OpenAIServer

if TYPE_CHECKING:
    from playwright.sync_api import Browser

ENVIRON = {
    "UPSTREAM_KEY": "sk-upstream-0123",
    "DEV_KEY": "sk-dev-0123456789",
    "BLUE_KEY": "sk-blue-0123456789",
    "NARROW_KEY": "sk-narrow-0123456789",
    "SLIPSTREAM_MAX_BODY": "40MiB",
    "SLIPSTREAM_CORS_ORIGINS": "https://app.example,https://other.example",
}

POLICY = """
version: 1
backends:
  up: {{type: openai, base_url: "http://127.0.0.1:{port}/v1", api_key: "env:UPSTREAM_KEY"}}
  own: {{type: scripted}}
keys:
  - {{name: dev, key: "env:DEV_KEY", tenant: red}}
  - {{name: blue, key: "env:BLUE_KEY", tenant: blue}}
  - {{name: narrow, key: "env:NARROW_KEY", tenant: red, models: ["plain", "team/*"]}}
defaults:
  retry: {{attempts: 0}}
  timeouts: {{connect: 10s, first_token: 30s, stream_idle: 30s, total: 60s}}
  # These tests are about how calls pass; which ones may is test_passthrough_rules.py.
  passthrough: {{allow: ["*"], objects: shared}}
routes:
  - name: cached
    match: {{models: ["cached", "cached-*"]}}
    backends: [{{ref: up}}]
    cache: {{exact: {{ttl: 60s}}}}
  - name: renamed
    match: {{models: ["alias", "team/alias-2"]}}
    backends: [{{ref: up, model: 'real/model "x"'}}]
  - name: scripted
    match: {{models: ["scripted"]}}
    backends: [{{ref: own}}]
  - name: all
    match: {{models: ["*", "plain"]}}
    backends: [{{ref: up}}]
"""


@pytest.fixture(scope="session")
def upstream_port() -> Iterator[int]:
    """Where the shared gateway's upstream is."""
    with reserved_port() as port:
        yield port


@pytest.fixture(scope="session")
def gateway(upstream_port: int) -> Iterator[Gateway]:
    """The gateway that tests share which need no policy of their own."""
    with running_gateway(POLICY.format(port=upstream_port), environ=ENVIRON) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium, of one module: while it runs, no test of its process may have an event loop."""
    playwright = pytest.importorskip("playwright.sync_api")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("no Chromium")
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
async def upstream(upstream_port: int) -> AsyncIterator[OpenAIServer]:
    """This test's own upstream, at the port where the gateway looks for it."""
    server = OpenAIServer()
    server.port = upstream_port
    async with server:
        yield server


@pytest.fixture
async def client(gateway: Gateway) -> AsyncIterator[httpx.AsyncClient]:
    """A client with a good key."""
    async with httpx.AsyncClient(
        base_url=gateway.url,
        headers={"authorization": f"Bearer {ENVIRON['DEV_KEY']}"},
        verify=False,
        timeout=20,
    ) as client:
        yield client


@pytest.fixture
async def openai(gateway: Gateway) -> AsyncIterator[AsyncOpenAI]:
    """OpenAI's own client, without retries."""
    async with AsyncOpenAI(
        base_url=f"{gateway.url}/v1", api_key=ENVIRON["DEV_KEY"], max_retries=0, timeout=20
    ) as client:
        yield client
