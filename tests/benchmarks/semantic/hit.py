"""CPU of a hit of the semantic cache, and of an exact hit with that stage configured and without it.

    python -m tests.benchmarks.semantic.hit [--entries 5000] [--requests 400] [--rounds 25]

A gateway process over loopback, 16 connections in a closed loop, requests of 2 KB; counted is the processor time of its
whole process tree. The encoder is a backend with every vector at hand, and a question that is timed has been asked
before: the gateway's memory of texts answers, and what is left of a hit is what it costs beyond the encoder. One hit in
fifty is checked with the upstream, as `static` does, and that is counted too. The kinds take turns in short
rounds, so that all meet the same seconds of a busy machine; of the rounds the lower quartile counts.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import zlib
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from itertools import cycle, islice
from pathlib import Path

import msgspec
import numpy as np

from tests.benchmarks.semantic.lookup import questions
from tests.support.faults import CHAT, Figure, Progress, at_most, percentile, policy, report
from tests.support.gateway import Gateway, start_gateway
from tests.support.http_client import HttpClient, request_bytes
from tests.support.policy.cache import chat_answer
from tests.support.servers.raw_server import Peer, RawServer

_DIMENSION = 384
_NUM_CENTRES = 64
_NUM_WARM = 256
"""Questions that are asked again and again."""
_CONNECTIONS = 16
_LIMIT_US = 300.0
_MAX_RATIO = 1.02
"""An exact hit with the stage configured takes the same steps: what it may differ by is what rounds differ by."""
_IN_OTHER_WORDS = " please"
_SYSTEM = "You are the help desk of a bank. " * 56
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
_SEMANTIC = {
    "mode": "static",
    "threshold": 0.9,
    "encoder": {"type": "openai", "backend": "up0", "model": "vectors", "dimension": _DIMENSION},
    "encode_timeout": "10s",
    "search_timeout": "1s",
}


class _Asked(msgspec.Struct):
    input: list[str] = []
    messages: list[dict[str, str]] = []


_CENTRES = np.random.default_rng(1).standard_normal((_NUM_CENTRES, _DIMENSION), np.float32)


def _vector(text: str) -> list[float]:
    """Near one of some centres, as questions of one kind are; the same in other words right beside it."""
    plain = text.removesuffix(_IN_OTHER_WORDS)
    vector = _CENTRES[zlib.crc32(plain.encode()) % _NUM_CENTRES].copy()
    for words, share in ((plain, 1.0), (text, 0.3 if text != plain else 0.0)):
        vector += share * np.random.default_rng(zlib.crc32(words.encode())).standard_normal(_DIMENSION, np.float32)
    return [round(number, 4) for number in vector.tolist()]


async def _serve(peer: Peer) -> None:
    """The upstream and the encoder: no question has the answer of another, in other words it has the same."""
    while True:
        request = await peer.request()
        asked = msgspec.json.decode(request.body, type=_Asked)
        if asked.input:
            data = [{"index": index, "embedding": _vector(text)} for index, text in enumerate(asked.input)]
            body = msgspec.json.encode({"object": "list", "data": data})
        else:
            question = asked.messages[-1]["content"].removesuffix(_IN_OTHER_WORDS)
            body = chat_answer(f"Here is what you want to know: {zlib.crc32(question.encode()):08x}.")
        peer.send(_HEAD % (len(body), body))


def _request(text: str, model: str) -> bytes:
    messages = [{"role": "system", "content": _SYSTEM}, {"role": "user", "content": text}]
    return request_bytes(CHAT, msgspec.json.encode({"model": model, "messages": messages, "temperature": 0}))


async def _ask(port: int, requests: Sequence[bytes], count: int, expected: bytes, progress: Progress) -> None:
    """`count` requests, each from the first on. Raises: AssertionError for an answer that came from elsewhere."""
    todo = islice(cycle(requests), count)

    async def work() -> None:
        client = await HttpClient.open(port)
        for request in todo:
            client.send(request)
            answer = await client.answer()
            outcome = answer.header(b"x-cache")
            assert (answer.status, outcome) == (200, expected), f"{answer.status}, {outcome!r} instead of {expected!r}"
            progress.add()
        client.close()

    async with asyncio.TaskGroup() as tasks:
        for _ in range(min(_CONNECTIONS, count)):
            tasks.create_task(work())


def cpu_us(pid: int) -> float:
    """Processor time of a process and all below it, in microseconds."""
    total_ns, todo = 0, [pid]
    while todo:
        for task in Path(f"/proc/{todo.pop()}/task").iterdir():
            total_ns += int((task / "schedstat").read_text(encoding="ascii").split()[0])
            todo += map(int, (task / "children").read_text(encoding="ascii").split())
    return total_ns / 1e3


def _gateway(upstream: RawServer) -> AbstractAsyncContextManager[Gateway]:
    exact = {"exact": {"ttl": "1h"}}
    routes: dict[str, dict[str, object]] = {
        "plain": {"cache": exact},
        "both": {"cache": {**exact, "semantic": _SEMANTIC}},
    }
    return start_gateway(policy(f"{upstream.base_url}/v1", routes=routes))


async def measure(*, entries: int, requests: int, rounds: int, is_shown: bool = False) -> dict[str, list[float]]:
    """Microseconds of processor time for a request, by kind of hit, one for each round."""
    texts = questions(entries)
    warm = texts[:: max(1, entries // _NUM_WARM)][:_NUM_WARM]
    kinds = {
        "exact hit": ([_request(text, "plain") for text in warm], b"hit"),
        "exact hit, semantic configured": ([_request(text, "both") for text in warm], b"hit"),
        "semantic hit": ([_request(text + _IN_OTHER_WORDS, "both") for text in warm], b"semantic"),
    }
    costs: dict[str, list[float]] = {kind: [] for kind in kinds}
    progress = Progress(entries + (rounds + 2) * 3 * requests, "requests", is_shown=is_shown)
    async with RawServer(_serve) as upstream, _gateway(upstream) as gateway:
        for model, asked in (("both", texts), ("plain", warm)):
            await _ask(gateway.port, [_request(text, model) for text in asked], len(asked), b"miss", progress)
        for asked_again, outcome in kinds.values():
            await _ask(gateway.port, asked_again, max(_NUM_WARM, requests // 2), outcome, progress)
        for _ in range(rounds):
            for kind, (asked_again, outcome) in kinds.items():
                before_us = cpu_us(gateway.process.pid)
                await _ask(gateway.port, asked_again, requests, outcome, progress)
                costs[kind].append((cpu_us(gateway.process.pid) - before_us) / requests)
    return costs


def main() -> int:
    """Measure and print."""
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--entries", type=int, default=5000, help="stored in the one group (default 5000)")
    options.add_argument("--requests", type=int, default=400, help="of each kind in a round (default 400)")
    options.add_argument("--rounds", type=int, default=25, help="how many (default 25)")
    given = options.parse_args()
    costs = asyncio.run(measure(entries=given.entries, requests=given.requests, rounds=given.rounds, is_shown=True))
    without, beside, hit = (percentile(found, 0.25) for found in costs.values())
    for kind, found in costs.items():
        spread = (min(found), percentile(found, 0.25), percentile(found, 0.5), max(found))
        print(f"{kind:32}", "least {:.1f}, quartile {:.1f}, median {:.1f}, most {:.1f} us of CPU".format(*spread))
    ratio = beside / without
    return report(
        [
            at_most(f"semantic hit, {given.entries:,} entries in its group", _LIMIT_US, hit, "us"),
            Figure(
                "exact hit with the stage, against without", f"<= {_MAX_RATIO:g}", f"{ratio:.3f}", ratio <= _MAX_RATIO
            ),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
