"""How long after the upstream has sent a stream's first event the client has it; finds stalls of Nagle's algorithm.

    python -m tests.benchmarks.gateway.first_event_lag --count 300 --rate 10

The upstream sends its head and the first event as two small writes, and further events 20 ms apart: a relay without
TCP_NODELAY waits for a delayed acknowledgement there, some 40 ms. The same is measured without the gateway, which
shows what the machine itself adds.
"""

from __future__ import annotations

import asyncio
import sys
import time
from dataclasses import dataclass, field

from tests.support.faults import CHAT, Figure, Progress, at_most, parser, percentile, policy, report
from tests.support.gateway import start_gateway
from tests.support.http_client import HttpClient, chat_body, request_bytes
from tests.support.servers.raw_server import Peer, RawServer

_LIMIT_MS = 10.0
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_EVENTS = 5
_GAP_S = 0.02


@dataclass(slots=True)
class Lags:
    """In milliseconds: of first events, and of all later ones."""

    first: list[float] = field(default_factory=list)
    later: list[float] = field(default_factory=list)


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def _serve(peer: Peer) -> None:
    while True:
        await peer.request()
        peer.send(_HEAD)
        for number in range(_EVENTS):
            choice = b'{"index":0,"delta":{"content":"%.7f"},"finish_reason":null}' % time.monotonic()
            peer.send(_chunk(b'data: {"choices":[%b]}\n\n' % choice))
            if number < _EVENTS - 1:
                await asyncio.sleep(_GAP_S)
        peer.send(_chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")


async def _one_stream(port: int, body: bytes, lags: Lags) -> None:
    client = await HttpClient.open(port)
    seen: list[float] = []

    def note(data: bytes) -> None:
        now = time.monotonic()
        seen.extend((now - float(part.partition(b'"')[0])) * 1e3 for part in data.split(b'"content":"')[1:])

    client.on_bytes = note
    try:
        client.send(request_bytes(CHAT, body))
        answer = await client.answer()
        assert answer.is_whole, f"a stream was cut: {answer.status} {bytes(answer.body)!r}"
        lags.first.append(seen[0])
        lags.later.extend(seen[1:])
    finally:
        client.close()


async def measure(count: int, rate: float, *, is_shown: bool = False) -> tuple[Lags, Lags]:
    """Lags through the gateway, and without it, of `count` streams each, begun `rate` times a second."""
    through, direct = Lags(), Lags()
    progress = Progress(count, "streams", is_shown=is_shown)
    body = chat_body(stream=True)
    async with RawServer(_serve) as upstream:
        async with start_gateway(policy(f"{upstream.base_url}/v1")) as gateway:
            # Connections and code that is used for the first time are not the subject.
            await _one_stream(gateway.port, body, Lags())
            async with asyncio.TaskGroup() as tasks:
                for _ in range(count):
                    tasks.create_task(_one_stream(gateway.port, body, through))
                    await asyncio.sleep(0.5 / rate)
                    tasks.create_task(_one_stream(upstream.port, body, direct))
                    await asyncio.sleep(0.5 / rate)
                    progress.add()
    return through, direct


def main() -> int:
    """Measure and print."""
    options = parser(__doc__, count=300, what="streams")
    options.add_argument("--rate", type=float, default=10.0, help="streams begun per second (default 10)")
    given = options.parse_args()
    through, direct = asyncio.run(measure(given.count, given.rate, is_shown=True))
    for what, lags in (("gateway", through), ("direct", direct)):
        for which, values in (("first event", lags.first), ("later events", lags.later)):
            middle, late = percentile(values, 0.5), percentile(values, 0.99)
            print(
                f"{what:8} {which:13} p50 {middle:5.2f}  p99 {late:5.2f}  max {max(values):5.2f} ms, of {len(values)}"
            )
    late = sum(lag_ms > _LIMIT_MS for lag_ms in through.first)
    return report(
        [
            at_most("first-event lag, never more", _LIMIT_MS, max(through.first), "ms"),
            Figure("streams over that", "0", f"{late}", late == 0),
            at_most(
                "first-event lag added, p50", 1, percentile(through.first, 0.5) - percentile(direct.first, 0.5), "ms"
            ),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
