"""What the fault commands and their small versions in the suite share: policies, upstreams by case, figures."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from tests.support.gateway import Gateway, reserved_port, running_gateway
from tests.support.servers.openai_server import Behaviour, OpenAIServer, Received

CHAT = "/v1/chat/completions"
CACHE = {"scope": "global", "exact": {"ttl": "1h"}}


def policy(
    *base_urls: str,
    routes: Mapping[str, Mapping[str, Any]] | None = None,
    forward_headers: Sequence[str] = (),
    **sections: Any,
) -> str:
    """A policy file: every upstream in every route. `routes`: a glob over models to the rest of that route."""
    more = {"forward_headers": list(forward_headers)} if forward_headers else {}
    names = [f"up{index}" for index in range(len(base_urls))]
    return yaml.safe_dump(
        {
            "version": 1,
            "backends": {
                name: {"type": "openai", "base_url": url, **more} for name, url in zip(names, base_urls, strict=True)
            },
            "routes": [
                {
                    "name": f"route{index}",
                    "match": {"models": [models]},
                    "backends": [{"ref": name} for name in names],
                    **route,
                }
                for index, (models, route) in enumerate((routes or {"*": {}}).items())
            ],
            **sections,
        },
        sort_keys=False,
    )


class CaseServer(OpenAIServer):
    """An upstream that answers each request as its case wants: the request's model ends in `/` and the case's name."""

    def __init__(self, port: int = 0) -> None:
        super().__init__()
        self.port = port
        self.cases: dict[str, Behaviour] = {}
        self.num_asked: dict[str, int] = {}
        self.last: dict[str, Received] = {}
        self._news = asyncio.Event()

    def plan(self, received: Received) -> Behaviour:
        """How that case is answered; only the last request of each case is kept."""
        case = case_of(received.body)
        self.num_asked[case] = self.num_asked.get(case, 0) + 1
        self.last[case] = received
        self._news.set()
        return self._planned.popleft() if self._planned else self.cases.get(case, self.default)

    def forget(self, case: str) -> None:
        """Keep nothing of a case any longer."""
        for known in (self.cases, self.num_asked, self.last):
            known.pop(case, None)

    async def wait_asked(self, case: str, timeout_s: float = 5.0) -> Received:
        """The last request of that case, once there is one. Raises: TimeoutError."""
        async with asyncio.timeout(timeout_s):
            while case not in self.last:
                self._news.clear()
                await self._news.wait()
        return self.last[case]


def case_of(body: bytes) -> str:
    """The case's name in a request's body, "" where there is none."""
    _, _, rest = body.partition(b'"model":"')
    return rest.partition(b'"')[0].decode().rpartition("/")[2]


class Setting(NamedTuple):
    """A gateway for a whole module, and the ports at which it looks for its upstreams."""

    gateway: Gateway
    ports: list[int]


@contextmanager
def setting(num_upstreams: int = 1, environ: Mapping[str, str] | None = None, **sections: Any) -> Iterator[Setting]:
    """A gateway with upstreams that are not there yet. `sections` as for `policy`."""
    with ExitStack() as stack:
        ports = [stack.enter_context(reserved_port()) for _ in range(num_upstreams)]
        text = policy(*(f"http://127.0.0.1:{port}/v1" for port in ports), **sections)
        yield Setting(stack.enter_context(running_gateway(text, environ=environ)), ports)


class Figure(NamedTuple):
    """One line of a report."""

    what: str
    asked: str
    measured: str
    is_met: bool


def none(what: str, number: int) -> Figure:
    """A figure that must be nought."""
    return Figure(what, "0", f"{number}", number == 0)


def at_most(what: str, limit: float, value: float, unit: str) -> Figure:
    """A figure with an upper bound."""
    return Figure(what, f"<= {limit:g} {unit}", f"{value:.1f} {unit}", value <= limit)


def report(figures: list[Figure]) -> int:
    """Print the table; the exit code."""
    rows = [("figure", "asked", "measured", "")]
    rows += [(figure.what, figure.asked, figure.measured, "ok" if figure.is_met else "MISSED") for figure in figures]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    print()
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, (*widths, 6), strict=True)).rstrip())
    return 0 if all(figure.is_met for figure in figures) else 1


class Progress:
    """A line on standard error, rewritten at most twice a second."""

    def __init__(self, total: int, what: str, *, is_shown: bool = True) -> None:
        self.done = 0
        self._total = total
        self._what = what
        self._is_shown = is_shown
        self._started_at = time.monotonic()
        self._shown_at = 0.0

    def add(self, number: int = 1) -> None:
        """So many more are done."""
        is_last = self.done < self._total <= self.done + number
        self.done += number
        now = time.monotonic()
        if self._is_shown and (now - self._shown_at > 0.5 or is_last):
            self._shown_at = now
            rate = self.done / max(1e-9, now - self._started_at)
            end = "\n" if is_last else ""
            print(f"\r{self.done}/{self._total} {self._what}, {rate:.0f}/s   ", end=end, file=sys.stderr, flush=True)


def parser(doc: str | None, *, count: int, what: str) -> argparse.ArgumentParser:
    """The options that every command has."""
    made = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    made.add_argument("--count", type=int, default=count, help=f"how many {what} (default {count})")
    made.add_argument("--seed", type=int, default=1, help="of everything random (default 1)")
    return made


def percentile(values: list[float], share: float) -> float:
    """The value below which that share of all lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def num_files(process: int) -> int:
    """Files and connections that a process has open."""
    return len(list(Path(f"/proc/{process}/fd").iterdir()))
