"""Sends a real gateway what nobody should: bad bodies, bad heads, odd streams cut anywhere, upstreams' nonsense.

    python -m tests.benchmarks.faults.fuzz_gateway --count 100000 --seed 1

Every bad body must be refused with 4xx in OpenAI's shape, every good one reach the upstream byte for byte, every stream
its client byte for byte but for a usage chunk that was not asked for (again from the cache), and an upstream's nonsense
must come out as an error in OpenAI's shape. Nothing may take longer than five seconds or leave a traceback.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import random
import re
import sys
from collections import Counter
from dataclasses import dataclass, field

import msgspec

from tests.support import fuzz
from tests.support.faults import CACHE, CHAT, Figure, Progress, none, parser, policy, report
from tests.support.gateway import Gateway, start_gateway
from tests.support.http_client import Answer, Connections, HttpClient, chat_body, request_bytes
from tests.support.servers.openai_server import Behaviour, Framing, OpenAIServer, Received

_WORKERS = 32
_LIMIT_S = 5.0
_CLOSED = b"the upstream closed the connection before it answered"
_KINDS = {"bad body": 45, "good body": 10, "stream": 35, "upstream nonsense": 6, "bad head": 4}
_LONG_EVENT_EVERY = 1000
_CONTENT_TYPES = ("application/x-www-form-urlencoded", "", "application/json; charset=latin-1")
_NONSENSE = (
    b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 32\r\n\r\n{"choices":[],"usage":{"x": 1}}  ',
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    b"a\r\ndata: {}\n\n\r\n0\r\n\r\n",
    b"HTTP/1.1 502 Bad Gateway\r\ncontent-type: text/html\r\ncontent-length: 20\r\n\r\n<html>secret</html> ",
    b"HTTP/1.1 429 Too Many\r\ncontent-type: application/json\r\nretry-after: 1\r\ncontent-length: 15\r\n\r\n"
    b'{"detail":"no"}',
    b"HTTP/1.1 204 No Content\r\n\r\n",
)


@dataclass(slots=True)
class Outcome:
    """Counts and what was wrong."""

    kinds: Counter[str] = field(default_factory=Counter)
    statuses: Counter[int] = field(default_factory=Counter)
    server_errors: list[str] = field(default_factory=list)
    hangs: list[str] = field(default_factory=list)
    shapes: list[str] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)
    tracebacks: list[str] = field(default_factory=list)
    num_again: int = 0
    """Calls that met a kept connection as it closed."""

    @property
    def problems(self) -> list[str]:
        """All of them."""
        return [*self.server_errors, *self.hangs, *self.shapes, *self.differences, *self.tracebacks]


class _Upstream(OpenAIServer):
    """Answers with the digest of what it got, unless the case has an answer of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.cases: dict[str, Behaviour] = {}

    def plan(self, received: Received) -> Behaviour:
        own = self.cases.get(received.header("x-case") or "")
        if own is not None:
            return own
        digest = hashlib.sha256(received.body).hexdigest()
        choices = [{"index": 0, "message": {"role": "assistant", "content": digest}, "finish_reason": "stop"}]
        return Behaviour(body=msgspec.json.encode({"id": "c", "choices": choices}))


class _Fuzzer:
    """One run against one gateway."""

    def __init__(self, upstream: _Upstream, gateway: Gateway, seed: int) -> None:
        self.outcome = Outcome()
        self._upstream = upstream
        self._gateway = gateway
        self._connections = Connections(gateway.port)
        self._random = random.Random(seed)
        self._again: set[str] = set()

    async def run_one(self, number: int) -> None:
        """One case of a random kind."""
        kind = self._random.choices(list(_KINDS), list(_KINDS.values()))[0]
        self.outcome.kinds[kind] += 1
        # A seed of its own, so that what a case is does not depend on the others' timing.
        random_ = random.Random(self._random.getrandbits(64))
        runs = {
            "bad body": self._bad_body,
            "good body": self._good_body,
            "stream": self._stream,
            "upstream nonsense": self._nonsense,
            "bad head": self._bad_head,
        }
        try:
            await runs[kind](f"{number}", random_)
        except TimeoutError:
            self.outcome.hangs.append(f"{kind}, case {number}: no end after {_LIMIT_S:g} s")
        finally:
            self._upstream.cases.pop(f"{number}", None)

    async def aclose(self) -> None:
        """Close the connections; look what the gateway said meanwhile."""
        await self._connections.aclose()
        if "Traceback" in self._gateway.stderr:
            self.outcome.tracebacks.append(self._gateway.stderr[-3000:])

    async def _ask(self, path: str, body: bytes, case: str, random_: random.Random) -> Answer:
        headers = [("x-case", case)]
        if random_.random() < 0.05:
            headers.append(
                (
                    "content-type",
                    random_.choice(["application/x-www-form-urlencoded", "", "application/json; charset=latin-1"]),
                )
            )

        async def use(client: HttpClient) -> Answer:
            client.send(request_bytes(path, body, headers))
            return await client.answer(_LIMIT_S)

        answer = await self._connections.ask(use)
        if answer.status == 502 and _CLOSED in answer.body and case not in self._again:
            # The upstream may close a kept connection at the moment of the next call. What it has read is not sent
            # again by the gateway: that is the client's to decide, who does so here once.
            self._again.add(case)
            self.outcome.num_again += 1
            answer = await self._connections.ask(use)
        self.outcome.statuses[answer.status] += 1
        return answer

    def _check_error(self, what: str, answer: Answer) -> None:
        if answer.error() is None or not answer.is_whole or b"json" not in answer.header(b"content-type"):
            self.outcome.shapes.append(f"{what}: {answer.status} {answer.headers} {bytes(answer.body[:200])!r}")
        elif not answer.header(b"x-request-id"):
            self.outcome.shapes.append(f"{what}: {answer.status} without x-request-id")

    async def _bad_body(self, case: str, random_: random.Random) -> None:
        path, raw = fuzz.bad_request(random_)
        answer = await self._ask(path, raw, case, random_)
        what = f"bad body {path} {raw[:300]!r}"
        if answer.status >= 500:
            self.outcome.server_errors.append(f"{what}: {answer.status} {bytes(answer.body[:200])!r}")
        elif answer.status != 200:
            self._check_error(what, answer)
        elif fuzz.must_be_refused(path, raw):
            self.outcome.shapes.append(f"{what}: accepted")
        else:
            self._check_digest(what, raw, answer)

    async def _good_body(self, case: str, random_: random.Random) -> None:
        path, raw = fuzz.valid_request(random_)
        answer = await self._ask(path, raw, case, random_)
        if answer.status != 200:
            self.outcome.differences.append(f"good body {path} {raw[:300]!r}: {answer.status} {bytes(answer.body)!r}")
        else:
            self._check_digest(f"good body {path} {raw[:300]!r}", raw, answer)

    def _check_digest(self, what: str, raw: bytes, answer: Answer) -> None:
        # A stream's body is changed on purpose: usage is asked for.
        if re.search(rb'"stream"\s*:\s*true', raw) is None:
            got = answer.json()["choices"][0]["message"]["content"]
            if got != hashlib.sha256(raw).hexdigest():
                self.outcome.differences.append(f"{what}: other bytes reached the upstream")

    async def _stream(self, case: str, random_: random.Random) -> None:
        is_odd = random_.random() < 0.2
        include_usage = is_odd or random_.random() < 0.5
        is_cached = random_.random() < 0.3
        data = fuzz.stream(random_, is_odd=is_odd, has_long_event=int(case) % _LONG_EVENT_EVERY == 0)
        framing: Framing = random_.choice(["chunked", "chunked", "eof", "length"])
        self._upstream.cases[case] = Behaviour(events=fuzz.split(data, random_), framing=framing)
        more = {"stream_options": {"include_usage": True}} if include_usage else {}
        body = chat_body(case, model="cached" if is_cached else "m", stream=True, **more)
        expected = data if include_usage else fuzz.without_usage_chunk(data)
        for _ in range(2 if is_cached else 1):
            answer = await self._ask(CHAT, body, case, random_)
            if answer.status != 200 or not answer.is_whole or bytes(answer.body) != expected:
                how = f"{answer.status}, whole: {answer.is_whole}, {answer.header(b'x-cache')!r}"
                shown = data[-600:] if len(data) > 2000 else data
                self.outcome.differences.append(
                    f"stream {case} ({framing}, usage asked: {include_usage}), {how}: sent {shown!r},"
                    f" not {bytes(answer.body[-600:])!r}"
                )

    async def _nonsense(self, case: str, random_: random.Random) -> None:
        raw = fuzz.mangled(random_.choice(_NONSENSE), random_)
        self._upstream.cases[case] = Behaviour(raw=raw)
        answer = await self._ask(CHAT, chat_body(case, stream=random_.random() < 0.5), case, random_)
        what = f"upstream nonsense {raw!r}"
        if answer.status >= 300 or not answer.status:
            self._check_error(what, answer)
            if answer.status in (500, 503):
                self.outcome.server_errors.append(f"{what}: {answer.status} {bytes(answer.body[:200])!r}")
        if b"secret" in answer.body:
            self.outcome.shapes.append(f"{what}: the upstream's page is shown")

    async def _bad_head(self, case: str, random_: random.Random) -> None:
        path, body = fuzz.valid_request(random_)
        raw = fuzz.mangled(request_bytes(path, b"")[:-4].replace(b"content-length: 0", b""), random_)
        client = await HttpClient.open(self._gateway.port)
        try:
            client.send(raw + f"content-length: {len(body)}\r\n\r\n".encode() + body)
            # What is no whole request is not answered, so nothing must be waited for any longer.
            await asyncio.sleep(0)
            client.close_sending()
            answer = await client.answer(_LIMIT_S)
        finally:
            client.close()
        self.outcome.statuses[answer.status] += 1
        if answer.status >= 500:
            self.outcome.server_errors.append(f"bad head {raw!r}: {answer.status} {bytes(answer.body[:200])!r}")
        elif answer.status >= 400 and answer.error() is None:
            self.outcome.shapes.append(f"bad head {raw!r}: {answer.status} {bytes(answer.body[:200])!r}")


async def measure(count: int, seed: int, *, is_shown: bool = False) -> Outcome:
    """Run `count` cases."""
    progress = Progress(count, "cases", is_shown=is_shown)
    numbers = itertools.count(1)
    async with _Upstream() as upstream:
        routes = {"cached": {"cache": CACHE}, "*": {}}
        async with start_gateway(policy(upstream.base_url, routes=routes, forward_headers=["x-case"])) as gateway:
            fuzzer = _Fuzzer(upstream, gateway, seed)

            async def work() -> None:
                while (number := next(numbers)) <= count and len(fuzzer.outcome.problems) < 100:
                    await fuzzer.run_one(number)
                    progress.add()

            async with asyncio.TaskGroup() as tasks:
                for _ in range(_WORKERS):
                    tasks.create_task(work())
            await fuzzer.aclose()
    return fuzzer.outcome


def main() -> int:
    """Measure and print."""
    given = parser(__doc__, count=100_000, what="cases").parse_args()
    outcome = asyncio.run(measure(given.count, given.seed, is_shown=True))
    for problem in outcome.problems[:20]:
        print(problem)
    kinds = ", ".join(f"{kind} {number}" for kind, number in outcome.kinds.most_common())
    statuses = ", ".join(f"{status or 'closed'} {number}" for status, number in sorted(outcome.statuses.items()))
    print(f"cases: {kinds}\nanswers: {statuses}")
    total = sum(outcome.kinds.values())
    return report(
        [
            Figure("cases run", f"{given.count}", f"{total}", total >= given.count),
            none("5xx of the gateway's own", len(outcome.server_errors)),
            none(f"hangs of more than {_LIMIT_S:g} s", len(outcome.hangs)),
            none("bad bodies accepted, errors of a wrong shape", len(outcome.shapes)),
            none("bytes changed on the way", len(outcome.differences)),
            none("tracebacks", len(outcome.tracebacks)),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
