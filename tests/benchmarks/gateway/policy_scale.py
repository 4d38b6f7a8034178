"""What many routes, globs, keys and backends cost: a request, a start, and live calls during a reload.

    python -m tests.benchmarks.gateway.policy_scale
    python -m tests.benchmarks.gateway.policy_scale --only requests --case keys

CPU of a request is that of two gateways in processes of their own, one with many and one with one of each, asked in
turns, some hundred requests at a time; what is told is the ratio, the median over all rounds. Starts are seconds of a
process' CPU until it serves. A reload's figures are how long live calls waited while the policy grew from one route to
many, and shrank again; the same calls without a reload, in turns in the same run, show what the machine does by itself.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.benchmarks.gateway.turns import AnsweringUpstream, Turn, connect, cpu_us, stay_awake
from tests.support.gateway import Gateway, start_gateway

_PER_FILE = 2000


class Case:
    """A policy in files, and the request that it is asked with."""

    def __init__(self, files: dict[str, str], model: str, key: str = "") -> None:
        self.files = files
        body = json.dumps({"model": model, "messages": [{"role": "user", "content": "word " * 300}]}).encode()
        head = "POST /v1/chat/completions HTTP/1.1\r\nhost: gateway\r\ncontent-type: application/json\r\n"
        head += f"authorization: Bearer {key}\r\n" if key else ""
        self.request = f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


def _files(port: int, routes: list[str], keys: list[str], num_backends: int = 1) -> dict[str, str]:
    backends = [
        f'  up{number}: {{type: openai, base_url: "http://127.0.0.1:{port}/v1"}}\n' for number in range(num_backends)
    ]
    files = {}
    for name, lines in (("routes", routes), ("keys", keys)):
        for at in range(0, len(lines), _PER_FILE):
            files[f"{name}{at:07}.part"] = f"{name}:\n" + "".join(lines[at : at + _PER_FILE])
    files["policy.yaml"] = "version: 1\ninclude: ['*.part']\nbackends:\n" + "".join(backends)
    return files


def _route(number: int, model: str, backends: str = "{ref: up0}") -> str:
    return f"  - {{name: r{number}, match: {{models: ['{model}']}}, backends: [{backends}]}}\n"


def _key(number: int, folder: Path) -> str:
    path = folder / f"key{number}"
    path.write_text(f"sk-{number:032}", encoding="utf-8")
    return f'  - {{name: k{number}, key: "file:{path}"}}\n'


def _cases(port: int, folder: Path) -> dict[str, tuple[float, Callable[[], tuple[Case, Case]]]]:
    """By name: what the ratio may be, and what makes the policy with many and that with one."""

    def named(count: int) -> Case:
        return Case(_files(port, [_route(at, f"model-{at}") for at in range(count)], []), f"model-{count - 1}")

    def globs(count: int) -> Case:
        return Case(_files(port, [_route(at, f"team-{at}/*") for at in range(count)], []), f"team-{count - 1}/x")

    def keys(count: int) -> Case:
        lines = [_key(at, folder) for at in range(count)]
        return Case(_files(port, [_route(0, "*")], lines), "m", f"sk-{count - 1:032}")

    def backends(count: int, more: str = "") -> Case:
        refs = ", ".join(f"{{ref: up{at}}}" for at in range(count))
        line = _route(0, "*", refs).removesuffix("}\n") + f"{more}}}\n"
        return Case(_files(port, [line], [], count), "m")

    return {
        "10,000 named routes": (1.1, lambda: (named(10_000), named(1))),
        "3,000 globs": (1.1, lambda: (globs(3_000), globs(1))),
        "100,000 keys": (1.05, lambda: (keys(100_000), keys(1))),
        "1,000 backends": (2.0, lambda: (backends(1000), backends(1))),
        "1,000 in turns": (2.0, lambda: (backends(1000, ", routing: {policy: weighted}"), backends(1))),
    }


def _write(case: Case, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in case.files.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder / "policy.yaml"


async def _ratio(many: Case, one: Case, folder: Path, rounds: int, size: int) -> float:
    """How much more CPU a request takes with many."""
    paths = [str(_write(case, folder / name)) for case, name in ((many, "many"), (one, "one"))]
    quiet = {"SLIPSTREAM_RELOAD_INTERVAL": "1h"}
    async with (
        start_gateway(None, args=paths[:1], environ=quiet) as first,
        start_gateway(None, args=paths[1:], environ=quiet) as second,
    ):
        pairs = [(first, many, await connect(first.port)), (second, one, await connect(second.port))]
        ratios = []
        for number in range(rounds + 5):
            took = []
            for gateway, case, clients in pairs:
                before_us = cpu_us(gateway.process.pid)
                await Turn(case.request, size).take(clients)
                took.append(cpu_us(gateway.process.pid) - before_us)
            if number >= 5:
                ratios.append(took[0] / took[1])
        return statistics.median(ratios)


async def _start_s(case: Case, folder: Path) -> float:
    """Seconds of CPU until a gateway serves."""
    async with start_gateway(None, args=[str(_write(case, folder))]) as gateway:
        return cpu_us(gateway.process.pid) / 1e6


async def _waits_ms(
    port: int, folder: Path, num_routes: int, num_keys: int, *, rounds: int, workers: int
) -> dict[str, list[float]]:
    """Of live calls in quiet seconds, while a long policy takes over from a short one, and the other way round."""
    secrets = folder / "secrets"
    secrets.mkdir()
    keys = [_key(at, secrets) for at in range(num_keys)]
    routes = [_route(at, f"model-{at}") for at in range(num_routes)]
    short = Case(_files(port, routes[:1], keys[:1]), "model-0", f"sk-{0:032}")
    long = Case(_files(port, routes, keys), "model-0", f"sk-{0:032}")
    path = _write(short, folder / "live")
    included = [folder / "live" / name for name in long.files if name not in short.files]
    waits: dict[str, list[float]] = {"quiet": [], "longer": [], "shorter": []}
    args = [str(path), "--workers", str(workers)]
    async with start_gateway(None, args=args, environ={"SLIPSTREAM_RELOAD_INTERVAL": "200ms"}) as gateway:
        clients = await connect(gateway.port)
        await Turn(long.request, 200).take(clients)
        for _ in range(rounds):
            waits["quiet"] += await _live(gateway, long, seconds=3)
            _write(long, folder / "live")
            waits["longer"] += await _live(gateway, long, num_reloads=workers)
            for each in included:
                each.unlink()
            _write(short, folder / "live")
            waits["shorter"] += await _live(gateway, long, num_reloads=workers)
    return waits


async def _live(gateway: Gateway, case: Case, *, seconds: float = math.inf, num_reloads: int = 0) -> list[float]:
    """The waits of calls one after the other, for so long, or until so many reloads and another second are over."""
    clients = await connect(gateway.port)
    until = time.monotonic() + seconds
    waits: list[float] = []
    since = len(gateway.stderr)
    while (now := time.monotonic()) < until:
        before = time.perf_counter()
        await Turn(case.request, 1).take(clients[:1])
        waits.append((time.perf_counter() - before) * 1e3)
        await asyncio.sleep(0.002)
        if until == math.inf and gateway.stderr.count("is in force", since) >= num_reloads:
            until = now + 1
    return waits


async def _measure(rounds: int, size: int, only: str, case: str, workers: int) -> None:
    loop = asyncio.get_running_loop()
    async with await loop.create_server(AnsweringUpstream, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            if "start" in only:
                for count, limit_s in ((3_000, 2), (10_000, 6)):
                    start = Case(_files(port, [_route(at, f"model-{at}") for at in range(count)], []), "model-0")
                    print(
                        f"start with {count} routes: {await _start_s(start, folder / f'start{count}'):.2f} s of CPU",
                        end="",
                    )
                    print(f" (limit {limit_s} s)", flush=True)
            if "reload" in only:
                waits = await _waits_ms(port, folder, 10_000, 8_000, rounds=3, workers=workers)
                for what, those in waits.items():
                    p999 = statistics.quantiles(those, n=1000)[-1]
                    print(
                        f"live calls, {what}: {len(those)}, p99.9 {p999:.1f} ms, worst {max(those):.1f} ms (limit 50)"
                    )
            if "requests" in only:
                stay_awake()
                for title, (limit, make) in _cases(port, folder).items():
                    if case not in title:
                        continue
                    many, one = make()
                    ratio = await _ratio(many, one, folder / title.replace(",", ""), rounds, size)
                    print(f"{title}: {ratio:.2f} times the CPU of a request (limit {limit})", flush=True)


def main() -> None:
    """Prints a line for each figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--size", type=int, default=320, help="requests a turn")
    parser.add_argument("--only", default="start reload requests", help="some of these words")
    parser.add_argument("--case", default="", help="of requests, only those with this in their name")
    parser.add_argument("--workers", type=int, default=1, help="of the gateway that reloads")
    options = parser.parse_args()
    asyncio.run(_measure(options.rounds, options.size, options.only, options.case, options.workers))


if __name__ == "__main__":
    main()
