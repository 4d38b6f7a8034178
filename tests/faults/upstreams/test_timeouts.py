"""Upstreams that go silent: every limit of a route takes effect within 100 ms, and the client can tell which it was."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.support.faults import CHAT, CaseServer, Setting, setting
from tests.support.http_client import Answer, HttpClient, chat_body, request_bytes
from tests.support.servers.openai_server import Behaviour

_EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"word"},"finish_reason":null}]}\n\n'
pytestmark = pytest.mark.alone
_LATE_S = 0.1
_BUSY_S = 0.15
"""What a machine that runs other things besides may add."""


@pytest.fixture(scope="module")
def stalling() -> Iterator[Setting]:
    """A gateway with short limits."""
    limits = {"connect": "200ms", "first_token": "300ms", "stream_idle": "200ms", "total": "1s"}
    with setting(routes={"*": {"timeouts": limits, "retry": {"attempts": 0}}}) as made:
        yield made


@pytest.fixture
async def upstream(stalling: Setting) -> AsyncIterator[CaseServer]:
    """The upstream of that gateway."""
    async with CaseServer(stalling.ports[0]) as server:
        yield server


async def ask(setting: Setting, *, stream: bool) -> tuple[Answer, float, float]:
    """The answer, the seconds it took, and those after its last piece but one."""
    client = await HttpClient.open(setting.gateway.port)
    times = [time.monotonic()]
    client.on_bytes = lambda data: times.append(time.monotonic())
    client.send(request_bytes(CHAT, chat_body(stream=stream)))
    answer = await client.answer()
    client.close()
    return answer, times[-1] - times[0], times[-1] - times[-2]


@pytest.mark.parametrize("behaviour", [Behaviour(stall_before_head=True), Behaviour(stall_after_events=0)])
@pytest.mark.timed
async def test_stream_without_a_first_event_is_answered_504_in_time(
    stalling: Setting, upstream: CaseServer, behaviour: Behaviour
) -> None:
    """Silence before the head, or between the head and the first event, is a plain error answer."""
    upstream.default = behaviour
    answer, took_s, _ = await ask(stalling, stream=True)

    assert answer.status == 504
    assert (answer.error() or {})["code"] == "first_token_timeout"
    assert 0.3 <= took_s <= 0.3 + _LATE_S + _BUSY_S


@pytest.mark.parametrize("num_events", [1, 20])
@pytest.mark.timed
async def test_stream_that_stalls_ends_with_an_error_event_in_time(
    stalling: Setting, upstream: CaseServer, num_events: int
) -> None:
    """What had come stays, then the client is told, and the body has no end."""
    upstream.default = Behaviour(events=(_EVENT,) * 30, stall_after_events=num_events)
    answer, _, silent_s = await ask(stalling, stream=True)

    assert answer.status == 200
    assert not answer.is_whole
    assert answer.body.startswith(_EVENT * num_events + b'data: {"error":')
    assert b'"stream_stalled"' in answer.body
    assert 0.2 <= silent_s <= 0.2 + _LATE_S + _BUSY_S


@pytest.mark.timed
async def test_plain_call_is_answered_504_when_its_time_is_up(stalling: Setting, upstream: CaseServer) -> None:
    """A plain answer may take all the time that the call has, and no more."""
    upstream.default = Behaviour(stall_before_head=True)
    answer, took_s, _ = await ask(stalling, stream=False)

    assert answer.status == 504
    assert (answer.error() or {})["code"] == "total_timeout"
    assert 1.0 <= took_s <= 1.05 + _BUSY_S


@pytest.mark.timed
async def test_comments_do_not_pass_for_a_first_event(stalling: Setting, upstream: CaseServer) -> None:
    """Bytes that keep the connection alive put nothing off."""
    upstream.default = Behaviour(events=(b": ping\n\n",) * 20, event_delay_s=0.05)
    answer, took_s, _ = await ask(stalling, stream=True)

    assert answer.status == 504
    assert took_s <= 0.3 + _LATE_S + _BUSY_S


@pytest.mark.timed
async def test_stream_of_single_bytes_ends_when_its_time_is_up(stalling: Setting, upstream: CaseServer) -> None:
    """A drip that never lets the idle limit take effect is bounded by the call's whole time."""
    upstream.default = Behaviour(events=(_EVENT, *(b"x" for _ in range(60))), event_delay_s=0.05)
    answer, took_s, _ = await ask(stalling, stream=True)

    assert answer.status == 200
    assert not answer.is_whole
    assert b'"total_timeout"' in answer.body
    assert took_s <= 1.05 + _BUSY_S
