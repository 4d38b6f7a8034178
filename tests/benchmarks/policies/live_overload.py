"""Admission live: a gateway process over loopback, upstreams with real delays, three times what they can do.

    python -m tests.benchmarks.policies.live_overload --seconds 30

Two upstreams compute prompts one after the other, 40 ms each, and 0.2 s more to the first token; then come up to 40
more, 50 ms apart (`--upstreams places`: each takes 32 requests at once, half a second to the first token). A key for
each priority sends streamed chats as a Poisson process: one in ten high, the others in equal parts normal and low.
First five high calls a second (unloaded), then as many as the upstreams can do (peak), then three times as many.
Measured by the client, except that the access log says when a request came and how long it waited:

- goodput: answers a second whose first token came within 2 s, and tokens within 100 ms on average;
- a rejection's decision: its arrival and `waited_ms`, on the machine's clock; its answer: the last byte at the client;
- Retry-After's error: `retry-after-ms` without the mean of its random factor, 1.25, beside the time until all who
  waited at that moment had left the line, called up or turned away. The factor itself is part of the error.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random

import msgspec
import uvloop
import yaml

from gateway.simulate.figures import PolicyFigure
from tests.support.faults import percentile
from tests.support.gateway import Line, start_gateway
from tests.support.http_client import Answer, Connections, HttpClient, chat_body
from tests.support.servers.slow_replica import Pace, slow_replica

_PATH = "/v1/chat/completions"
_PACES = {"prompts": Pace(places=1000, prompt_s=0.04, first_s=0.2), "places": Pace(places=32, first_s=0.5)}
_NUM_UPSTREAMS = 2
_TOKENS = range(1, 42)
"""An answer has some number of these, so that upstreams' places come free one by one and not all at once."""
_TTFT_S, _GAP_S, _SLACK_S = 2.0, 0.1, 0.05
"""The last event of an answer comes at once after its last token, however few there are."""
_CLASSES = {"high": 0.1, "normal": 0.45, "low": 0.45}
_OVERLOAD = 3.0
_MEAN_FACTOR = 1.25
_UNLOADED, _UNLOADED_EVERY_S = 40, 0.2
_WARM_S, _PEAK_S = 6.0, 15.0
"""Seconds in which the gateway gets to know its upstreams, and in which the peak is measured."""


@dataclass(slots=True)
class Asked:
    """One request as its client saw it, in seconds of the wall clock."""

    key: str
    number: int
    num_tokens: int
    sent_at: float
    status: int = 0
    first_at: float = 0.0
    ended_at: float = 0.0
    retry_after_s: float = 0.0

    @property
    def is_good(self) -> bool:
        """Answered in time."""
        limit_s = _GAP_S * max(0, self.num_tokens - 1)
        in_time = self.first_at - self.sent_at <= _TTFT_S and self.ended_at - self.first_at <= limit_s + _SLACK_S
        return self.status == 200 and in_time


class Load:
    """Sends requests through one gateway."""

    def __init__(self, port: int, random: Random) -> None:
        self._connections = Connections(port)
        self._random = random
        self._number = 0

    async def ask(self, key: str) -> Asked:
        """One request, to its end."""
        self._number += 1
        asked = Asked(key, self._number, self._random.choice(_TOKENS), time.time())
        text = f"{self._number:06d} " + "what is the weather like in the mountains today? " * 8
        body = chat_body(text, model="m", stream=True, max_tokens=asked.num_tokens)
        headers = [("authorization", f"Bearer sk-{key}"), ("x-request-id", f"{key}-{self._number}")]

        def note(_: bytes) -> None:
            asked.first_at = asked.first_at or time.time()
            asked.ended_at = time.time()

        async def use(client: HttpClient) -> Answer:
            client.on_bytes = note
            return await client.post(_PATH, body, headers, timeout_s=60.0)

        answer = await self._connections.ask(use)
        assert answer.is_whole, answer
        asked.status = answer.status
        asked.retry_after_s = float(answer.header(b"retry-after-ms") or 0) / 1e3
        return asked

    async def poisson(self, rate: float, seconds: float) -> list[Asked]:
        """All classes, at that rate of them together."""
        tasks: list[asyncio.Task[Asked]] = []
        start = at = time.monotonic()
        while (at := at + self._random.expovariate(rate)) < start + seconds:
            await asyncio.sleep(at - time.monotonic())
            [key] = self._random.choices([*_CLASSES], [*_CLASSES.values()])
            tasks.append(asyncio.create_task(self.ask(key)))
        return list(await asyncio.gather(*tasks))

    async def spaced(self, count: int, every_s: float) -> list[Asked]:
        """High calls at even distances."""
        tasks: list[asyncio.Task[Asked]] = []
        for _ in range(count):
            tasks.append(asyncio.create_task(self.ask("high")))
            await asyncio.sleep(every_s)
        return list(await asyncio.gather(*tasks))

    async def aclose(self) -> None:
        """Close what is idle."""
        await self._connections.aclose()


def capacity_rps(pace: Pace) -> float:
    """What the upstreams can do."""
    answer_s = pace.prompt_s + pace.first_s + (statistics.mean(_TOKENS) - 1) * pace.gap_s
    return _NUM_UPSTREAMS * min(pace.places / answer_s, 1 / pace.prompt_s if pace.prompt_s else math.inf)


def policy(ports: Sequence[int]) -> str:
    """Everything at its default but the key of each class."""
    backends = {
        f"up{place}": {"type": "openai", "base_url": f"http://127.0.0.1:{port}/v1"} for place, port in enumerate(ports)
    }
    route = {
        "name": "all",
        "match": {"models": ["*"]},
        "backends": [{"ref": name} for name in backends],
        "slo": {"ttft": f"{_TTFT_S}s", "ttft_per_1k_prompt": "0s", "tpot": f"{_GAP_S}s"},
        "admission": {},
    }
    keys = [{"name": name, "key": f"env:KEY_{name.upper()}", "priority": name} for name in _CLASSES]
    return yaml.safe_dump({"version": 1, "backends": backends, "routes": [route], "keys": keys}, sort_keys=False)


async def measure(pace: Pace, seconds: float, seed: int) -> list[PolicyFigure]:
    """Run it; the figures."""
    rate = capacity_rps(pace)
    environ = {f"KEY_{name.upper()}": f"sk-{name}" for name in _CLASSES}
    with ExitStack() as stack:
        ports = [stack.enter_context(slow_replica(pace)) for _ in range(_NUM_UPSTREAMS)]
        async with start_gateway(policy(ports), environ=environ) as gateway:
            load = Load(gateway.port, Random(seed))
            warm = await load.poisson(0.8 * rate, _WARM_S)
            unloaded = await load.spaced(_UNLOADED, _UNLOADED_EVERY_S)
            peak = await load.poisson(rate, _PEAK_S)
            over = await load.poisson(_OVERLOAD * rate, seconds)
            await load.aclose()
            await asyncio.sleep(0.5)
            lines = {line["request_id"]: line for line in gateway.log}
    print(f"{len(warm) + len(unloaded) + len(peak)} requests before, {len(over)} in {seconds:g} s of overload")
    for key in _CLASSES:
        some = [asked for asked in over if asked.key == key]
        statuses = dict(Counter(asked.status for asked in some))
        print(f"{key:7} {len(some)}: {statuses}, {_good_rps(some, seconds):.1f} in time a second")
    peak_rps, good_rps = _good_rps(peak, _PEAK_S), _good_rps(over, seconds)
    alone_s, top_s = (_first_s([asked for asked in some if asked.key == "high"]) for some in (unloaded, over))
    shed = [asked for asked in over if asked.status == 429]
    late_ms = [(asked.ended_at - _decided_at(lines[f"{asked.key}-{asked.number}"])) * 1e3 for asked in shed]
    errors = retry_after_errors(shed, [*lines.values()])
    ratio = percentile(top_s, 0.99) / percentile(alone_s, 0.99)
    top = f"{percentile(top_s, 0.99):.3f} s beside {percentile(alone_s, 0.99):.3f} s"
    note = f"{top}; median {percentile(top_s, 0.5):.3f} s"
    return [
        PolicyFigure(
            "live, 3 x overload, goodput beside that at 1 x",
            ">= 90%",
            f"{good_rps / peak_rps:.0%}",
            note=f"{good_rps:.1f} beside {peak_rps:.1f} req/s; the upstreams can {rate:.1f}",
        ),
        PolicyFigure("- first token of the top class, p99, beside unloaded", "<= 1.2", f"{ratio:.2f}", note=note),
        PolicyFigure(
            "- rejections, from decision to answer, p99",
            "<= 20 ms",
            f"{percentile(late_ms, 0.99):.1f} ms",
            note=f"of {len(shed)}; median {percentile(late_ms, 0.5):.1f} ms",
        ),
        PolicyFigure(
            "- Retry-After, median error",
            "<= 30%",
            f"{statistics.median(errors):.0%}",
            note=f"of {len(errors)}, its random factor included",
        ),
    ]


def retry_after_errors(shed: Sequence[Asked], lines: Sequence[Line]) -> list[float]:
    """For each rejection its relative error, where somebody waited."""
    waits = sorted((_arrived_at(line), _decided_at(line)) for line in lines if line.get("waited_ms"))
    by_id = {line["request_id"]: line for line in lines}
    errors = []
    for asked in shed:
        decided_at = _decided_at(by_id[f"{asked.key}-{asked.number}"])
        left_at = [left for came, left in waits if came <= decided_at < left]
        if left_at:
            took_s = max(left_at) - decided_at
            errors.append(abs(asked.retry_after_s / _MEAN_FACTOR - took_s) / took_s)
    return errors


def _good_rps(some: Sequence[Asked], seconds: float) -> float:
    return sum(asked.is_good for asked in some) / seconds


def _first_s(some: Sequence[Asked]) -> list[float]:
    return [asked.first_at - asked.sent_at for asked in some if asked.status == 200]


def _arrived_at(line: Line) -> float:
    return float(line["time"] - line["total_ms"] / 1e3)


def _decided_at(line: Line) -> float:
    return _arrived_at(line) + float(line.get("waited_ms", 0.0)) / 1e3


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30.0, help="of overload (default 30)")
    parser.add_argument("--upstreams", choices=_PACES, default="prompts")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the figures there, for `slipstream bench policies`")
    given = parser.parse_args()
    figures = uvloop.run(measure(_PACES[given.upstreams], given.seconds, given.seed))
    for figure in figures:
        print(f"{figure.figure:55} {figure.must:>8} {figure.measured:>9}  {figure.note}")
    if given.json is not None:
        given.json.write_bytes(msgspec.json.encode(figures))


if __name__ == "__main__":
    main()
