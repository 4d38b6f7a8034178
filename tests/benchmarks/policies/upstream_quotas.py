"""What keys and declared rates do about 429s, beside doing nothing: real pools, real sockets, quotas of a real minute.

    python -m tests.benchmarks.policies.upstream_quotas [--seconds 75]

The upstreams count what each key was sent in the last 60 s and answer 429 beyond its quota. `fullest minute` is the
most that was answered in any 60 s, of the quota. All rows run side by side; conversations come after them.
"""

from __future__ import annotations

import argparse
import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from backends.clock import SystemClock
from backends.errors import UpstreamExhausted
from backends.http.openai import KIND
from backends.protocol import Backend
from policies.pool.attempts.settings import RetryPolicy
from policies.pool.member import Member
from policies.pool.pool import Pool
from policies.pool.settings import CircuitBreakerPolicy
from tests.support.calls import make_call, read_all
from tests.support.servers.quota_server import Asked, Quota, QuotaServer

KEYS = {"A": "sk-a-0123456789", "B": "sk-b-0123456789", "C": "sk-c-0123456789"}
_CLOCK = SystemClock()
_CONVERSATIONS, _TURNS = 60, 6


@dataclass(frozen=True, slots=True)
class Row:
    """One way to ask an upstream: `settings` of each backend, and how often a call comes."""

    name: str
    quotas: dict[str, int | None]
    settings: Sequence[dict[str, Any]]
    per_s: float


ROWS = (
    Row("120 rpm: nothing declared", {"A": 120}, [{"api_key": "env:A"}], 3.0),
    Row("  quota: {rpm: 120}", {"A": 120}, [{"api_key": "env:A", "quota": {"rpm": 120}}], 3.0),
    Row("  with burst: 1s", {"A": 120}, [{"api_key": "env:A", "quota": {"rpm": 120, "burst": "1s"}}], 3.0),
    Row("90 and 30 rpm: backends in turn", {"A": 90, "B": 30}, [{"api_key": "env:A"}, {"api_key": "env:B"}], 1.8),
    Row("  api_keys: [A, B]", {"A": 90, "B": 30}, [{"api_keys": ["env:A", "env:B"]}], 1.8),
)


def _pool(leaves: Sequence[Backend]) -> Pool:
    return Pool(
        "all",
        [Member(leaf) for leaf in leaves],
        retry=RetryPolicy(attempts=0),
        breaker=CircuitBreakerPolicy(),
        clock=_CLOCK,
        random=Random(1),
    )


def _leaves(server: QuotaServer, settings: Sequence[dict[str, Any]]) -> list[Backend]:
    configs = [
        KIND.config.model_validate({"base_url": server.base_url, **each}, context={"environ": KEYS})
        for each in settings
    ]
    return [KIND.build(f"up{number}", config, _CLOCK) for number, config in enumerate(configs)]


async def _measure(row: Row, seconds: float) -> str:
    quotas = {KEYS[name]: Quota(requests=rpm) for name, rpm in row.quotas.items()}
    statuses: Counter[int] = Counter()
    async with QuotaServer(quotas) as server:
        leaves = _leaves(server, row.settings)
        pool = _pool(leaves)
        begin = _CLOCK.now()
        for number in range(int(seconds * row.per_s)):
            await _CLOCK.sleep(begin + number / row.per_s - _CLOCK.now())
            try:
                reply = await pool.send(make_call(str(number)))
                await read_all(reply)
                statuses[reply.status] += 1
            except UpstreamExhausted:
                statuses[0] += 1
        for leaf in leaves:
            await leaf.aclose()
        shares = "/".join(str(server.answered()[key]) for key in quotas)
        fullest = _fullest_minute([each for each in server.asked if each.status == 200])
        quota = sum(rpm or 0 for rpm in row.quotas.values())
        return (
            f"{row.name:34}{statuses.total():>7}{statuses[200]:>10}{server.statuses()[429]:>15}{statuses[429]:>15}"
            f"{statuses[0]:>11}{shares:>10}{fullest:>9} of {quota}"
        )


def _fullest_minute(answered: Sequence[Asked]) -> int:
    times = [each.at for each in answered]
    return max((sum(at <= other < at + 60 for other in times) for at in times), default=0)


async def _stickiness(settings: Sequence[dict[str, Any]]) -> tuple[float, Counter[str]]:
    """The share of prompt tokens that were cached, of those that could have been, and the calls of each key."""
    async with QuotaServer({key: Quota() for key in KEYS.values()}) as server:
        leaves = _leaves(server, settings)
        pool = _pool(leaves)
        could, random = 0, Random(1)
        for turn in range(_TURNS):
            # Nobody speaks in turn.
            for number in random.sample(range(_CONVERSATIONS), _CONVERSATIONS):
                call = make_call(f"conversation {number}. " * 400 + str(turn))
                could += len(call.raw) // 4 if turn else 0
                await read_all(await pool.send(call))
        for leaf in leaves:
            await leaf.aclose()
        return server.cached_tokens / could, server.answered()


async def _main(seconds: float, show: Callable[[str], None]) -> None:
    show(
        f"{'':34}{'calls':>7}{'answered':>10}{'429s upstream':>15}{'429s to client':>15}{'held back':>11}{'by key':>10}"
        f"{'fullest minute':>16}"
    )
    for line in await asyncio.gather(*(_measure(row, seconds) for row in ROWS)):
        show(line)
    show(f"\n{_CONVERSATIONS} conversations of {_TURNS} turns, three keys{'':10}cached of what could be    by key")
    names = [f"env:{name}" for name in KEYS]
    for name, settings in (
        ("backends in turn", [{"api_key": each} for each in names]),
        ("api_keys", [{"api_keys": names}]),
    ):
        share, by_key = await _stickiness(settings)
        counts = "/".join(str(by_key[key]) for key in KEYS.values())
        show(f"  {name:48}{100 * share:>10.0f} %{counts:>20}")


def main() -> None:
    """Prints both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=75, help="how long calls come")
    asyncio.run(_main(parser.parse_args().seconds, print))


if __name__ == "__main__":
    main()
