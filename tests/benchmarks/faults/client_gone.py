"""How long after its client has left a call goes on upstream.

    python -m tests.benchmarks.faults.client_gone --count 1000

Clients leave a real gateway by a reset, by closing, and by closing only their sending half; before the upstream has
answered, in the middle of a stream, while they read more slowly than it comes, and while a plain call waits. Of calls
that share one upstream call only the last to leave may end it. Counted is the time from the client's close to the
moment at which the upstream sees its connection end.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from tests.support.faults import CACHE, CHAT, CaseServer, Progress, at_most, none, parser, percentile, policy, report
from tests.support.gateway import Gateway, start_gateway
from tests.support.http_client import HttpClient, chat_body, request_bytes
from tests.support.servers.openai_server import Behaviour

_WORKERS = 4
_LIMIT_S = 2.0
_EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"%b"},"finish_reason":null}]}\n\n'
_SMALL = (_EVENT % b"word",) * 50
_LARGE = (_EVENT % (b"x" * 8192),) * 5_000
PHASES = ("plain", "large body", "before the head", "mid-stream", "slow reader", "shared plain", "shared stream")
WAYS = ("reset", "close", "half close")


@dataclass(slots=True)
class Outcome:
    """Times by phase and way, in milliseconds."""

    times_ms: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @property
    def all_ms(self) -> list[float]:
        """Every time measured."""
        return [time_ms for times_ms in self.times_ms.values() for time_ms in times_ms]


def _behaviour(phase: str, random_: random.Random) -> Behaviour:
    if phase in ("plain", "large body", "shared plain", "before the head"):
        return Behaviour(stall_before_head=True)
    if phase == "slow reader":
        return Behaviour(events=_LARGE)
    return Behaviour(events=_SMALL, stall_after_events=random_.randrange(1, 40))


async def _send(client: HttpClient, request: bytes, phase: str) -> None:
    if phase == "large body":
        head, _, request = request.partition(b"\r\n\r\n")
        client.send(head + b"\r\n\r\n")
        # Time is the subject: the gateway waits for the body when it comes, all at once.
        await asyncio.sleep(0.01)
    client.send(request)


def _leave(client: HttpClient, way: str) -> None:
    if way == "reset":
        client.reset()
    elif way == "close":
        client.close()
    else:
        client.close_sending()


async def _wait_phase(phase: str, behaviour: Behaviour, client: HttpClient) -> None:
    """Until the client has seen what it leaves after."""
    if phase in ("mid-stream", "shared stream"):
        assert behaviour.stall_after_events is not None, "these stall"
        num_bytes = len(_SMALL[0]) * behaviour.stall_after_events
        await client.wait_body(num_bytes)
    elif phase == "slow reader":
        await client.wait_body()
        client.transport.pause_reading()
        # Time is the subject: the upstream fills every buffer on the way meanwhile.
        await asyncio.sleep(0.05)


async def _run_case(
    number: int, phase: str, way: str, server: CaseServer, gateway: Gateway, random_: random.Random
) -> float:
    """One call, left; the time in milliseconds. Raises: AssertionError where it ended too early or not at all."""
    case = f"{number}"
    is_shared = phase.startswith("shared")
    behaviour = server.cases[case] = _behaviour(phase, random_)
    is_stream = phase in ("before the head", "mid-stream", "slow reader", "shared stream")
    body = chat_body(
        "x" * 200_000 if phase == "large body" else "hello",
        model=f"{'cached' if is_shared else 'plain'}/{case}",
        stream=is_stream,
    )
    receive_buffer = 65536 if phase == "slow reader" else None
    clients = [await HttpClient.open(gateway.port, receive_buffer=receive_buffer) for _ in range(3 if is_shared else 1)]
    try:
        for client in clients:
            await _send(client, request_bytes(CHAT, body), phase)
        received = await server.wait_asked(case)
        for client in clients:
            await _wait_phase(phase, behaviour, client)
        for client in clients[:-1]:
            _leave(client, way)
        if is_shared:
            # Time is the subject: long enough for the upstream to be left too early.
            await asyncio.sleep(0.03)
            assert clients[-1].current.status in (0, 200), "the last one was sent away with the others"
            assert not clients[-1].is_closed, "the last one was cut off with the others"
            received = server.last[case]
            assert not received.disconnected.done(), "left while a client was waiting"
        left_at = time.monotonic()
        _leave(clients[-1], way)
        try:
            async with asyncio.timeout(_LIMIT_S):
                noticed_at = await asyncio.shield(received.disconnected)
        except TimeoutError:
            raise AssertionError(f"still going on {_LIMIT_S:g} s later") from None
        # Who comes after the others have left begins anew; before a head nothing shows who has come.
        assert server.num_asked[case] == 1 or phase == "shared plain", "asked more than once"
        return (noticed_at - left_at) * 1e3
    finally:
        for client in clients:
            client.close()


@asynccontextmanager
async def _setting() -> AsyncIterator[tuple[CaseServer, Gateway]]:
    async with CaseServer() as server:
        text = policy(server.base_url, routes={"cached/*": {"cache": CACHE}, "plain/*": {}})
        async with start_gateway(text) as gateway:
            yield server, gateway


async def measure(count: int, seed: int, *, is_shown: bool = False) -> Outcome:
    """Leave `count` times."""
    outcome = Outcome()
    progress = Progress(count, "clients gone", is_shown=is_shown)
    random_ = random.Random(seed)
    cases = ((number, PHASES[number % len(PHASES)], WAYS[number // len(PHASES) % len(WAYS)]) for number in range(count))
    async with _setting() as (server, gateway):

        async def work() -> None:
            for number, phase, way in cases:
                try:
                    took_ms = await _run_case(number, phase, way, server, gateway, random_)
                except AssertionError as problem:
                    outcome.problems.append(f"{phase}, {way}: {problem}")
                else:
                    outcome.times_ms.setdefault((phase, way), []).append(took_ms)
                progress.add()

        async with asyncio.TaskGroup() as tasks:
            for _ in range(min(_WORKERS, count)):
                tasks.create_task(work())
        in_flight = (await gateway.metrics()).value("slipstream_requests_in_flight")
        if in_flight:
            outcome.problems.append(f"{in_flight:g} requests still in flight")
        if "Traceback" in gateway.stderr:
            outcome.problems.append(f"a traceback on stderr: {gateway.stderr[-3000:]}")
    return outcome


def main() -> int:
    """Measure and print."""
    given = parser(__doc__, count=1000, what="clients leave").parse_args()
    outcome = asyncio.run(measure(given.count, given.seed, is_shown=True))
    for problem in outcome.problems[:20]:
        print(problem)
    for (phase, way), times_ms in sorted(outcome.times_ms.items()):
        middle, late = percentile(times_ms, 0.5), percentile(times_ms, 0.99)
        print(f"{phase:16}{way:11} p50 {middle:6.1f}  p99 {late:6.1f}  max {max(times_ms):6.1f} ms, of {len(times_ms)}")
    all_ms = outcome.all_ms
    print(f"all: p50 {percentile(all_ms, 0.5):.1f}, max {max(all_ms):.1f} ms")
    return report(
        [
            at_most(f"client gone -> upstream cancelled, p99 of {len(all_ms)}", 100, percentile(all_ms, 0.99), "ms"),
            none("upstream calls not cancelled, or cancelled under a waiting client", len(outcome.problems)),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
