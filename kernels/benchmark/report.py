"""A run of the benchmark as a table for people, and as JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from kernels.benchmark.bars import BarVerdict
from kernels.benchmark.figures import BenchmarkRun, Measurement

_MET = {True: "met", False: "MISSED", None: "not measured"}
_HEAD = ("", "us", "GB/s", "TFLOP/s", "of copy")


def as_text(run: BenchmarkRun, verdicts: Sequence[BarVerdict]) -> str:
    """What it ran on, a line for each measurement with its bars under it, and what was wrong."""
    rows = [_HEAD, *(_row(measurement, run.copy_gb_per_s) for measurement in run.measurements)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    lines = [
        ", ".join(f"{name} {value}" for name, value in run.device.items()),
        f"Copy: {run.copy_gb_per_s:.0f} GB/s read and written. {run.num_checked} results checked against float64.",
        "",
        _line(_HEAD, widths),
    ]
    for row, measurement in zip(rows[1:], run.measurements, strict=True):
        lines.append(f"{_line(row, widths)}  {_beside(measurement)}".rstrip())
        lines += [
            f"    {verdict.bar.text}: {_shown(verdict)}"
            for verdict in verdicts
            if (verdict.bar.op, verdict.bar.case) == (measurement.op, measurement.case)
        ]
        lines += [f"    {note}" for note in measurement.notes]
    counts = {met: sum(verdict.is_met is met for verdict in verdicts) for met in (True, False, None)}
    lines += ["", f"Bars, made for an H200: {counts[True]} met, {counts[False]} missed, {counts[None]} not measured."]
    lines += [f"WRONG {op} {case}: {problem}" for op, case, problem in run.problems]
    return "\n".join(lines)


def as_json(run: BenchmarkRun, verdicts: Sequence[BarVerdict]) -> str:
    """The same for programs."""
    measurements = [
        asdict(measurement) | {"gb_per_s": measurement.gb_per_s, "tflop_per_s": measurement.tflop_per_s}
        for measurement in run.measurements
    ]
    bars = [
        {
            "op": verdict.bar.op,
            "case": verdict.bar.case,
            "asked": verdict.bar.text,
            "value": verdict.value,
            "is_met": verdict.is_met,
        }
        for verdict in verdicts
    ]
    problems = [{"op": op, "case": case, "problem": problem} for op, case, problem in run.problems]
    whole = {
        "device": dict(run.device),
        "copy_gb_per_s": run.copy_gb_per_s,
        "num_checked": run.num_checked,
        "problems": problems,
        "measurements": measurements,
        "bars": bars,
    }
    return json.dumps(whole, indent=2)


def _row(measurement: Measurement, copy_gb_per_s: float) -> tuple[str, ...]:
    name, rate, speed = f"{measurement.op} {measurement.case}", measurement.gb_per_s, measurement.tflop_per_s
    if measurement.us is None or rate is None or speed is None:
        return (name, "-", "-", "-", "-")
    return (name, f"{measurement.us:.1f}", f"{rate:.0f}", f"{speed:.3g}", f"{rate / copy_gb_per_s:.0%}")


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    first, *others = (f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True))
    return "  ".join([f"{first.strip():<{widths[0]}}", *others])


def _beside(measurement: Measurement) -> str:
    if measurement.us is None:
        return ""
    return ", ".join(f"{name} {us / measurement.us:.2f} x the time" for name, us in measurement.peers_us.items())


def _shown(verdict: BarVerdict) -> str:
    value = "" if verdict.value is None else f"{verdict.value:.2f}, "
    return f"{value}{_MET[verdict.is_met]}"
