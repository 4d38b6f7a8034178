"""What the gateway costs: runs the gateway_bench harness with the gateway beside nginx and the Rust routers.

    python -m tests.benchmarks.gateway_cost --harness DIR --peers DIR --repeat 3

The harness keeps its targets beside itself, so it is copied to a temporary folder and the gateway's are added there.
The main figure is CPU time of the whole process tree, which a busy machine hardly moves.
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
from importlib.metadata import version
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[2]
_POLICY = """\
version: 1
backends:
  up: {{type: openai, base_url: "{{mock}}/v1", api_key: "env:UPSTREAM_KEY"}}
keys:
  - {{name: bench, key: "env:GATEWAY_KEY"}}
routes:
  - name: all
    match: {{models: ["mock-model"]}}
    backends: [{{ref: up}}]
{extra}"""
_CACHE = "    cache: {scope: tenant, exact: {ttl: 1h}}\n"
_SCENARIOS = "json,json50k,stream,burst,srate10,slow100"
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


def target(about: str, extra: str = "", **more: Any) -> dict[str, Any]:
    """A target of the harness: the gateway with keys, a route, metrics, usage and the access log on."""
    return {
        "about": about,
        "cmd": [str(Path(sys.executable).with_name("slipstream")), "serve", "{tmp}/policy.yaml", "--port", "{port}"],
        "cwd": str(_ROOT),
        "files": {"policy.yaml": _POLICY.format(extra=extra)},
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
}  # fmt: skip


def run(harness: Path, peers: Path | None, names: list[str], scenarios: str, repeat: int, port: int) -> list[Any]:
    """The harness' rows for these targets."""
    with tempfile.TemporaryDirectory(prefix="gateway-cost-") as folder:
        copy = Path(folder, "harness")
        shutil.copytree(harness, copy)
        for path in [copy, *copy.rglob("*")]:
            path.chmod(0o755)
        for name, content in TARGETS.items():
            Path(copy, "targets", f"{name}.json").write_text(json.dumps(content))
        out = Path(folder, "rows.json")
        command = [sys.executable, "bench.py", "run", "--out", str(out), "--targets", ",".join(names)]
        command += ["--scenarios", scenarios, "--repeat", str(repeat), "--port", str(port)]
        command += ["--tools", str(peers)] if peers is not None else []
        subprocess.run(command, cwd=copy, check=True)
        rows: list[Any] = json.loads(out.read_text())
        return rows


def middle(rows: list[Any], name: str, scenario: str, *path: str) -> float | None:
    """The median over repeats of one figure, None where it was not measured."""
    found = []
    for row in rows:
        if row["target"] == name and row.get("scenario") == scenario:
            value: Any = row
            for key in path:
                value = value.get(key) if value is not None else None
            if value is not None:
                found.append(float(value))
    return statistics.median(found) if found else None


def table(rows: list[Any]) -> str:
    """Markdown: one line per target, medians over the repeats."""
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
    parser.add_argument("--port", type=int, default=20000)
    parser.add_argument("--out", type=Path, help="keep the harness' rows here")
    given = parser.parse_args()
    if not given.harness.is_dir():
        parser.error(f"{given.harness} is not there: name the folder of gateway_bench with --harness")
    rows = run(given.harness, given.peers, given.targets.split(","), given.scenarios, given.repeat, given.port)
    if given.out is not None:
        given.out.write_text(json.dumps(rows, indent=1))
    print(f"\n{machine()}\nmedian of {given.repeat} runs\n\n{table(rows)}")


if __name__ == "__main__":
    main()
