"""The benchmark's figures as a table for people, and as JSON for programs."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from backends.engine.benchmark.figure import BenchmarkFigure

_PACKAGES = ("torch", "transformers", "ctranslate2", "xllamacpp")
_VERDICTS = {True: "holds", False: "missed", None: "-"}


def machine(threads: int) -> dict[str, object]:
    """What the figures were measured on: processor, load, threads, versions."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": threads,
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in _PACKAGES},
    }


def as_text(figures: Sequence[BenchmarkFigure], on: dict[str, object]) -> str:
    """A head that tells the machine, and a line for each figure with its detail under it."""
    packages = on["packages"]
    assert isinstance(packages, dict)
    told = ", ".join(f"{name} {found}" for name, found in packages.items() if found)
    lines = [
        f"{on['processor']}, {on['cores']} cores, {on['threads']} threads for everyone, load {on['load']} at the start",
        f"Python {on['python']}, {told}",
        "",
    ]
    width = max((len(figure.name) for figure in figures), default=0)
    lines.append(f"{'':<{width}}  {'asked':>9}  {'measured':>13}")
    for figure in figures:
        verdict = _VERDICTS[figure.holds]
        lines.append(f"{figure.name:<{width}}  {figure.asked:>9}  {figure.measured:>13}  {verdict}".rstrip())
        if figure.detail:
            lines.append(f"  {figure.detail}")
    return "\n".join(lines)


def as_json(figures: Sequence[BenchmarkFigure], on: dict[str, object]) -> str:
    """The same for programs."""
    return json.dumps({"machine": on, "figures": [asdict(figure) for figure in figures]}, indent=2)


def _processor() -> str:
    information = Path("/proc/cpuinfo")
    if information.is_file():
        for line in information.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
