"""An upstream that lies: every field of every answer replaced by values of every type and size, cut anywhere.

    python -m tests.benchmarks.faults.fuzz_upstream --count 100000 --seed 1

A real gateway stands in front. Nothing may be answered as text, as a failure of the gateway's own, or not at all; what
is counted must be what could be believed of the answers that passed; and every so often, and at the end, /ready,
/metrics and a normal call must be as ever. Answers that were not whole may be counted up to what they said.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import sys
from collections import Counter
from dataclasses import dataclass, field

import msgspec

from tests.support.faults import CHAT, CaseServer, Figure, Progress, none, parser, policy, report
from tests.support.gateway import Gateway, Line, start_gateway
from tests.support.http_client import Answer, Connections, HttpClient, chat_body, request_bytes
from tests.support.servers.lies import Lie, Tokens, lie

_WORKERS = 16
_LIMIT_S = 5.0
_PROBE_EVERY = 2000
_NORMAL = "m/normal"


@dataclass(slots=True)
class Outcome:
    """Counts and what was wrong. `bounds`: what may be charged for each model, of which every lie has its own."""

    kinds: Counter[str] = field(default_factory=Counter)
    statuses: Counter[int] = field(default_factory=Counter)
    dead: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    own_failures: list[str] = field(default_factory=list)
    hangs: list[str] = field(default_factory=list)
    wrong_charges: list[str] = field(default_factory=list)
    bounds: dict[str, tuple[Tokens, Tokens]] = field(default_factory=dict)
    last_normal: int = 0

    @property
    def problems(self) -> list[str]:
        """All of them."""
        return [*self.dead, *self.texts, *self.own_failures, *self.hangs, *self.wrong_charges]


class _Fuzzer:
    """One run against one gateway."""

    def __init__(self, upstream: CaseServer, gateway: Gateway, seed: int) -> None:
        self.outcome = Outcome()
        self._upstream = upstream
        self._gateway = gateway
        self._connections = Connections(gateway.port)
        self._random = random.Random(seed)

    async def run_one(self, number: int) -> None:
        """One lie."""
        # A seed of its own, so that what a case is does not depend on the others' timing.
        told = lie(number, random.Random(self._random.getrandbits(64)))
        outcome = self.outcome
        outcome.kinds[told.operation] += 1
        case = str(number)
        self._upstream.cases[case] = told.behaviour
        try:
            answer = await self._ask(told.path, msgspec.json.encode(told.body))
        except TimeoutError:
            outcome.hangs.append(f"{told}: no end after {_LIMIT_S:g} s")
            return
        finally:
            self._upstream.forget(case)
        outcome.statuses[answer.status] += 1
        self._look(told, answer)

    async def probe(self) -> None:
        """Whether the gateway is as ever."""
        for path in ("/ready", "/metrics"):
            answer = await self._raw(b"GET %b HTTP/1.1\r\nhost: gateway\r\n\r\n" % path.encode())
            if answer.status != 200:
                self.outcome.dead.append(f"{path} is {answer.status}: {bytes(answer.body[:300])!r}")
        normal = await self._ask(CHAT, chat_body("hello", model=_NORMAL))
        self.outcome.last_normal = normal.status
        if normal.status != 200:
            self.outcome.dead.append(f"a normal call is {normal.status}: {bytes(normal.body[:300])!r}")

    async def finish(self) -> None:
        """Compare what was counted; look what the gateway said meanwhile."""
        await self._connections.aclose()
        metrics = await self._gateway.metrics()
        failures = metrics.value("slipstream_background_failures_total")
        if failures:
            self.outcome.dead.append(f"{failures:g} failures beside the requests")
        code = await self._gateway.terminate()
        if code or "Traceback" in self._gateway.stderr:
            self.outcome.own_failures.append(f"ended with {code}: {self._gateway.stderr[-3000:]}")
        total = Tokens()
        lines = {line["model"]: _charged(line) for line in self._gateway.log if line["model"] != _NORMAL}
        for model, (least, most) in self.outcome.bounds.items():
            charged = lines.get(model)
            if charged is None or not _lies_between(charged, least, most):
                self.outcome.wrong_charges.append(f"{model}: {charged}, not from {least} to {most}")
            else:
                total += charged
        for kind in ("prompt", "completion", "cached"):
            counted = metrics.value("slipstream_tokens_total", kind=kind)
            counted -= metrics.value("slipstream_tokens_total", kind=kind, route="normal")
            if counted != getattr(total, kind):
                self.outcome.wrong_charges.append(f"{counted:.0f} {kind} tokens in the metrics, {total} in the log")

    def _look(self, told: Lie, answer: Answer) -> None:
        outcome = self.outcome
        passed = 200 <= answer.status < 300
        least = told.tokens if passed and told.is_exact and answer.is_whole else Tokens()
        outcome.bounds[told.body["model"]] = least, told.tokens if passed else Tokens()
        what = f"{told.operation} {str(told.behaviour)[:600]}: {answer.status} {bytes(answer.body[:300])!r}"
        content_type = answer.header(b"content-type")
        if not answer.status:
            outcome.own_failures.append(f"{what}: nothing")
        elif content_type.startswith(b"text/plain"):
            outcome.texts.append(what)
        elif answer.status >= 400 and not _is_error(answer):
            outcome.texts.append(f"{what}: {content_type!r} in no shape")
        elif b'"internal_error"' in answer.body:
            outcome.own_failures.append(what)

    async def _ask(self, path: str, body: bytes) -> Answer:
        return await self._raw(request_bytes(path, body))

    async def _raw(self, request: bytes) -> Answer:
        async def use(client: HttpClient) -> Answer:
            client.send(request)
            return await client.answer(_LIMIT_S)

        return await self._connections.ask(use)


def _charged(line: Line) -> Tokens:
    """What a line of the log says that its answer has used."""
    usage = line.get("usage") or {}
    return Tokens(usage.get("prompt_tokens", 0), usage.get("completion_tokens", 0), usage.get("cached_tokens", 0))


def _lies_between(charged: Tokens, least: Tokens, most: Tokens) -> bool:
    return all(
        getattr(least, kind) <= getattr(charged, kind) <= getattr(most, kind)
        for kind in ("prompt", "completion", "cached")
    )


def _is_error(answer: Answer) -> bool:
    """Whether that is an error in OpenAI's shape; an upstream's own may say more, or less, than ours."""
    if b"json" not in answer.header(b"content-type"):
        return False
    try:
        said = msgspec.json.decode(answer.body, type=dict[str, msgspec.Raw])
        error = msgspec.json.decode(said["error"], type=dict[str, msgspec.Raw])
    except (ValueError, KeyError):
        return False
    return bytes(error.get("message", b"")).startswith(b'"')


async def measure(count: int, seed: int, *, is_shown: bool = False) -> Outcome:
    """Tell `count` lies."""
    progress = Progress(count, "lies", is_shown=is_shown)
    numbers = itertools.count(1)
    async with CaseServer() as upstream:
        text = policy(
            upstream.base_url,
            routes={"*": {}},
            defaults={"retry": {"attempts": 0}, "circuit_breaker": None, "timeouts": {"total": "4s"}},
        )
        async with start_gateway(_with_messages(text, upstream.base_url)) as gateway:
            fuzzer = _Fuzzer(upstream, gateway, seed)

            async def work() -> None:
                while (number := next(numbers)) <= count and len(fuzzer.outcome.problems) < 50:
                    await fuzzer.run_one(number)
                    if number % _PROBE_EVERY == 0:
                        await fuzzer.probe()
                    progress.add()

            async with asyncio.TaskGroup() as tasks:
                for _ in range(_WORKERS):
                    tasks.create_task(work())
            await fuzzer.probe()
            await fuzzer.finish()
    return fuzzer.outcome


def _with_messages(text: str, base_url: str) -> str:
    """The policy with an upstream that speaks the Messages API, and a route that is counted apart."""
    claude = f'backends:\n  claude: {{type: anthropic, base_url: "{base_url}"}}\n'
    routes = 'routes:\n- {name: claude, match: {models: ["claude/*"]}, backends: [{ref: claude}]}\n'
    routes += f'- {{name: normal, match: {{models: ["{_NORMAL}"]}}, backends: [{{ref: up0}}]}}\n'
    return text.replace("backends:\n", claude, 1).replace("routes:\n", routes, 1)


def main() -> int:
    """Measure and print."""
    given = parser(__doc__, count=100_000, what="lies").parse_args()
    outcome = asyncio.run(measure(given.count, given.seed, is_shown=True))
    for problem in outcome.problems[:20]:
        print(problem)
    kinds = ", ".join(f"{kind} {number}" for kind, number in outcome.kinds.most_common())
    statuses = ", ".join(f"{status or 'closed'} {number}" for status, number in sorted(outcome.statuses.items()))
    num_sure = sum(least == most for least, most in outcome.bounds.values())
    print(f"lies: {kinds}\nanswers: {statuses}\ncharges known to the token: {num_sure}")
    total = sum(outcome.kinds.values())
    return report(
        [
            Figure("lies told", f"{given.count}", f"{total}", total >= given.count),
            none("/ready, /metrics or normal calls that failed, failures beside the requests", len(outcome.dead)),
            none("answers as text, errors of a wrong shape", len(outcome.texts)),
            none("failures of the gateway's own, tracebacks", len(outcome.own_failures)),
            none(f"hangs of more than {_LIMIT_S:g} s", len(outcome.hangs)),
            none("wrong charges", len(outcome.wrong_charges)),
            Figure("the last normal call", "200", f"{outcome.last_normal}", outcome.last_normal == 200),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
