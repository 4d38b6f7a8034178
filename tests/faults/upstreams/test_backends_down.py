"""Upstreams that refuse, swallow, flap or die under load: the right error in time, and others take over."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator

import pytest

from tests.support.faults import CHAT, CaseServer, Setting, setting
from tests.support.http_client import Answer, Connections, HttpClient, chat_body
from tests.support.servers.openai_server import Behaviour, error

pytestmark = pytest.mark.alone
_BUSY_S = 0.2
"""What a machine that runs other things besides may add."""
_OPEN_FOR_S = 0.5


# Neither how often it has opened in the tests before, nor how lately it has closed, changes what it does.
_BREAKER = {
    "consecutive_failures": 3,
    "open_for": f"{_OPEN_FOR_S}s",
    "max_open_for": f"{_OPEN_FOR_S}s",
    "slow_start": "0s",
    "max_ejection_percent": 100,
}


@pytest.fixture(scope="module")
def pair() -> Iterator[Setting]:
    """A gateway with two upstreams of the same priority, and a breaker that is quick to open."""
    with setting(2, routes={"*": {"circuit_breaker": _BREAKER}}) as made:
        yield made


@pytest.fixture(scope="module")
def hasty() -> Iterator[Setting]:
    """The same with limits so short that a machine which stands still for a moment misses them too."""
    limits = {"connect": "200ms", "total": "1s"}
    with setting(2, routes={"*": {"timeouts": limits, "circuit_breaker": _BREAKER}}) as made:
        yield made


@pytest.fixture
async def closed_breakers(request: pytest.FixtureRequest) -> None:
    """Whatever the test before has opened is closed again: both upstreams have answered."""
    used: Setting = request.getfixturevalue("hasty" if "hasty" in request.fixturenames else "pair")
    async with CaseServer(used.ports[0]) as first, CaseServer(used.ports[1]) as second:
        async with asyncio.timeout(5):
            while not (first.num_asked and second.num_asked):
                await ask(used)


async def ask(setting: Setting, *, stream: bool = False) -> Answer:
    """One call on a connection of its own."""
    client = await HttpClient.open(setting.gateway.port)
    try:
        return await client.post(CHAT, chat_body(stream=stream))
    finally:
        client.close()


@pytest.mark.usefixtures("closed_breakers")
@pytest.mark.timed
async def test_all_upstreams_refusing_is_an_error_in_time_then_no_backend(hasty: Setting) -> None:
    """At first 502 says that nobody could be reached; once the breakers are open 503 says when to come again."""
    codes = []
    for _ in range(12):
        started_at = time.monotonic()
        answer = await ask(hasty)
        codes.append((answer.status, (answer.error() or {})["code"]))
        assert time.monotonic() - started_at <= 1.05 + _BUSY_S

    assert codes[0] == (502, "upstream_unreachable")
    assert codes[-1] == (503, "no_backend_available")
    assert 1 <= int(answer.header(b"retry-after")) <= 2


@pytest.mark.usefixtures("closed_breakers")
@pytest.mark.timed
async def test_upstream_that_never_accepts_is_a_connect_timeout_within_the_whole_time(hasty: Setting) -> None:
    """A black hole: the kernel takes no more connections, and does not say so."""
    holes = [_black_hole(port) for port in hasty.ports]
    try:
        started_at = time.monotonic()
        answer = await ask(hasty)
        took_s = time.monotonic() - started_at
    finally:
        for raw in (raw for hole in holes for raw in hole):
            raw.close()

    assert answer.status == 504
    assert (answer.error() or {})["code"] in ("connect_timeout", "total_timeout")
    assert 0.2 <= took_s <= 1.05 + _BUSY_S


def _black_hole(port: int) -> list[socket.socket]:
    """A listener nobody accepts from, its queue full."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(0)
    fillers = [socket.socket() for _ in range(4)]
    for filler in fillers:
        filler.setblocking(False)
        filler.connect_ex(("127.0.0.1", port))
    return [listener, *fillers]


@pytest.mark.usefixtures("closed_breakers")
async def test_breaker_leaves_a_broken_upstream_alone_then_tries_it_once(pair: Setting) -> None:
    """Three failures in a row open it, and the other one answers; after its time one call probes, and the upstream is
    back if that is well."""
    async with CaseServer(pair.ports[0]) as broken, CaseServer(pair.ports[1]):
        broken.default = error(500)
        statuses = [(await ask(pair)).status for _ in range(30)]
        num_failed = sum(broken.num_asked.values())
        opened_at = time.monotonic()

        assert num_failed == 3
        assert set(statuses) == {200}

        broken.default = Behaviour(delay_s=0.1)
        await asyncio.sleep(max(0.0, opened_at + _OPEN_FOR_S - time.monotonic()))
        answers = await asyncio.gather(*(ask(pair) for _ in range(20)))

        assert {answer.status for answer in answers} == {200}
        assert sum(broken.num_asked.values()) == num_failed + 1

        # Slower than the other one, it would rightly get fewer.
        broken.default = Behaviour()
        async with asyncio.timeout(10):
            while sum(broken.num_asked.values()) < num_failed + 5:
                assert (await ask(pair)).status == 200


@pytest.mark.usefixtures("closed_breakers")
async def test_upstream_that_dies_under_load_takes_only_its_own_calls_with_it(pair: Setting) -> None:
    """As after kill -9: connections are reset and new ones refused. What begins afterwards goes to the other one."""
    killed_at = float("inf")
    failed_at: list[float] = []
    num_answered = 0

    async def call_again_and_again(connections: Connections, until: float) -> None:
        nonlocal num_answered
        while (started_at := time.monotonic()) < until:
            answer = await connections.post(CHAT, chat_body())
            num_answered += answer.status == 200
            if answer.status != 200:
                failed_at.append(started_at)

    async with CaseServer(pair.ports[0]) as dying, CaseServer(pair.ports[1]) as other:
        dying.default = other.default = Behaviour(delay_s=0.02)
        connections = Connections(pair.gateway.port)
        until = time.monotonic() + 1.2
        async with asyncio.TaskGroup() as tasks:
            for _ in range(16):
                tasks.create_task(call_again_and_again(connections, until))
            await asyncio.sleep(0.4)
            killed_at = time.monotonic()
            await dying.refuse()
        await connections.aclose()

    assert num_answered > 100
    assert [at - killed_at for at in failed_at if at > killed_at] == []
    assert len(failed_at) <= 16
