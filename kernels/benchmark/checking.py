"""The kernels' results against float64 on a device, several cases at once: the compiler is what takes the time."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool

import torch

from kernels.dispatch import load_ops
from kernels.exactness import op_complaint
from kernels.operation import Case, Op

_MOST_WORKERS = 6
"""A case may need tens of gigabytes in float64."""
_DIED = "not checked: a process that checks has died"


def check_all(cases: Sequence[tuple[str, str]], device_type: str) -> Iterator[tuple[str, str, str | None]]:
    """(operation, case, what is wrong or None) for each (operation, case), in no order.

    Works in processes of its own, which leave what they compiled in Triton's cache on the disk. What finds no room
    beside the others, or a device that one of them has upset, is tried again in a process that does nothing else.
    """
    workers = max(1, min(_MOST_WORKERS, (os.cpu_count() or 2) // 2))
    unsettled = []
    with _pool(workers) as pool:
        pending = {pool.submit(check_case, op, case, device_type): (op, case) for op, case in cases}
        for future in as_completed(pending):
            try:
                is_settled, problem = future.result()
            except BrokenProcessPool:
                is_settled, problem = True, _DIED
            if is_settled:
                yield *pending[future], problem
            else:
                unsettled.append(pending[future])
    for op, case in unsettled:
        with _pool(1) as pool:
            try:
                _, problem = pool.submit(check_case, op, case, device_type).result()
            except BrokenProcessPool:
                problem = _DIED
        yield op, case, problem


def _pool(workers: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"))


def check_case(op_name: str, case_name: str, device_type: str) -> tuple[bool, str | None]:
    """(whether that is about the case itself, what is wrong or None) for one case of one operation.

    Memory may be taken by others, and a device's failure is told to whoever asks next in the same process.
    """
    op, case = find_case(op_name, case_name)
    device = torch.device(device_type)
    try:
        if device.type == "cuda":
            # What the case before needed is free by now, and others want it.
            torch.cuda.empty_cache()
        with torch.no_grad():
            actual = op.launch(**case.build(device))
            return True, op_complaint(op, actual, case.build(device), rounding=case.rounding)
    except torch.OutOfMemoryError:
        return False, "not checked: float64 does not fit into the device's memory"
    # A kernel that does not compile must not end the whole run.
    except Exception as error:
        return device.type != "cuda" or is_usable(), f"{type(error).__name__}: {_first_line(error)}"


def is_usable() -> bool:
    """Whether the GPU still answers this process: after an illegal access it never does. Frees what nobody uses."""
    try:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    except RuntimeError:
        return False
    return True


def find_case(op_name: str, case_name: str) -> tuple[Op, Case]:
    """The operation and its case of these names. Raises StopIteration where there is none."""
    op = next(op for op in load_ops() if op.name == op_name)
    return op, next(case for case in op.cases() if case.name == case_name)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [""])[0][:200]
