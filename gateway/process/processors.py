"""How many processors this process really has: its affinity, the cores behind it, and the quota of its container."""

from __future__ import annotations

import os
from pathlib import Path

_CPUS = Path("/sys/devices/system/cpu")
_GROUPS = Path("/sys/fs/cgroup")
_OWN_GROUPS = Path("/proc/self/cgroup")


def threads_for(num_processes: int, num_available: int) -> int:
    """Threads that a model gets in each of `num_processes` on so many processors; one at least.

    One processor is left to the event loop and to others: threads that share a layer wait for the slowest of them, so
    that a single neighbour on the last core takes its share of all.
    """
    return max(1, (num_available - 1) // num_processes)


def available_processors(*, cpus: Path = _CPUS, groups: Path = _GROUPS, own_groups: Path = _OWN_GROUPS) -> int:
    """Physical cores that this process may run on, and no more than the time that its control groups give it.

    The folders and the file are the kernel's; where they do not tell (elsewhere than on Linux), every processor counts.
    """
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    cores = {_read(cpus / f"cpu{number}/topology/thread_siblings_list") or str(number) for number in allowed}
    quotas = [quota for path in _own_folders(groups, own_groups) if (quota := _quota(path)) is not None]
    return max(1, int(min([len(cores), *quotas])))


def _own_folders(groups: Path, own_groups: Path) -> list[Path]:
    """The control groups of this process, each with those above it; in a container the root is often its own."""
    folders = {groups, groups / "cpu"}
    for line in (_read(own_groups) or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers or "cpu" in controllers.split(","):
            folder = groups / ("cpu" if controllers else "") / path.strip("/")
            folders |= {folder, *(parent for parent in folder.parents if groups in parent.parents)}
    return sorted(folders)


def _quota(folder: Path) -> float | None:
    """Processors that a control group may use, of either version; None without a limit."""
    limit = (_read(folder / "cpu.max") or "").split()
    if not limit:
        limit = [_read(folder / name) or "" for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us")]
    if len(limit) < 2 or not all(number.isdigit() for number in limit) or not int(limit[1]):
        return None
    return int(limit[0]) / int(limit[1])


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return None
