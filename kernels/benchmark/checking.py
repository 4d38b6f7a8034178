"""The kernels' results against float64 on a device, several cases at once: the compiler is what takes the time."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool

import torch

from kernels.exactness import op_complaint
from kernels.registry import Case, Op, load_ops

_MOST_WORKERS = 6
"""A case may need tens of gigabytes in float64."""


def check_all(cases: Sequence[tuple[str, str]], device_type: str) -> Iterator[tuple[str, str, str | None]]:
    """(operation, case, what is wrong or None) for each (operation, case), in no order.

    Works in processes of its own, which leave what they compiled in Triton's cache on the disk. What finds no room
    beside the others is tried again alone.
    """
    workers = max(1, min(_MOST_WORKERS, (os.cpu_count() or 2) // 2))
    crowded = []
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        pending = {pool.submit(check_case, op, case, device_type): (op, case) for op, case in cases}
        for future in as_completed(pending):
            try:
                has_room, problem = future.result()
            except BrokenProcessPool:
                has_room, problem = True, "not checked: a process that checks has died"
            if has_room:
                yield *pending[future], problem
            else:
                crowded.append(pending[future])
    for op, case in crowded:
        has_room, problem = check_case(op, case, device_type)
        yield op, case, problem if has_room else "not checked: float64 does not fit into the device's memory"


def check_case(op_name: str, case_name: str, device_type: str) -> tuple[bool, str | None]:
    """(whether memory was enough, what is wrong or None) for one case of one operation."""
    op, case = find_case(op_name, case_name)
    device = torch.device(device_type)
    if device.type == "cuda":
        # What the case before needed is free by now, and others want it.
        torch.cuda.empty_cache()
    try:
        with torch.no_grad():
            actual = op.launch(**case.build(device))
            return True, op_complaint(op, actual, case.build(device), rounding=case.rounding)
    except torch.OutOfMemoryError:
        return False, None
    # A kernel that does not compile must not end the whole run.
    except Exception as error:
        return True, f"{type(error).__name__}: {_first_line(error)}"


def find_case(op_name: str, case_name: str) -> tuple[Op, Case]:
    """The operation and its case of these names. Raises StopIteration where there is none."""
    op = next(op for op in load_ops() if op.name == op_name)
    return op, next(case for case in op.cases() if case.name == case_name)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [""])[0][:200]
