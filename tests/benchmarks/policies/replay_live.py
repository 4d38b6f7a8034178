"""Whether simulations tell the truth about a fleet: a gateway over loopback, its access log, and that log replayed.

    python -m tests.benchmarks.policies.replay_live --seconds 60

Two backends of type simulated, in real time, of different speeds and of which nothing is told to the replay; clients
send streamed chats as a Poisson process, of many lengths, some of which begin like others. The access log of that is
given to `slipstream simulate --replay`, with a policy whose backends are upstreams.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from random import Random

import uvloop

from tests.support.gateway import start_gateway
from tests.support.http_client import Answer, Connections, HttpClient, chat_body

_ROUTE = 'routes: [{name: all, match: {models: ["*"]}, backends: [{ref: fast}, {ref: slow}]}]\n'
_LIVE = (
    "version: 1\nbackends:\n"
    "  fast: {type: simulated, tokens_per_event: 16}\n"
    "  slow: {type: simulated, tokens_per_event: 16, speed: 0.5, token_us: 30, overhead_us: 20000}\n" + _ROUTE
)
_UPSTREAM = "{type: openai, base_url: 'http://127.0.0.1:9/v1'}"
_REPLAYED = f"version: 1\nbackends: {{fast: {_UPSTREAM}, slow: {_UPSTREAM}}}\n{_ROUTE}"
_NUM_BEGINNINGS = 12


async def record(rate: float, seconds: float, random: Random) -> str:
    """The access log of so much traffic."""
    async with start_gateway(_LIVE) as gateway:
        connections = Connections(gateway.port)

        async def ask(number: int) -> None:
            beginning = f"{random.randrange(_NUM_BEGINNINGS):08d}" * 2048
            text = beginning[: random.choice((0, 8192, 16384))] + f"{number:08d}" * int(random.lognormvariate(6, 0.9))
            body = chat_body(text, stream=True, output_tokens=1 + int(random.lognormvariate(4, 0.7)))

            async def use(client: HttpClient) -> Answer:
                return await client.post("/v1/chat/completions", body, timeout_s=60.0)

            answer = await connections.ask(use)
            assert answer.status == 200, answer

        start = at = time.monotonic()
        number = 0
        async with asyncio.TaskGroup() as clients:
            while (at := at + random.expovariate(rate)) < start + seconds:
                await asyncio.sleep(at - time.monotonic())
                number += 1
                clients.create_task(ask(number))
        await connections.aclose()
        await gateway.wait_log(count=number)
        return gateway.stdout


def main() -> None:
    """Record, replay, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="of traffic (default 60)")
    parser.add_argument("--rate", type=float, default=24.0, help="requests a second (default 24)")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        log, policy = Path(folder) / "access.log", Path(folder) / "policy.yaml"
        log.write_text(uvloop.run(record(given.rate, given.seconds, Random(given.seed))), encoding="utf-8")
        policy.write_text(_REPLAYED, encoding="utf-8")
        slipstream = Path(sys.executable).with_name("slipstream")
        command = [slipstream, "simulate", "--trace", log, "--policy", policy, "--replay"]
        subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
