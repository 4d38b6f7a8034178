"""How long the dashboard's questions take over many rows, what an open page costs, and when a browser has painted it.

    python -m tests.benchmarks.gateway.dashboard [--rows 10000000] [--repeat 5]

A SQLite file with calls of the last 30 days, 200 keys, 20 tenants and 3 models, in a folder of the system's (3 GiB for
ten million rows), behind a gateway. Times of questions are a client's, over loopback; CPU is the gateway's.
"""

from __future__ import annotations

import json
import os
import shutil
import time
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
_POLLED = ("overview?range=7d", "backends?range=7d", "budgets")
_SAID = """
() => {
  const paint = performance.getEntriesByType('paint').find(entry => entry.name === 'first-contentful-paint');
  return {paint: paint.startTime, figures: performance.now()};
}
"""


def cpu_ms(gateway: Gateway) -> float:
    """Of the gateway's process, since its start."""
    fields = Path(f"/proc/{gateway.process.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * 1000 / os.sysconf("SC_CLK_TCK")


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
    """Of a page that asks anew: where calls have come by since, and where none have."""
    tags = {question: client.get(f"/dashboard/api/{question}").headers.get("etag", "") for question in _POLLED}
    for name, known in (("of new figures", {}), ("where nothing is new", tags)):
        begin = cpu_ms(gateway)
        for question in _POLLED * repeat * 4:
            headers = {"if-none-match": known.get(question, "")}
            assert client.get(f"/dashboard/api/{question}", headers=headers).status_code in (200, 304)
        print(f"CPU {name}: {(cpu_ms(gateway) - begin) / repeat / 4:.1f} ms a refresh, one a minute at 7 days")
    begin = cpu_ms(gateway)
    time.sleep(5)
    print(f"CPU of the gateway by itself: {(cpu_ms(gateway) - begin) * 12:.0f} ms a minute")


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
