"""How fast a model decodes in int8 beside busy processes on the same processors, against alone, in turns.

    python -m tests.benchmarks.engine.busy_neighbour [--neighbours 2] [--rounds 15] [--spinning]

`slipstream serve` serves a model of 77 million random weights; each round streams an answer alone and one beside
processes that do nothing but count. A fair scheduler leaves the model's threads a part of the processors, which is
printed: what they reach beside neighbours that are no worse than busy. Whatever else runs meanwhile is a neighbour too,
also when the model is said to be alone. --spinning gives OpenMP's threads back the wait that they have by themselves.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from backends.engine.benchmark.made_model import make_model
from gateway.process.processors import available_processors, threads_for
from tests.support.faults import Figure, report
from tests.support.gateway import start_gateway
from tests.support.http_client import HttpClient, request_bytes

_ASKED = 0.4
_SPINNING = {"GOMP_SPINCOUNT": "300000"}
"""What GNU's OpenMP does where nobody has told it otherwise."""


async def _tokens_per_s(port: int, model: str, num_tokens: int) -> float:
    """Of one streamed answer, from its first token to its last."""
    body = {"model": model, "prompt": "w1 w2 w3", "max_tokens": num_tokens, "ignore_eos": True, "temperature": 0}
    client = await HttpClient.open(port)
    came: list[float] = []
    client.on_bytes = lambda data: came.extend([time.perf_counter()] * data.count(b'"text"'))
    try:
        client.send(request_bytes("/v1/completions", json.dumps(body | {"stream": True}).encode()))
        answer = await client.answer(timeout_s=300)
        assert len(came) > 1, f"{answer.status} {bytes(answer.body)[:200]!r}"
        return (num_tokens - 1) / (came[-1] - came[0])
    finally:
        client.close()


@contextlib.contextmanager
def _neighbours(count: int) -> Iterator[None]:
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


async def _measure(given: argparse.Namespace, folder: Path) -> float:
    """The median over the rounds of beside over alone."""
    processors = available_processors()
    num_threads = threads_for(1, processors)
    fair = min(1.0, processors / (num_threads + given.neighbours))
    print(f"{num_threads} of {processors} processors' threads; fair share {fair:.2f}; load {os.getloadavg()[0]:.1f}")
    args = ("--model", str(folder), "--quantization", "int8", "--device", "cpu")
    environ = _SPINNING if given.spinning else {}
    ratios = []
    async with start_gateway(None, environ=environ, args=args) as gateway:
        await _tokens_per_s(gateway.port, folder.name, given.tokens)
        for number in range(given.rounds):
            alone = await _tokens_per_s(gateway.port, folder.name, given.tokens)
            with _neighbours(given.neighbours):
                beside = await _tokens_per_s(gateway.port, folder.name, given.tokens)
            ratios.append(beside / alone)
            print(f"round {number + 1}: alone {alone:.0f} tokens/s, beside {beside:.0f}", flush=True)
    return median(ratios)


def main() -> int:
    """Measure and print."""
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--neighbours", type=int, default=2, help="busy processes (default 2)")
    options.add_argument("--rounds", type=int, default=15, help="answers alone, and beside (default 15)")
    options.add_argument("--tokens", type=int, default=96, help="tokens of each answer (default 96)")
    options.add_argument("--spinning", action="store_true", help="with OpenMP's own wait, to see what it costs")
    given = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="slipstream-bench-") as scratch:
        folder = Path(scratch, "made")
        make_model(folder)
        ratio = asyncio.run(_measure(given, folder))
    name = f"int8 decoding beside {given.neighbours} busy loops, of alone"
    return report([Figure(name, f">= {_ASKED:g} x", f"{ratio:.2f} x", ratio >= _ASKED)])


if __name__ == "__main__":
    sys.exit(main())
