"""How many threads a model gets: from affinity, cores and the quota of a container, shared among the workers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.process.processors import available_processors, threads_for

NONE = Path("/nowhere")
SHOW = """
from gateway.settings import tame_threads
tame_threads(1)
import torch
print(torch.get_num_threads())
"""


def available(folder: Path, own: str = "0::/", files: dict[str, str] | None = None) -> int:
    """What a process in the group `own` has, on cores of its own, with these files of control groups."""
    for name, text in (files or {}).items():
        path = folder / "groups" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (folder / "own").write_text(own)
    return available_processors(cpus=NONE, groups=folder / "groups", own_groups=folder / "own")


@pytest.mark.parametrize(
    ("num_processes", "num_available", "expected"),
    [(1, 1, 1), (1, 2, 1), (1, 3, 2), (1, 4, 3), (1, 64, 63), (2, 2, 1), (2, 8, 3), (4, 2, 1), (3, 16, 5)],
)
def test_threads_for_shares_what_is_there(num_processes: int, num_available: int, expected: int) -> None:
    """All workers together have no more threads than there are processors, and each has one."""
    assert threads_for(num_processes, num_available) == expected


@pytest.mark.parametrize(
    ("own", "files"),
    [
        ("0::/", {"cpu.max": "100000 100000"}),
        ("0::/pod/box", {"pod/cpu.max": "150000 100000", "pod/box/cpu.max": "max 100000"}),
        ("2:cpu,cpuacct:/box\n0::/", {"cpu/box/cpu.cfs_quota_us": "100000", "cpu/box/cpu.cfs_period_us": "100000"}),
        ("2:cpu:/unseen", {"cpu/cpu.cfs_quota_us": "50000", "cpu/cpu.cfs_period_us": "100000"}),
    ],
    ids=["container", "group-above", "first-version", "less-than-one"],
)
def test_available_processors_are_bounded_by_the_quota_of_each_group(
    own: str, files: dict[str, str], tmp_path: Path
) -> None:
    """A container of one processor on a large machine has one, wherever its limit is written."""
    assert available(tmp_path, own, files) == 1


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"cpu.max": "max 100000"},
        {"cpu.max": "nonsense"},
        {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"},
    ],
    ids=["no-files", "no-limit", "unreadable", "no-limit-first-version"],
)
def test_available_processors_without_a_quota_are_those_allowed(files: dict[str, str], tmp_path: Path) -> None:
    """As many as the process may run on."""
    assert available(tmp_path, files=files) == len(os.sched_getaffinity(0))


def test_available_processors_count_cores_and_not_their_threads(tmp_path: Path) -> None:
    """Two hardware threads of one core multiply no faster than one."""
    for number in os.sched_getaffinity(0):
        topology = tmp_path / f"cpu{number}" / "topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text("0-255\n")

    assert available_processors(cpus=tmp_path, groups=NONE, own_groups=NONE) == 1


@pytest.mark.parametrize(
    ("given", "threads", "policy", "spins"),
    [
        ({}, "1", "PASSIVE", "0"),
        ({"OMP_NUM_THREADS": "2"}, "2", "PASSIVE", "0"),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, "1", "ACTIVE", None),
        ({"GOMP_SPINCOUNT": "500"}, "1", None, "500"),
    ],
    ids=["default", "own-number", "own-policy", "own-spins"],
)
def test_tame_threads_reaches_openmp_unless_the_environment_says_otherwise(
    given: dict[str, str], threads: str, policy: str | None, spins: str | None
) -> None:
    """OpenMP, asked what it was told, says so: threads that wait sleep at once."""
    openmp = ("OMP_", "GOMP_", "KMP_")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(openmp)}

    told = subprocess.run(
        [sys.executable, "-c", SHOW],
        env={**environ, "OMP_DISPLAY_ENV": "VERBOSE", **given},
        capture_output=True,
        check=True,
        text=True,
    )

    assert told.stdout.strip() == threads
    if "GOMP_SPINCOUNT" not in told.stderr:
        pytest.skip("PyTorch has another OpenMP than GNU's")
    assert policy is None or f"OMP_WAIT_POLICY = '{policy}'" in told.stderr
    assert spins is None or f"GOMP_SPINCOUNT = '{spins}'" in told.stderr


def test_tame_threads_leaves_numpys_products_one_thread_unless_the_environment_says_otherwise() -> None:
    """Of this process, and of those that it starts: the encoder's reads answers with small ones."""
    show = SHOW.split("import torch")[0] + "import os; print(os.environ['OPENBLAS_NUM_THREADS'])"
    environ = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    told = [
        subprocess.run([sys.executable, "-c", show], env=environ | given, capture_output=True, check=True, text=True)
        for given in ({}, {"OPENBLAS_NUM_THREADS": "3"})
    ]
    assert [each.stdout.strip() for each in told] == ["1", "3"]
