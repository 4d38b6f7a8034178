"""Runs mixed load for a while and looks whether anything grows: memory, open files, calls in flight.

    python -m tests.benchmarks.faults.soak --count 180

Every prompt, key and model is new; some calls are streamed, some are cut by the upstream, some are left by the client,
some are bad, some come again and are answered from the cache. Growth is counted after a warm-up of half the time.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, field

from tests.support.faults import CHAT, CaseServer, Figure, Progress, at_most, none, num_files, parser, policy, report
from tests.support.gateway import Gateway, start_gateway
from tests.support.http_client import Connections, HttpClient, chat_body, request_bytes
from tests.support.servers.openai_server import Behaviour

_WORKERS = 16
_SAMPLE_S = 0.5
_EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"word"},"finish_reason":null}]}\n\n'
_END = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
_STREAM = Behaviour(events=(*(_EVENT,) * 20, _END))
_PLAIN = Behaviour(body=b'{"id":"c","choices":[{"index":0,"message":{"content":"yes"},"finish_reason":"stop"}]}')
# A cache that is full soon, so that its growth is not taken for a leak.
_CACHE = {"scope": "global", "exact": {"ttl": "5s"}}


@dataclass(slots=True)
class Outcome:
    """One sample each half second, from the end of the warm-up on."""

    at_s: list[float] = field(default_factory=list)
    rss_mib: list[float] = field(default_factory=list)
    num_files: list[int] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    in_flight_after: float = 0.0
    files_before: int = 0
    files_after: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def slope_mib_per_min(self) -> float:
        """The line of least squares through the memory samples."""
        mean_at = sum(self.at_s) / len(self.at_s)
        mean_rss = sum(self.rss_mib) / len(self.rss_mib)
        over = sum((at - mean_at) * (rss - mean_rss) for at, rss in zip(self.at_s, self.rss_mib, strict=True))
        under = sum((at - mean_at) ** 2 for at in self.at_s)
        return over / under * 60


async def _call(number: int, random_: random.Random, server: CaseServer, gateway: Gateway, use: Connections) -> int:
    """One call of a random kind; its status, 0 where the client left."""
    case = f"{number}"
    stream = random_.random() < 0.5
    model = f"{random_.choice(['cached', 'plain'])}/{case}"
    body = chat_body(f"prompt {number} " + "x" * random_.choice([10, 1000, 20_000]), model=model, stream=stream)
    kind = random_.choices(["good", "again", "cut", "left", "bad", "error"], [50, 15, 10, 10, 10, 5])[0]
    server.cases[case] = _STREAM if stream else _PLAIN
    if kind == "cut":
        server.cases[case] = Behaviour(events=_STREAM.events, cut_after_events=random_.randrange(20))
    elif kind == "left":
        server.cases[case] = Behaviour(events=_STREAM.events, stall_after_events=3)
    elif kind == "error":
        server.cases[case] = Behaviour(status=500, body=b"<html>")
    try:
        if kind == "left":
            client = await HttpClient.open(gateway.port)
            client.send(request_bytes(CHAT, body, [("authorization", f"Bearer {number}")]))
            await server.wait_asked(case)
            client.reset()
            return 0
        answer = await use.post(CHAT, body[:-3] if kind == "bad" else body)
        if kind == "again":
            answer = await use.post(CHAT, body)
        return answer.status
    finally:
        server.forget(case)


async def measure(seconds: float, seed: int, *, is_shown: bool = False) -> Outcome:
    """Load for so many seconds."""
    outcome = Outcome()
    progress = Progress(round(seconds), "seconds", is_shown=is_shown)
    numbers = itertools.count()
    random_ = random.Random(seed)
    async with CaseServer() as server:
        text = policy(
            server.base_url,
            routes={"cached/*": {"cache": _CACHE, "retry": {"attempts": 0}}, "plain/*": {"retry": {"attempts": 0}}},
            stores={"memory": {"max_size": "1MiB"}},
        )
        async with start_gateway(text) as gateway:
            use = Connections(gateway.port)
            await use.post(CHAT, chat_body(model="plain/0"))
            outcome.files_before = num_files(gateway.process.pid)
            started_at = time.monotonic()

            async def work() -> None:
                while time.monotonic() < started_at + seconds:
                    outcome.statuses[await _call(next(numbers), random_, server, gateway, use)] += 1

            async with asyncio.TaskGroup() as tasks:
                for _ in range(_WORKERS):
                    tasks.create_task(work())
                while (at_s := time.monotonic() - started_at) < seconds:
                    if at_s > seconds / 2:
                        outcome.at_s.append(at_s)
                        outcome.rss_mib.append(gateway.rss_mib())
                        outcome.num_files.append(num_files(gateway.process.pid))
                    progress.add(min(round(at_s), round(seconds)) - progress.done)
                    await asyncio.sleep(_SAMPLE_S)
            await use.aclose()
            await _look_afterwards(gateway, outcome)
            progress.add(round(seconds) - progress.done)
    return outcome


async def _look_afterwards(gateway: Gateway, outcome: Outcome) -> None:
    # Time is the subject: what is over has a moment to go.
    await asyncio.sleep(0.5)
    outcome.in_flight_after = (await gateway.metrics()).value("slipstream_requests_in_flight")
    outcome.files_after = num_files(gateway.process.pid)
    if "Traceback" in gateway.stderr:
        outcome.problems.append(gateway.stderr[-3000:])


def main() -> int:
    """Measure and print."""
    given = parser(__doc__, count=180, what="seconds").parse_args()
    outcome = asyncio.run(measure(given.count, given.seed, is_shown=True))
    for problem in outcome.problems:
        print(problem)
    statuses = ", ".join(f"{status or 'left'} {number}" for status, number in sorted(outcome.statuses.items()))
    total = sum(outcome.statuses.values())
    print(f"{total} calls ({statuses}), {outcome.rss_mib[0]:.1f} to {outcome.rss_mib[-1]:.1f} MiB,")
    print(f"{min(outcome.num_files)} to {max(outcome.num_files)} open files under load")
    return report(
        [
            at_most("memory growth after warm-up", 1, outcome.slope_mib_per_min, "MiB/min"),
            none("calls in flight afterwards", int(outcome.in_flight_after)),
            Figure(
                "open files afterwards (upstream connections are kept)",
                f"<= {outcome.files_before + _WORKERS + 4}",
                f"{outcome.files_after}",
                outcome.files_after <= outcome.files_before + _WORKERS + 4,
            ),
            none("tracebacks", len(outcome.problems)),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
