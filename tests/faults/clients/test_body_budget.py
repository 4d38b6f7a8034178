"""Callers that send much at once: each has its share of memory, and what is refused says when to come again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.support.faults import CHAT, CaseServer, Setting, setting
from tests.support.http_client import Answer, HttpClient, chat_body, request_bytes

_MIB = 1024**2
_KEYS = {name: f"sk-{name}-0123456789" for name in ("ann", "bob", "eve")}
_ENVIRON = {name.upper(): key for name, key in _KEYS.items()}


@pytest.fixture(scope="module")
def narrow() -> Iterator[Setting]:
    """A gateway that holds 8 MiB of bodies, 5 of one key."""
    keys = [{"name": name, "key": f"env:{name.upper()}", "tenant": "t"} for name in _KEYS]
    bounds = {"SLIPSTREAM_MAX_BODIES": "8MiB", "SLIPSTREAM_MAX_BODIES_PER_KEY": "5MiB"}
    with setting(environ={**_ENVIRON, **bounds}, keys=keys) as made:
        yield made


@pytest.fixture
async def upstream(narrow: Setting) -> AsyncIterator[CaseServer]:
    """The upstream of that gateway."""
    async with CaseServer(narrow.ports[0]) as server:
        yield server
        await asyncio.sleep(0)


async def _begin(setting: Setting, name: str, num_bytes: int, *, is_chunked: bool = False) -> HttpClient:
    """A request of whose body so many bytes come, announced or in one chunk, and which stays unfinished."""
    client = await HttpClient.open(setting.gateway.port)
    head = request_bytes(CHAT, b"", [("authorization", f"Bearer {_KEYS[name]}")])
    if is_chunked:
        client.send(head.replace(b"content-length: 0", b"transfer-encoding: chunked"))
        client.send(b"%x\r\n%b\r\n" % (num_bytes, b" " * num_bytes))
    else:
        client.send(head.replace(b"content-length: 0", b"content-length: %d" % (num_bytes + 1)))
        client.send(b" " * num_bytes)
    return client


async def _post(setting: Setting, name: str, num_bytes: int) -> Answer:
    client = await HttpClient.open(setting.gateway.port)
    try:
        return await client.post(CHAT, chat_body("x" * num_bytes), [("authorization", f"Bearer {_KEYS[name]}")])
    finally:
        client.close()
        await asyncio.sleep(0)


async def _wait_held(setting: Setting, num_bytes: int) -> None:
    """Wait until the gateway holds so much. Raises: TimeoutError."""
    async with asyncio.timeout(5):
        while (await setting.gateway.metrics()).value("slipstream_body_bytes") != num_bytes:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("is_chunked", [False, True], ids=["announced", "chunked"])
@pytest.mark.usefixtures("upstream")
async def test_bodies_of_one_key_and_of_all_are_bounded(narrow: Setting, *, is_chunked: bool) -> None:
    """429 for the key's second body, 503 once all is held, 200 for small ones meanwhile and for all afterwards."""
    first = await _begin(narrow, "ann", 4 * _MIB, is_chunked=is_chunked)
    await _wait_held(narrow, 4 * _MIB)
    own = await _post(narrow, "ann", 2 * _MIB)
    second = await _begin(narrow, "bob", 3 * _MIB, is_chunked=is_chunked)
    await _wait_held(narrow, 7 * _MIB)
    others = await _post(narrow, "eve", 2 * _MIB)
    small = [await _post(narrow, name, 2000) for name in _KEYS]
    for client in (first, second):
        client.close()
    await _wait_held(narrow, 0)
    after = [await _post(narrow, name, 4 * _MIB) for name in _KEYS]

    assert (own.status, (own.error() or {})["code"]) == (429, "request_bytes_exceeded")
    assert (others.status, (others.error() or {})["code"]) == (503, "request_bytes_exhausted")
    assert int(own.header(b"retry-after")) >= 1
    assert int(others.header(b"retry-after")) >= 1
    assert [answer.status for answer in (*small, *after)] == [200] * 6
    await _wait_held(narrow, 0)
    errors = await narrow.gateway.metrics()
    assert errors.value("slipstream_errors_total", code="request_bytes_exceeded") >= 1
    assert errors.value("slipstream_errors_total", code="request_bytes_exhausted") >= 1


@pytest.mark.usefixtures("upstream")
async def test_bodies_that_are_only_announced_hold_nothing(narrow: Setting) -> None:
    """Lengths cost nobody anything: other callers have all the room."""
    clients = []
    for name in ("ann", "bob"):
        head = request_bytes(CHAT, b"", [("authorization", f"Bearer {_KEYS[name]}")])
        clients.append(await HttpClient.open(narrow.gateway.port))
        clients[-1].send(head.replace(b"content-length: 0", b"content-length: %d" % (4 * _MIB)))
    others = await _post(narrow, "eve", 4 * _MIB)
    for client in clients:
        client.close()

    assert others.status == 200


@pytest.mark.usefixtures("upstream")
async def test_body_over_a_keys_share_is_too_large(narrow: Setting) -> None:
    """413: it would never fit."""
    answer = await _post(narrow, "ann", 6 * _MIB)

    assert answer.status == 413


@pytest.mark.usefixtures("upstream")
async def test_unknown_callers_hold_nothing(narrow: Setting) -> None:
    """Who has no key is refused before the body is read."""
    client = await HttpClient.open(narrow.gateway.port)
    client.send(request_bytes(CHAT, b"").replace(b"content-length: 0", b"content-length: %d" % (4 * _MIB)))
    answer = await client.answer()
    client.close()
    await asyncio.sleep(0)

    assert answer.status == 401
    await _wait_held(narrow, 0)
