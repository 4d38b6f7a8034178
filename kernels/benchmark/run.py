"""One run of the benchmark on a GPU: every result checked, then every real case timed with its peers beside it."""

from __future__ import annotations

import platform
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial

import torch
import triton  # type: ignore[import-untyped, import-not-found, unused-ignore]

from kernels.benchmark.bars import BARS
from kernels.benchmark.checking import check_all, is_usable
from kernels.benchmark.figures import BenchmarkRun, Measurement
from kernels.benchmark.peers import peers_of
from kernels.benchmark.progress import Progress
from kernels.benchmark.timing import copy_gb_per_s, count_copies, time_us
from kernels.dispatch import load_ops
from kernels.jit import run as launch_all
from kernels.operation import Case, Op

DEVICE = torch.device("cuda")


def run(names: Sequence[str], *, seconds: float) -> BenchmarkRun:
    """Measures the operations of these names; what bars are asked of comes first, and nothing more after `seconds`."""
    ops = [op for op in load_ops() if op.name in names]
    cases = [(op, case) for op in ops for case in op.cases()]
    real = sorted(((op, case) for op, case in cases if case.is_real), key=lambda pair: not _has_bar(*pair))
    began = time.monotonic()
    problems: dict[tuple[str, str], str] = {}
    with Progress(len(cases) + 1 + len(real)) as progress, torch.no_grad():
        for op_name, case_name, problem in check_all([(op.name, case.name) for op, case in cases], DEVICE.type):
            progress.step(f"checked {op_name} {case_name}")
            if problem is not None:
                problems[op_name, case_name] = problem
        progress.step("copying memory")
        copying = copy_gb_per_s(DEVICE)
        measured: dict[tuple[str, str], Measurement] = {}
        deadline = began + seconds
        for op, case in real:
            progress.step(f"timing {op.name} {case.name}")
            name = op.name, case.name
            # What computes nonsense may also reach where it must not, and take the device along.
            reason = "its result is wrong" if name in problems else _stopped(deadline)
            if reason is None:
                measured[name] = _measured(op, case, deadline)
            else:
                notes = (f"not timed: {reason}",)
                measured[name] = Measurement(op=op.name, case=case.name, problem=problems.get(name), notes=notes)
    return BenchmarkRun(
        device=_device(),
        copy_gb_per_s=copying,
        measurements=tuple(measured[op.name, case.name] for op, case in cases if case.is_real),
        num_checked=len(cases),
        problems=tuple((*name, problem) for name, problem in problems.items()),
    )


def _stopped(deadline: float) -> str | None:
    """Why nothing more can be timed, if so. Frees the memory of what was timed before."""
    if time.monotonic() >= deadline:
        return "the run had taken its time"
    return None if is_usable() else "the GPU no longer answers, because of what was timed before"


def _measured(op: Op, case: Case, deadline: float) -> Measurement:
    """The time of one case, and of its peers. What cannot be run is told and ends nothing else."""
    try:
        first = case.build(DEVICE)
        cost = op.cost(first)
        copies = count_copies(cost.num_bytes, torch.cuda.get_device_properties(DEVICE).L2_cache_size)
        arguments = [first, *(case.build(DEVICE) for _ in range(copies - 1))]
        prepared = [op.prepare(**each) for each in arguments]
        us = time_us([partial(launch_all, launches) for _, launches in prepared])
    # What one kernel cannot do must not end the whole run.
    except Exception as error:
        return Measurement(op=op.name, case=case.name, notes=(_failure("the kernel", error),))
    peers_us, notes = {}, []
    for name, make in peers_of(op.name, first, compiled=_has_bar(op, case)).items():
        if reason := _stopped(deadline):
            notes.append(f"{name} not timed: {reason}")
            continue
        try:
            peers_us[name] = time_us(make(arguments))
        # A peer of another version may fail in any way.
        except Exception as error:
            notes.append(_failure(name, error))
    return Measurement(
        op=op.name,
        case=case.name,
        us=us,
        num_bytes=cost.num_bytes,
        num_operations=cost.num_operations,
        peers_us=peers_us,
        notes=tuple(notes),
    )


def _has_bar(op: Op, case: Case) -> bool:
    return any((bar.op, bar.case) == (op.name, case.name) for bar in BARS)


def _failure(who: str, error: Exception) -> str:
    line = (str(error).strip().splitlines() or [""])[0][:160]
    return f"{who} could not be measured: {type(error).__name__}: {line}"


def _device() -> dict[str, object]:
    return {
        "GPU": torch.cuda.get_device_name(DEVICE),
        "torch": torch.__version__,
        "CUDA": torch.version.cuda,
        "triton": triton.__version__,
        "Python": platform.python_version(),
        "on": datetime.now(UTC).date().isoformat(),
    }
