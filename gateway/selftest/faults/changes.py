"""Faults 29, 30 and 32: floods of labels, changes of the policy under load, and stopping with streams in flight."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from typing import Any

from gateway.selftest.answers import chat_pieces
from gateway.selftest.bench import Bench, ask_way, at_once, chat
from gateway.selftest.check import Check
from gateway.selftest.client import Client, request_bytes
from gateway.selftest.run import CHAT, Child, policy_text
from gateway.selftest.subject import ChatRoute
from gateway.selftest.upstream import Lie
from gateway.selftest.verdict import CheckOutcome, failed, passed

_BUG = "report it: this is a bug of the gateway, not of your policy"
_MAX_NEW_SERIES = 60
"""What first-time outcomes of known routes may add: statuses, errors, ends of streams, with their buckets."""


async def labels(bench: Bench) -> CheckOutcome:
    """Random models, keys, paths, users and headers: no series is made of what a client says."""
    way = bench.subject.way
    count = bench.count(200, 10_000)
    async with bench.gateway() as child:

        async def once(number: int) -> None:
            word = f"label-{number}-{bench.random.getrandbits(32):x}"
            wanted = number % 5
            if wanted == 0:
                await child.ask(CHAT, chat("x", word), key=way.secret, headers=way.headers)
            elif wanted == 1:
                await child.ask(CHAT, chat("x", way.model), key=f"sk-{word}")
            elif wanted == 2:
                await child.ask(f"/v1/{word}/{word}", key=way.secret)
            elif wanted == 3:
                await ask_way(child, way, "x", user=word, headers=(("x-session-id", word), ("x-request-id", word)))
            else:
                await child.ask(f"/{word}", key=way.secret, headers=(("user-agent", word),))

        await at_once(8, [once(number) for number in range(50)])
        before = await child.metrics()
        await at_once(8, [once(number) for number in range(50, 50 + count)])
        after = await child.metrics()
    spoken = [name for name, labels, _ in after if any("label-" in value for value in labels.values())]
    measured = f"{len(after) - len(before):+} series after {count} requests"
    if spoken:
        return failed(measured, f"a client's words are labels of {spoken[0]}", _BUG)
    if len(after) - len(before) > _MAX_NEW_SERIES:
        return failed(measured, "series grow with requests", _BUG)
    return passed(measured, f"{count} requests, not 1,000,000")


def _bad_policies(good: dict[str, Any]) -> dict[str, str]:
    """Files that must not be taken over, by what is wrong with them."""

    def with_route(**sections: Any) -> str:
        changed = json.loads(json.dumps(good))
        changed["routes"][0].update(sections)
        return json.dumps(changed)

    text = json.dumps(good)
    first = next(iter(good["backends"]))
    leaking = {**good["backends"], first: {**good["backends"][first], "api_key": "env:SELFTEST_NO_SUCH_VARIABLE"}}
    return {
        "unknown key": with_route(chache={}),
        "duration without unit": with_route(timeouts={"total": 5}),
        "unknown backend": with_route(backends=[{"ref": "nobody"}]),
        "fallback to nobody": with_route(fallbacks={"routes": ["nobody"]}),
        "negative": with_route(retry={"attempts": -1}),
        "missing secret": json.dumps({**good, "backends": leaking}),
        "no routes": json.dumps({**good, "routes": []}),
        "half written": text[: len(text) // 2],
        "empty": "",
        "not YAML": "{[}",
        "binary": "\x00\x01",
    }


async def reloads(bench: Bench) -> CheckOutcome:
    """Bad files are refused and the old policy stays; no call is lost while good ones take over."""
    way = bench.subject.way
    count = bench.count(8, 200)
    taken: list[str] = []
    lost: list[int] = []
    num_calls = 0
    async with bench.gateway() as child:
        for name, text in _bad_policies(bench.policy()).items():
            if await child.reload(text):
                taken.append(name)
        is_alive = (await ask_way(child, way, "after bad policies")).is_good
        done = asyncio.Event()

        async def load(worker: int) -> None:
            nonlocal num_calls
            while not done.is_set():
                num_calls += 1
                answer = await ask_way(child, way, f"while reloading {worker} {num_calls}", stream=worker % 2 == 0)
                if not answer.is_good:
                    lost.append(answer.status)

        async def change() -> None:
            good = policy_text(bench.policy())
            for number in range(count):
                await child.reload(f"# {number}\n{good}")
            done.set()

        await at_once(5, [change(), *(load(worker) for worker in range(4))])
    measured = f"{len(taken)} taken; {len(lost)} of {num_calls} calls lost"
    if taken:
        return failed(measured, f"taken over: {', '.join(taken)}", _BUG)
    if not is_alive or lost:
        return failed(measured, "calls fail while or after a policy is changed", _BUG)
    return passed(measured)


async def stopping(bench: Bench) -> CheckOutcome:
    """SIGTERM with streams in flight: they finish, /ready says no first, new connections are refused at once."""
    outcomes = await asyncio.gather(_stop(bench, 1), _stop(bench, 2))
    measured = "; ".join(text for text, _ in outcomes)
    problems = [problem for _, problem in outcomes if problem]
    if not problems:
        return passed(measured)
    return failed(measured, "; ".join(dict.fromkeys(problems)), _BUG)


async def _stop(bench: Bench, workers: int) -> tuple[str, str]:
    """What was measured with so many workers, and what is wrong with it."""
    way = bench.subject.way
    count = bench.count(10, 50)
    for upstream in bench.own.values():
        upstream.usual = Lie(pieces=chat_pieces(["word "] * 20), pause_s=0.1)
    environ = {"SLIPSTREAM_DRAIN_DELAY": "300ms", "SLIPSTREAM_DRAIN_LIMIT": "20s"}
    policy = bench.policy(way, cache=None)
    async with bench.gateway(policy, environ=environ, args=("--workers", str(workers))) as child:
        clients = await _streams(child, way, count)
        child.process.send_signal(signal.SIGTERM)
        await bench.sleep(0.1)
        ready = await _status(child, 1.0)
        await bench.sleep(0.7)
        began = time.monotonic()
        late = await _status(child, 3.0)
        waited = time.monotonic() - began
        answers = await asyncio.gather(*(client.answer() for client in clients))
        code = await child.wait_exit()
    cut = sum(not answer.is_good for answer in answers)
    text = f"{cut} cut, new wait {1000 * waited:.0f} ms"
    if cut:
        return text, "streams were cut within the drain limit"
    if ready == 200:
        return text, "/ready still says 200 while draining"
    if late is not None or waited > 1.0:
        return text, "new connections are neither answered nor refused"
    return text, "" if code in (0, -signal.SIGTERM) else f"it ended with {code}"


async def _streams(child: Child, way: ChatRoute, count: int) -> list[Client]:
    """Streams that have begun."""
    fields = [("authorization", f"Bearer {way.secret}"), *way.headers] if way.secret else list(way.headers)
    clients = []
    for number in range(count):
        client = await child.connect()
        body = json.dumps(chat(f"stopping {number}", way.model, stream=True)).encode()
        client.send(request_bytes(CHAT, body, fields))
        clients.append(client)
    for client in clients:
        await client.wait_body()
    return clients


async def _status(child: Child, timeout_s: float) -> int | None:
    """The status of /ready; None where nobody takes the connection, 0 where nobody answers on it."""
    try:
        answer = await child.ask("/ready", timeout_s=timeout_s)
    except TimeoutError:
        return 0
    except OSError:
        return None
    return answer.status or None


CHECKS = (
    Check("29", "random models, keys, paths: bounded metrics", labels),
    Check("30", "bad policies refused; no call lost in a reload", reloads),
    Check("32", "SIGTERM under streams, 1 and 2 workers: drained", stopping),
)
