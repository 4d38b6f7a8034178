"""An upstream that asks to be left alone: its Retry-After is honoured as far as it is sane, and retries stay few."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from email.utils import formatdate

import pytest

from tests.support.faults import CHAT, CaseServer, Setting, setting
from tests.support.http_client import Answer, Connections, chat_body
from tests.support.servers.openai_server import error

_RETRY = {"attempts": 2, "backoff": {"initial": "10ms", "max": "500ms"}, "budget_percent": 20}


@pytest.fixture(scope="module")
def retrying() -> Iterator[Setting]:
    """A gateway that retries after 429."""
    with setting(routes={"*": {"retry": _RETRY}}) as made:
        yield made


@pytest.fixture
async def upstream(retrying: Setting) -> AsyncIterator[CaseServer]:
    """The upstream of that gateway."""
    async with CaseServer(retrying.ports[0]) as server:
        yield server


@pytest.fixture
async def connections(retrying: Setting) -> AsyncIterator[Connections]:
    """Connections to that gateway."""
    made = Connections(retrying.gateway.port)
    yield made
    await made.aclose()


async def _timed(connections: Connections) -> tuple[Answer, float]:
    started_at = time.monotonic()
    answer = await connections.post(CHAT, chat_body())
    return answer, time.monotonic() - started_at


_IN_AN_HOUR = formatdate(time.time() + 3600, usegmt=True)
_NOT_WAITED_FOR = {
    "1000000000": "86400",
    "-1": None,
    "tomorrow": None,
    "1e999": "86400",
    "3": "3",
    _IN_AN_HOUR: _IN_AN_HOUR,
}
"""What an upstream asks for, and what of it is passed on."""


@pytest.mark.alone
@pytest.mark.parametrize(
    ("retry_after", "told"), _NOT_WAITED_FOR.items(), ids=["years", "past", "word", "infinite", "seconds", "date"]
)
@pytest.mark.timed
async def test_retry_after_that_cannot_be_waited_for_goes_to_the_client_at_once(
    upstream: CaseServer, connections: Connections, retry_after: str, told: str | None
) -> None:
    """A long wait is the client's to decide on, an absurd one is told as a day, a senseless one not at all."""
    upstream.default = error(429, retry_after=retry_after)
    answer, took_s = await _timed(connections)

    assert answer.status == 429
    assert answer.header(b"retry-after") == (told or "").encode()
    assert took_s <= 0.5


@pytest.mark.alone
@pytest.mark.timed
async def test_retry_after_that_can_be_waited_for_is(upstream: CaseServer, connections: Connections) -> None:
    """A short wait is kept to, and the second attempt succeeds."""
    upstream.next(error(429, retry_after="0.3"))
    answer, took_s = await _timed(connections)

    assert answer.status == 200
    assert 0.3 <= took_s <= 0.6


async def test_storm_of_refusals_is_not_multiplied(upstream: CaseServer, connections: Connections) -> None:
    """With every call refused, retries stay within 20 % (and what a quiet route may always retry)."""
    num_calls = 600
    upstream.default = error(429, retry_after="0")
    started_at = time.monotonic()
    answers = []
    for _ in range(num_calls // 30):
        answers += await asyncio.gather(*(connections.post(CHAT, chat_body()) for _ in range(30)))
    took_s = time.monotonic() - started_at

    assert {answer.status for answer in answers} == {429}
    extra = sum(upstream.num_asked.values()) - num_calls
    assert 0 < extra <= 0.2 * num_calls + 10 + 3 * took_s
