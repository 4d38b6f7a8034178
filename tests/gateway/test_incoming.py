"""Bodies that come slowly: how slowly is borne, and whose time counts."""

from __future__ import annotations

import pytest
from starlette.types import Message

from backends.errors import BodyTooSlow
from gateway.http.agent import agent_family
from gateway.http.incoming import Incoming, Pace, read_body
from tests.support.clock import FakeClock

_KIB = 1024


class _Client:
    """Sends pieces of a size, one in so many seconds."""

    def __init__(self, clock: FakeClock, num_pieces: int, num_bytes: int, every_s: float) -> None:
        self.num_left = num_pieces
        self._clock = clock
        self._piece = b"x" * num_bytes
        self._every_s = every_s

    async def receive(self) -> Message:
        await self._clock.advance(self._every_s)
        self.num_left -= 1
        return {"type": "http.request", "body": self._piece, "more_body": self.num_left > 0}


@pytest.mark.parametrize(
    ("num_bytes", "every_s", "min_rate"),
    [(_KIB, 1.0, _KIB), (_KIB, 50.0, 0), (100 * _KIB, 50.0, _KIB)],
    ids=["fast enough", "no bound", "in bursts"],
)
async def test_body_that_comes_is_waited_for(num_bytes: int, every_s: float, min_rate: int) -> None:
    """For as long as it takes, where that is not too slow."""
    clock = FakeClock()
    client = _Client(clock, 500, num_bytes, every_s)

    body = await read_body(client.receive, Incoming([]), 10**9, Pace(clock, min_rate))

    assert len(body) == 500 * num_bytes


@pytest.mark.parametrize(("num_bytes", "every_s"), [(1, 50.0), (1, 0.5), (500, 1.0)])
async def test_body_that_never_comes_to_an_end_is_refused(num_bytes: int, every_s: float) -> None:
    """Within minutes, and not before it has had half a minute."""
    clock = FakeClock()
    client = _Client(clock, 10**9, num_bytes, every_s)
    began = clock.now()

    with pytest.raises(BodyTooSlow) as refused:
        await read_body(client.receive, Incoming([]), 10**9, Pace(clock, _KIB))

    assert refused.value.status == 408
    assert 30 <= clock.now() - began <= 101


async def test_time_that_the_gateway_takes_is_not_the_clients() -> None:
    """A disk that is slow, for instance."""
    clock = FakeClock()
    pace = Pace(clock, _KIB)
    client = _Client(clock, 100, 1, 0.1)
    for number in range(100):
        await pace.next(client.receive, number)
        await clock.advance(10)

    assert client.num_left == 0


@pytest.mark.parametrize(
    ("user_agent", "family"),
    [
        (b"codex_exec/0.171.0 (Debian 12.0.0; x86_64) xterm (codex_exec; 0.171.0)", "codex"),
        (b"codex_cli_rs/0.40.0 (Mac OS 15; arm64)", "codex"),
        (b"claude-cli/2.1.197 (external, sdk-cli)", "claude-code"),
        (b"AsyncOpenAI/Python 3.57.0", "openai-python"),
        (b"my codex/1", "other"),
        (b"", ""),
    ],
)
def test_agent_is_known_by_what_it_calls_itself(user_agent: bytes, family: str) -> None:
    """Codex by each of its ways to run."""
    assert agent_family(user_agent) == family
