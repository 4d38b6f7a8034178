"""What the gateway costs: runs the gateway_bench harness with the gateway beside nginx and the Rust routers.

    python -m tests.benchmarks.gateway.cost --harness DIR --peers DIR --repeat 3

The harness keeps its targets beside itself, so it is copied to a temporary folder and the gateway's are added there.
The main figure is CPU time of the whole process tree. Where processors are shared with strangers even that moves by
half from one second to the next, and the load generator, which does the same work in every run, moves with it: its
cost tells the calm runs, and only those are counted.
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[3]
_POLICY = """\
version: 1
backends:
  up: {{type: openai, base_url: "{{mock}}/v1", api_key: "env:UPSTREAM_KEY"}}
  other: {{type: openai, base_url: "{{mock}}/v1", api_key: "env:UPSTREAM_KEY"}}
keys:
  - {{name: bench, key: "env:GATEWAY_KEY"}}
routes:
  - name: all
    match: {{models: ["mock-model"]}}
    backends: [{backends}]
{extra}"""
_SLO = "    routing: {policy: predicted_cost}\n    slo: {}\n    admission: {}\n"
_CACHE = "    cache: {scope: tenant, exact: {ttl: 1h}}\n"
_SCENARIOS = "json,json50k,stream,burst,srate10,slow100"
_CALM = 1.15
"""How much dearer than in the calmest run a request may be for the load generator."""
_PACKAGES = (
    "starlette",
    "uvicorn",
    "uvloop",
    "httptools",
    "httpx",
    "msgspec",
    "jiter",
    "prometheus-client",
    "pydantic",
)


def target(about: str, extra: str = "", *, backends: str = "{ref: up}", **more: Any) -> dict[str, Any]:
    """A target of the harness: the gateway with keys, a route, metrics, usage and the access log on."""
    return {
        "about": about,
        "cmd": [str(Path(sys.executable).with_name("slipstream")), "serve", "{tmp}/policy.yaml", "--port", "{port}"],
        "cwd": str(_ROOT),
        "files": {"policy.yaml": _POLICY.format(extra=extra, backends=backends)},
        "env": {"GATEWAY_KEY": "sk-test", "UPSTREAM_KEY": "sk-upstream"},
        "headers": {"authorization": "Bearer sk-test"},
        "ready": {"path": "/ready", "timeout": 60},
        **more,
    }


TARGETS = {
    "slipstream": target("auth, policy, metrics, usage and access log on; no cache"),
    "slipstream_hit": target("the exact cache, every request but the first a hit", _CACHE),
    "slipstream_miss": target("the exact cache, every request a miss", _CACHE, headers={
        "authorization": "Bearer sk-test", "cache-control": "no-cache"}),
    "slipstream_slo": target("balancing by predicted cost over two backends, limits and admission", _SLO,
        backends="{ref: up}, {ref: other}"),
}  # fmt: skip


def run(given: argparse.Namespace) -> list[Any]:
    """The harness' rows for what was asked on the command line; targets take turns, so that all meet the same hour."""
    with tempfile.TemporaryDirectory(prefix="gateway-cost-") as folder:
        copy = Path(folder, "harness")
        shutil.copytree(given.harness, copy)
        for path in [copy, *copy.rglob("*")]:
            path.chmod(0o755)
        for name, content in TARGETS.items():
            Path(copy, "targets", f"{name}.json").write_text(json.dumps(content))
        out = Path(folder, "rows.json")
        rows: list[Any] = []
        for _ in range(given.repeat):
            for name in given.targets.split(","):
                command = [sys.executable, "bench.py", "run", "--out", str(out), "--targets", name]
                command += ["--scenarios", given.scenarios, "--repeat", "1", "--port", str(given.port)]
                command += ["--tools", str(given.peers)] if given.peers is not None else []
                wait_for_calm(given.patience)
                subprocess.run(command, cwd=copy, check=True)
                rows += json.loads(out.read_text())
        return rows


def wait_for_calm(patience_s: float) -> None:
    """Until the same small job has taken about its shortest time for a second, nearly every time; or so long."""
    end = time.monotonic() + patience_s
    while time.monotonic() < end:
        times = sorted(_small_job_ns() for _ in range(500))
        if times[int(len(times) * 0.9)] <= times[0] * _CALM:
            return


def _small_job_ns() -> int:
    start = time.process_time_ns()
    total = 0
    for number in range(40_000):
        total += number * number % 7
    return time.process_time_ns() - start


def calm(rows: list[Any], name: str, scenario: str) -> list[Any]:
    """The repeats in which a request cost the load generator nearly as little as in the cheapest of them."""
    repeats = [row for row in rows if row["target"] == name and row.get("scenario") == scenario]
    least = min((row["load_us_per_req"] for row in repeats), default=0.0)
    return [row for row in repeats if row["load_us_per_req"] <= least * _CALM]


def values(rows: list[Any], *path: str) -> list[float]:
    """One figure of each row that has it."""
    found: list[Any] = list(rows)
    for key in path:
        found = [value[key] for value in found if value.get(key) is not None]
    return [float(value) for value in found]


def middle(rows: list[Any], name: str, scenario: str, *path: str) -> float | None:
    """The median of one figure over the calm repeats, None where it was not measured."""
    found = values(calm(rows, name, scenario), *path)
    return statistics.median(found) if found else None


def spread(rows: list[Any]) -> str:
    """A line per target and scenario: CPU time in every repeat, beside the load generator's in the same seconds."""
    lines = []
    for name, scenario in dict.fromkeys((row["target"], row.get("scenario")) for row in rows):
        repeats = [row for row in rows if row["target"] == name and row.get("scenario") == scenario]
        figure = "cpu_us_per_event" if scenario == "stream" else "cpu_us_per_req"
        found = values(repeats, figure)
        if len(repeats) > 1 and found:
            loads = values(repeats, "load_us_per_req")
            pairs = ", ".join(f"{value:.1f} ({load:.0f})" for load, value in sorted(zip(loads, found, strict=True)))
            lines.append(f"- {name}, {scenario}: {len(calm(rows, name, scenario))} calm of {pairs}")
    return "\n".join(lines)


def table(rows: list[Any]) -> str:
    """Markdown: one line per target, medians over the calm repeats."""
    columns = [
        ("CPU µs, 2 KB", "json", ("cpu_us_per_req",)),
        ("CPU µs, 50 KB", "json50k", ("cpu_us_per_req",)),
        ("CPU µs/event, 3,200/s", "stream", ("cpu_us_per_event",)),
        ("CPU µs, burst of 100 events", "burst", ("cpu_us_per_req",)),
        ("TTFT added p50, ms", "srate10", ("ttft_ms", "p50")),
        ("event lag added p99, ms", "srate10", ("event_lag_ms", "p99")),
        ("CPU µs, 100 in flight", "slow100", ("cpu_us_per_req",)),
        ("RSS peak, MiB", "json", ("mem", "hwm")),
    ]
    lines = [
        "| target | " + " | ".join(title for title, _, _ in columns) + " | errors |",
        "|---" * (len(columns) + 2) + "|",
    ]
    for name in dict.fromkeys(row["target"] for row in rows):
        cells = []
        for title, scenario, path in columns:
            value = middle(rows, name, scenario, *path)
            if value is not None and "added" in title:
                value -= middle(rows, "direct", scenario, *path) or 0.0
            if value is not None and "MiB" in title:
                value /= 1024
            cells.append("-" if value is None else f"{value:.2f}" if "added" in title else f"{value:.1f}")
        errors = sum(sum(row.get("errors", {}).values()) for row in rows if row["target"] == name)
        lines.append(f"| {name} | " + " | ".join(cells) + f" | {errors} |")
    return "\n".join(lines)


def machine() -> str:
    """One line: processor, interpreter, versions."""
    model = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        "",
    )
    versions = ", ".join(f"{name} {version(name)}" for name in _PACKAGES)
    return f"{model}, {platform.system()} {platform.release()}, Python {platform.python_version()}, {versions}"


def main() -> None:
    """Run and print; with --out also keep the rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--harness", type=Path, default=_ROOT.parent / "shared/tools/gateway_bench")
    parser.add_argument("--peers", type=Path, help="folder with v_vllmr/ and v_rust/, the Rust routers' environments")
    parser.add_argument("--targets", default="direct,nginx,slipstream,slipstream_hit,slipstream_miss")
    parser.add_argument("--scenarios", default=_SCENARIOS)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--patience", type=float, default=0.0, help="seconds to wait for a calm moment before each run")
    parser.add_argument("--port", type=int, default=20000)
    parser.add_argument("--out", type=Path, help="keep the harness' rows here")
    given = parser.parse_args()
    if not given.harness.is_dir():
        parser.error(f"{given.harness} is not there: name the folder of gateway_bench with --harness")
    rows = run(given)
    if given.out is not None:
        given.out.write_text(json.dumps(rows, indent=1))
    print(f"\n{machine()}\nmedians of the calm ones of {given.repeat} runs\n\n{table(rows)}")
    print(f"\nCPU µs in every run, calmest first (the load generator's, for a request)\n{spread(rows)}")


if __name__ == "__main__":
    main()
