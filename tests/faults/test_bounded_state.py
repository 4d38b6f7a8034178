"""What clients invent does not pile up: models, keys and paths by the thousand leave the metrics as they were."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator
from functools import partial

import pytest

from tests.support.faults import CHAT, CaseServer, Setting, setting
from tests.support.http_client import Answer, Connections, HttpClient, chat_body, request_bytes
from tests.support.servers.openai_server import Behaviour

_CALLS = 3000


@pytest.fixture(scope="module")
def plain() -> Iterator[Setting]:
    """A gateway whose policy names one model."""
    with setting(routes={"named": {}, "*": {"passthrough": {"allow": ["*"], "objects": "shared"}}}) as made:
        yield made


@pytest.fixture
async def upstream(plain: Setting) -> AsyncIterator[CaseServer]:
    """The upstream of that gateway."""
    async with CaseServer(plain.ports[0]) as server:
        server.default = Behaviour(body=b"{}")
        yield server


async def _call(setting: Setting, numbers: Iterator[int], count: int) -> None:
    """Every call with a model, a path, a key and an id of its own."""
    connections = Connections(setting.gateway.port)

    async def work() -> None:
        for number in itertools.islice(numbers, count // 10):
            path = CHAT if number % 2 else f"/v1/things/{number}"
            fields = [("authorization", f"Bearer {number}"), ("x-request-id", f"id-{number}")]
            request = request_bytes(path, chat_body(model=f"model-{number}"), fields)
            answer = await connections.ask(partial(_exchange, request))
            assert answer.status == 200

    await asyncio.gather(*(work() for _ in range(10)))
    await connections.aclose()


async def _exchange(request: bytes, client: HttpClient) -> Answer:
    client.send(request)
    return await client.answer()


@pytest.mark.usefixtures("upstream")
async def test_invented_models_paths_and_keys_make_no_new_series(plain: Setting) -> None:
    """After the first few hundred calls neither the number of series nor the memory grows."""
    numbers = itertools.count()
    await _call(plain, numbers, 500)
    before = await plain.gateway.metrics()
    before_mib = plain.gateway.rss_mib()
    await _call(plain, numbers, _CALLS)
    after = await plain.gateway.metrics()

    assert len(after.samples) <= len(before.samples) + 1
    assert {labels["model"] for _, labels, _ in after.samples if "model" in labels} <= {"named", "_other"}
    assert plain.gateway.rss_mib() - before_mib <= 4
