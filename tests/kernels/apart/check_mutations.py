"""Planted mistakes in copies of the kernels: the check against float64 must see each. See `test_mutations.py`."""

from __future__ import annotations

import re
import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch

from kernels.dispatch import MODULES
from kernels.operation import Op
from tests.support.kernels.kernel_errors import assert_op_close
from tests.support.kernels.triton_interpreter import repair_interpreter
from tests.support.mistakes import attention, choice, matmul, rows
from tests.support.mistakes.mistake import Mistake

repair_interpreter()
KERNELS = Path(__file__).parent.parent.parent.parent / "kernels"


MISTAKES = [*attention.MISTAKES, *rows.MISTAKES, *matmul.MISTAKES, *choice.MISTAKES]


def planted(folder: Path, mistake: Mistake | None) -> str:
    """The name of a copy of all files with kernels, with the mistake in it; what they import beside is the original."""
    package = f"kernels_copy_{len(sys.modules)}"
    sources = {
        path.relative_to(KERNELS).with_suffix("").as_posix(): path.read_text(encoding="utf-8")
        for path in KERNELS.rglob("*.py")
    }
    copied = [name for name, source in sources.items() if "from kernels.jit import" in source]
    modules = "|".join(re.escape(name.replace("/", ".")) for name in copied)
    for name in copied:
        source = re.sub(rf"from kernels\.({modules}) import", rf"from {package}.\1 import", sources[name])
        if mistake is not None and name == mistake.file:
            assert source.count(mistake.right) == 1
            source = source.replace(mistake.right, mistake.wrong)
        copy = folder / package / f"{name}.py"
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(source, encoding="utf-8")
    return package


def check(package: str, name: str, case_name: str) -> None:
    """One case of an operation of the copy, as the check against float64 does it."""
    torch.use_deterministic_algorithms(True)
    op: Op = import_module(f"{package}.{MODULES[name]}").OP
    case = next(case for case in op.cases() if case.name == case_name)
    cpu = torch.device("cpu")
    assert_op_close(op, case.build(cpu), case.build(cpu), rounding=case.rounding)


@pytest.mark.parametrize("mistake", MISTAKES, ids=[mistake.name for mistake in MISTAKES])
def test_planted_mistake_is_seen(mistake: Mistake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check fails for the reason that the numbers are wrong."""
    monkeypatch.syspath_prepend(tmp_path)
    package = planted(tmp_path, mistake)

    with pytest.raises(AssertionError, match="is allowed"):
        check(package, mistake.op, mistake.case)


@pytest.mark.parametrize(("op", "case"), sorted({mistake.op: mistake.case for mistake in MISTAKES}.items()))
def test_copy_without_a_mistake_passes(op: str, case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the mistake that is seen, and not the copy; that the originals pass every case is checked elsewhere."""
    monkeypatch.syspath_prepend(tmp_path)

    check(planted(tmp_path, None), op, case)
