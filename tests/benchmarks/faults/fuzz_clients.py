"""Hostile clients at a gateway with keys: odd heads, trailers, upgrades, framings, requests sent ahead, cut anywhere.

    python -m tests.benchmarks.faults.fuzz_clients --count 100000 --seed 1

What comes back must be HTTP, its errors in OpenAI's shape and never text/plain; a request without a good key is never
answered with what an upstream says, one with it always, whatever surrounds it; nothing leaves a traceback, and in the
end the gateway rests and answers an ordinary call.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.faults import CHAT, Figure, Progress, none, parser, policy, report
from tests.support.gateway import Gateway, start_gateway
from tests.support.hostile_clients import STOLEN, Attack, attack, is_error_shape, read_answers
from tests.support.http_client import HttpClient, chat_body
from tests.support.servers.openai_server import Behaviour, OpenAIServer, Received

_KEY = "sk-fuzz-0123456789"
_WORKERS = 150
_QUIET_S = 0.25
"""After this long without a byte a client that was promised nothing more leaves."""
_LIMIT_S = 20.0
_PUBLIC = (b'{"status":"ok"}', b'{"status":"ready"}')
_MARK = b"what the upstream says"


@dataclass(slots=True)
class Outcome:
    """Counts and what was wrong."""

    kinds: Counter[str] = field(default_factory=Counter)
    statuses: Counter[int] = field(default_factory=Counter)
    not_http: list[str] = field(default_factory=list)
    shapes: list[str] = field(default_factory=list)
    stolen: list[str] = field(default_factory=list)
    unanswered: list[str] = field(default_factory=list)
    tracebacks: list[str] = field(default_factory=list)
    is_alive: bool = False
    """Whether it answered an ordinary call in the end, and rested."""

    @property
    def problems(self) -> list[str]:
        """All of them."""
        return [*self.not_http, *self.shapes, *self.stolen, *self.unanswered, *self.tracebacks]


class _Upstream(OpenAIServer):
    """Answers everything alike, and notes what should never have reached it."""

    def __init__(self) -> None:
        super().__init__()
        self.num_stolen = 0

    def plan(self, received: Received) -> Behaviour:
        self.num_stolen += received.header("x-case") == STOLEN
        self.requests.clear()
        return Behaviour(body=b'{"id":"c","choices":[],"note":"%b"}' % _MARK)


class _Fuzzer:
    """One run against one gateway."""

    def __init__(self, gateway: Gateway, seed: int) -> None:
        self.outcome = Outcome()
        self._gateway = gateway
        self._random = random.Random(seed)

    async def run_one(self) -> None:
        """One connection."""
        # A seed of its own, so that what a case is does not depend on the others' timing.
        seed = self._random.getrandbits(64)
        random_ = random.Random(seed)
        made = attack(random_, _KEY)
        self.outcome.kinds[made.kind] += 1
        pieces = _cut(made.data, random_)
        leaves_after = random_.randrange(len(pieces) + 1) if random_.random() < 0.15 else None
        received = await self._send(pieces, made, leaves_after, is_reset=random_.random() < 0.5)
        if leaves_after is None:
            self._check(made, received, f"{made.kind} {seed}")
        else:
            self.outcome.kinds["left"] += 1

    async def _send(self, pieces: list[bytes], made: Attack, leaves_after: int | None, *, is_reset: bool) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._gateway.port)
        received: list[bytes] = []
        try:
            for piece in pieces[:leaves_after]:
                if not writer.transport.is_closing():
                    writer.write(piece)
                await asyncio.sleep(0)
            if leaves_after is None:
                with suppress(TimeoutError, ConnectionError):
                    while piece := await asyncio.wait_for(
                        reader.read(65536), _LIMIT_S if made.has_sentinel else _QUIET_S
                    ):
                        received.append(piece)
        finally:
            if is_reset:
                writer.transport.abort()
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()
        return b"".join(received)

    def _check(self, made: Attack, received: bytes, what: str) -> None:
        outcome = self.outcome
        try:
            answers = read_answers(received)
        except ValueError as error:
            outcome.not_http.append(f"{what}: {error}; sent {made.data[:300]!r}")
            return
        for answer in answers:
            outcome.statuses[answer.status] += 1
            is_json = answer.fields.get(b"content-type", b"").startswith(b"application/json")
            if answer.status >= 400 and answer.is_whole and not (is_json and is_error_shape(answer.body)):
                outcome.shapes.append(f"{what}: {answer}; sent {made.data[:300]!r}")
            if b"text/plain" in answer.fields.get(b"content-type", b""):
                outcome.shapes.append(f"{what}: {answer}")
            if made.kind != "caller" and answer.status < 300 and answer.body not in (*_PUBLIC, b""):
                outcome.stolen.append(f"{what}: {answer}; sent {made.data[:600]!r}")
            if answer.status >= 500:
                outcome.shapes.append(f"{what}: {answer}; sent {made.data[:300]!r}")
        num_answered = sum(answer.status == 200 and _MARK in answer.body for answer in answers)
        if made.kind == "caller" and num_answered != made.num_calls:
            statuses = [answer.status for answer in answers]
            outcome.unanswered.append(f"{what}: {num_answered} of {made.num_calls}, {statuses}; {made.data[:300]!r}")

    async def finish(self, upstream: _Upstream) -> None:
        """An ordinary call, a look at what the gateway said, and whether it rests."""
        client = await HttpClient.open(self._gateway.port)
        answer = await client.post(CHAT, chat_body(), [("authorization", f"Bearer {_KEY}")], timeout_s=_LIMIT_S)
        client.close()
        before_s = _cpu_s(self._gateway.process.pid)
        started_at = time.monotonic()
        await asyncio.sleep(0.3)
        share = (_cpu_s(self._gateway.process.pid) - before_s) / (time.monotonic() - started_at)
        self.outcome.is_alive = answer.status == 200 and share < 0.5
        if upstream.num_stolen:
            self.outcome.stolen.append(f"{upstream.num_stolen} requests without a key reached the upstream")
        said = self._gateway.stderr
        if "Traceback" in said or " ERROR " in said:
            self.outcome.tracebacks.append(said[-4000:])


def _cut(data: bytes, random_: random.Random) -> list[bytes]:
    """The bytes in one piece, in a few, or byte by byte somewhere."""
    number = random_.choice([0, 0, 1, 2, 5, 40])
    edges = [0, *sorted(random_.randrange(len(data)) for _ in range(number)), len(data)]
    return [data[begin:end] for begin, end in itertools.pairwise(edges)]


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def measure(count: int, seed: int, *, is_shown: bool = False) -> Outcome:
    """Run `count` connections."""
    progress = Progress(count, "connections", is_shown=is_shown)
    numbers = itertools.count(1)
    keys = [{"name": "fuzz", "key": "env:FUZZ_KEY", "tenant": "fuzz"}]
    async with _Upstream() as upstream:
        text = policy(upstream.base_url, keys=keys, forward_headers=["x-case"])
        async with start_gateway(text, environ={"FUZZ_KEY": _KEY, "SLIPSTREAM_ACCESS_LOG": "off"}) as gateway:
            fuzzer = _Fuzzer(gateway, seed)

            async def work() -> None:
                while next(numbers) <= count and len(fuzzer.outcome.problems) < 100:
                    await fuzzer.run_one()
                    progress.add()

            async with asyncio.TaskGroup() as tasks:
                for _ in range(_WORKERS):
                    tasks.create_task(work())
            await fuzzer.finish(upstream)
    return fuzzer.outcome


def main() -> int:
    """Measure and print."""
    given = parser(__doc__, count=100_000, what="connections").parse_args()
    outcome = asyncio.run(measure(given.count, given.seed, is_shown=True))
    for problem in outcome.problems[:20]:
        print(problem)
    print("connections: " + ", ".join(f"{kind} {number}" for kind, number in outcome.kinds.most_common()))
    print("answers: " + ", ".join(f"{status} {number}" for status, number in sorted(outcome.statuses.items())))
    total = sum(number for kind, number in outcome.kinds.items() if kind != "left")
    return report(
        [
            Figure("connections", f"{given.count}", f"{total}", total >= given.count),
            none("answers that are no HTTP", len(outcome.not_http)),
            none("5xx, text/plain, errors of a wrong shape", len(outcome.shapes)),
            none("answered or passed on without a key", len(outcome.stolen)),
            none("good calls without their answer", len(outcome.unanswered)),
            none("tracebacks", len(outcome.tracebacks)),
            Figure("rests, and answers an ordinary call", "yes", "yes" if outcome.is_alive else "no", outcome.is_alive),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
