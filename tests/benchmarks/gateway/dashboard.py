"""How long the dashboard's questions take over many rows, what an open page costs, and when a browser has painted it.

    python -m tests.benchmarks.gateway.dashboard [--rows 10000000] [--repeat 5] [--ledger FILE]

A SQLite file with calls of the last 30 days, 200 keys, 20 tenants and 3 models, in a folder of the system's (3 GiB for
ten million rows), behind a gateway. Times of questions are a client's, over loopback; CPU is the gateway's.
"""

from __future__ import annotations

import json
import shutil
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from tests.benchmarks.gateway.ledger_report import DAYS, filled_ledger
from tests.support.gateway import Gateway, running_gateway

POLICY = """
version: 1
ledger: {{url: "sqlite:///{path}", keep: 400d}}
backends: {{up: {{type: scripted, price: {{input_per_1m: 2, output_per_1m: 8}}}}}}
routes: [{{name: all, match: {{models: ["*"]}}, backends: [{{ref: up}}]}}]
"""
QUESTIONS = (
    "overview?range=1h",
    "overview?range=24h",
    "overview?range=7d",
    "overview?range=30d",
    "overview?range=30d&by=key",
    "overview?range=30d&only=tenant:tenant-3",
    "backends?range=7d",
    "caches?range=24h",
    "caches?range=30d",
    "errors?range=24h",
    "requests",
    "requests?filter=status:5xx",
    "requests?filter=model:nobody-asks-for-it",
)
_EVERY_S = {"1h": 20, "24h": 30, "7d": 60, "30d": 60, "month": 60}
_MOST_MS_A_MINUTE = 30
_LONGEST_PAUSE_S = 600
"""How often a page asks anew, as `static/main.js` has it."""
_SAID = """
() => {
  const paint = performance.getEntriesByType('paint').find(entry => entry.name === 'first-contentful-paint');
  return {paint: paint.startTime, figures: performance.now()};
}
"""


def cpu_ms(gateway: Gateway) -> float:
    """Of all threads of the gateway's process, since its start, to the microsecond."""
    tasks = Path(f"/proc/{gateway.process.pid}/task").glob("*/schedstat")
    return sum(int(task.read_text(encoding="ascii").split()[0]) for task in tasks) / 1e6


def measure_questions(client: httpx.Client, repeat: int) -> None:
    """The first time, and the best of the others."""
    print(f"{'question':<44}{'first ms':>10}{'best ms':>10}{'bytes':>10}")
    for question in QUESTIONS:
        times_ms = []
        for _ in range(repeat + 1):
            begin = time.perf_counter()
            answer = client.get(f"/dashboard/api/{question}")
            times_ms.append((time.perf_counter() - begin) * 1e3)
            answer.raise_for_status()
        weight = answer.headers["content-length"]
        print(f"{question:<44}{times_ms[0]:>10.1f}{min(times_ms[1:]):>10.1f}{weight:>10}")


def measure_cpu(client: httpx.Client, gateway: Gateway, repeat: int) -> None:
    """Of a page that asks anew, as often as it would: where a call has come by since, and where none has."""
    own_ms_a_second = _own_cpu(gateway)
    print(f"CPU of the gateway by itself: {own_ms_a_second * 60:.0f} ms a minute")
    print(f"{'an open page':<16}{'ms a refresh':>14}{'a minute':>10}{'ms a minute':>13}{'nothing new, ms':>18}")
    for name, every_s in _EVERY_S.items():
        polled = [f"overview?range={name}", f"backends?range={name}", "budgets"]
        page = _Page(client, gateway, polled, own_ms_a_second)
        page.refresh()
        busy, idle, spent_ms = [], [], 0.0
        for _ in range(repeat * 2):
            _make_a_call(client)
            busy.append(page.refresh())
            spent_ms = page.said_ms
            idle.append(page.refresh())
        # As the page does: later, where its questions take more than 30 ms a minute.
        a_minute = 60 / max(every_s, min(spent_ms / _MOST_MS_A_MINUTE * 60, _LONGEST_PAUSE_S))
        each = statistics.median(busy)
        print(f"{name:<16}{each:>14.1f}{a_minute:>10.1f}{each * a_minute:>13.1f}{statistics.median(idle):>18.1f}")


def _own_cpu(gateway: Gateway) -> float:
    begin, since = cpu_ms(gateway), time.perf_counter()
    time.sleep(5)
    return (cpu_ms(gateway) - begin) / (time.perf_counter() - since)


@dataclass
class _Page:
    """One that is open."""

    client: httpx.Client
    gateway: Gateway
    polled: list[str]
    own_ms_a_second: float
    """What the gateway takes for itself meanwhile."""
    tags: dict[str, str] = field(default_factory=dict)
    said_ms: float = 0.0
    """What the last answers have said that they took."""

    def refresh(self) -> float:
        """Ask anew: milliseconds of the gateway's processor."""
        begin, since, self.said_ms = cpu_ms(self.gateway), time.perf_counter(), 0.0
        for question in self.polled:
            headers = {"if-none-match": self.tags[question]} if question in self.tags else {}
            answer = self.client.get(f"/dashboard/api/{question}", headers=headers)
            assert answer.status_code in (200, 304), answer.text
            self.tags[question] = answer.headers.get("etag", "")
            self.said_ms += float(answer.headers.get("server-timing", "dur=0").partition("dur=")[2])
        return cpu_ms(self.gateway) - begin - self.own_ms_a_second * (time.perf_counter() - since)


def _make_a_call(client: httpx.Client) -> None:
    """One that the ledger has, and its sums too, as far as that is to be waited for."""
    body = {"model": "model-1", "messages": [{"role": "user", "content": "Hello"}]}
    made = client.post("/v1/chat/completions", json=body)
    client.get(f"/v1/calls/{made.headers['x-request-id']}?wait=10").raise_for_status()
    time.sleep(0.5)


def has_painted(url: str, selector: str) -> bool:
    """Whether a browser shows this on the first page; False where there is no browser."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        return False
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(f"{url}/dashboard")
        page.locator(selector).first.wait_for()
        browser.close()
    return True


def measure_paint(gateway: Gateway, repeat: int) -> None:
    """In Chromium, each time anew."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        chromium = None
    if chromium is None:
        print("no Chromium, or no Playwright: when a page is painted is not measured")
        return
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        found = []
        weight = 0
        for _ in range(repeat):
            context = browser.new_context(base_url=gateway.url)
            page = context.new_page()
            sizes: list[int] = []
            page.on("requestfinished", lambda request, sizes=sizes: sizes.append(request.sizes()["responseBodySize"]))
            page.goto("/dashboard")
            page.locator("canvas").nth(5).wait_for()
            found.append(page.evaluate(_SAID))
            weight = sum(sizes)
            context.close()
        browser.close()
    best = min(found, key=lambda one: one["figures"])
    print(
        f"Chromium: first paint after {best['paint']:.0f} ms, charts after {best['figures']:.0f} ms, "
        f"{weight / 1024:.0f} KiB in all (best of {json.dumps(repeat)})"
    )


def main() -> None:
    """Print tables."""
    begin_us = int(time.time() - DAYS * 86400) * 10**6
    with filled_ledger(__doc__, begin_us) as (path, repeat), running_gateway(POLICY.format(path=path)) as gateway:
        with httpx.Client(base_url=gateway.url, timeout=60) as client:
            measure_questions(client, repeat)
            measure_cpu(client, gateway, repeat)
        measure_paint(gateway, repeat)


if __name__ == "__main__":
    main()
