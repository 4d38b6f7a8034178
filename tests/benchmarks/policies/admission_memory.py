"""Memory of balancing and admission under prompts, callers and keys that are never seen twice.

    python -m tests.benchmarks.policies.admission_memory --count 1000000

Eight backends of 800,000 tokens of cache, a prompt of 24 blocks a call, a tenant of its own for each. Nine calls
in ten go at once, the others come two thousand at a time, so that most of them wait; all are answered. What may be
kept is bounded by `routing.cache_tokens` (blocks of the index) and `admission.max_waiting`; after the first fiftieth,
when all of it is full, the process may not grow by more than 16 MiB, which is what its heap's holes take.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import re
from pathlib import Path

import msgspec

from backends.protocol import Call
from gateway.simulate.figures import PolicyFigure
from tests.benchmarks.policies.routing_cost import Site
from tests.support.faults import Progress

_NUM_BACKENDS = 8
_NUM_BYTES = 24 * 256
_ROUND, _BURST = 20_000, 2_000
_MOST_MIB = 16.0


def call(site: Site, number: int) -> Call:
    """One that nobody has seen: another prompt from its first word on, another tenant and key."""
    text = f"{number:012d} " + "x" * (_NUM_BYTES - 13)
    body = {"model": "m", "messages": [{"role": "user", "content": text}], "stream": True}
    raw = msgspec.json.encode(body)
    return msgspec.structs.replace(site.calls[0], body=body, raw=raw, tenant=f"tenant-{number}", key_id=f"key-{number}")


async def measure(count: int) -> list[PolicyFigure]:
    """Send so many calls through; the figure."""
    site = Site("predicted_cost", _NUM_BYTES, _NUM_BACKENDS, admission=True)
    await site.admission.open()
    progress = Progress(count, "calls")
    number, start_mib, full_mib = 0, rss_mib(), 0.0
    while number < count:
        burst_at, end = number + _ROUND - _BURST, number + _ROUND
        for alone in range(number, burst_at):
            site.enter([call(site, alone)])
            site.learn(1)
        await _through_the_line(site, range(burst_at, end))
        number = end
        progress.add(_ROUND)
        if not full_mib and number >= count / 50:
            full_mib = rss_mib()
    grown_mib = rss_mib() - full_mib
    blocks = sum(replica.statistics().index_blocks for replica in site.routing.replicas)
    await site.admission.aclose()
    return [
        PolicyFigure(
            f"memory after {count:,} prompts, tenants and keys seen once, since the first fiftieth",
            f"<= {_MOST_MIB:.0f} MiB more",
            f"{grown_mib:.1f} MiB",
            grown_mib <= _MOST_MIB,
            f"{full_mib - start_mib:.1f} MiB until then; {blocks:,} blocks in the index",
        )
    ]


async def _through_the_line(site: Site, numbers: range) -> None:
    """A burst: more than the backends have room for."""
    async with asyncio.TaskGroup() as tasks:
        for number in numbers:
            tasks.create_task(site.wait(call(site, number)))
        await asyncio.sleep(0)
        assert site.gate.queue, "somebody waits"
        while site.gate.queue:
            site.learn(1)
            await asyncio.sleep(0)
    site.learn()


def rss_mib() -> float:
    """Resident memory of this process."""
    gc.collect()
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(re.findall(r"VmRSS:\s+(\d+) kB", status)[0]) / 1024


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--json", type=Path, help="write the figure there, for `slipstream bench policies`")
    given = parser.parse_args()
    figures = asyncio.run(measure(given.count))
    for figure in figures:
        print(f"{figure.figure}: {figure.measured} ({figure.must}); {figure.note}")
    if given.json is not None:
        given.json.write_bytes(msgspec.json.encode(figures))


if __name__ == "__main__":
    main()
