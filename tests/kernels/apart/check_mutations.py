"""Planted mistakes in copies of the kernels: the check against float64 must see each. See `test_mutations.py`."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import pytest
import torch

from kernels.registry import Op
from tests.support.kernel_errors import assert_close, for_twin
from tests.support.triton_interpreter import repair_interpreter

repair_interpreter()
KERNELS = Path(__file__).parent.parent.parent.parent / "kernels"


@dataclass(frozen=True)
class Mistake:
    """`right` in a kernel's file becomes `wrong`, which `case` of `op` has to show."""

    name: str
    file: str
    right: str
    wrong: str
    op: str
    case: str


MISTAKES = [
    Mistake("sees one less", "attend", "at[None, :] <= positions", "at[None, :] < positions", "paged_decode", "verify"),
    Mistake(
        "sees one more", "attend", "at[None, :] <= positions", "at[None, :] - 1 <= positions", "paged_prefill", "fp8"
    ),
    Mistake(
        "no window", "attend", "> positions[:, None] - WINDOW", "> positions[:, None] - 9999", "paged_decode", "window"
    ),
    Mistake(
        "wide window",
        "attend",
        "> positions[:, None] - WINDOW",
        ">= positions[:, None] - WINDOW",
        "paged_decode",
        "window",
    ),
    Mistake(
        "next page",
        "attend",
        "page = tl.sum(tl.where(numbers == number, ",
        "page = tl.sum(tl.where(numbers == number + 1, ",
        "paged_decode",
        "page-borders",
    ),
    Mistake(
        "stale values",
        "attend",
        "is_head, IS_MASKED, HEAD_DIM",
        "is_head, False, HEAD_DIM",
        "paged_decode",
        "page-borders",
    ),
    Mistake("no key scale", "attend", "(key_scale.to(tl.float32) * factor)[None, :]", "factor", "paged_decode", "int8"),
    Mistake(
        "no value scale",
        "attend",
        "weights *= value_scale.to(tl.float32)[None, :]",
        "weights *= 1.0",
        "paged_decode",
        "fp8",
    ),
    Mistake("scales of one page", "attend", "numbers == number + 1, ", "numbers == number, ", "paged_prefill", "int8"),
    Mistake("no fading", "attend", "total * fade[:, None]", "total", "paged_decode", "page-borders"),
    Mistake(
        "soft cap of half", "attend", "scores = cap - 2 * cap /", "scores = cap - cap /", "paged_prefill", "softcap"
    ),
    Mistake(
        "half a head",
        "attend",
        "is_head = dims < HEAD_DIM",
        "is_head = dims < HEAD_DIM // 2",
        "paged_decode",
        "odd-head",
    ),
    Mistake(
        "splits alike",
        "paged_decode",
        "tl.sum(state * share[:, None], 0)",
        "tl.sum(state, 0)",
        "paged_decode",
        "split-borders",
    ),
    Mistake("peak kept", "paged_decode", "peak = higher", "peak = peak", "paged_decode", "many-splits"),
    Mistake(
        "other heads",
        "paged_decode",
        "head * GROUP + rows % GROUP",
        "head * GROUP + rows // GROUP % GROUP",
        "paged_decode",
        "seven-to-one",
    ),
    Mistake(
        "unmasked too far",
        "paged_prefill",
        "whole_end = (earliest + 1) // PAGE",
        "whole_end = (earliest + PAGE) // PAGE",
        "paged_prefill",
        "whole-prompt",
    ),
    Mistake(
        "late window",
        "paged_prefill",
        "earliest - WINDOW + 1, 0) // PAGE",
        "earliest - WINDOW + PAGE, 0) // PAGE",
        "paged_prefill",
        "window",
    ),
    Mistake(
        "wrong sequence",
        "paged_prefill",
        "// QUERIES + numbers <= tile",
        "// QUERIES + numbers < tile",
        "paged_prefill",
        "ragged-mix",
    ),
    Mistake(
        "nothing skipped",
        "paged_decode",
        "start_split = tl.load(skipped + sequence)",
        "start_split = tl.load(skipped + sequence) + 1",
        "cascade",
        "split-and-a-half",
    ),
    Mistake(
        "another's table",
        "cascade",
        "page_table + first_member.to(tl.int64)",
        "page_table + (first_member - 1).to(tl.int64)",
        "cascade",
        "mixed-groups",
    ),
]


def planted(folder: Path, mistake: Mistake | None) -> str:
    """The name of a copy of all files with kernels, with the mistake in it; what they import beside is the original."""
    package = f"kernels_copy_{len(sys.modules)}"
    sources = {path.stem: path.read_text(encoding="utf-8") for path in KERNELS.glob("*.py")}
    copied = [name for name, source in sources.items() if "from kernels.jit import" in source]
    (folder / package).mkdir()
    for name in copied:
        source = re.sub(rf"from kernels\.({'|'.join(copied)}) import", rf"from {package}.\1 import", sources[name])
        if mistake is not None and name == mistake.file:
            assert source.count(mistake.right) == 1
            source = source.replace(mistake.right, mistake.wrong)
        (folder / package / f"{name}.py").write_text(source, encoding="utf-8")
    return package


def check(package: str, name: str, case_name: str) -> None:
    """One case of an operation of the copy, as the check against float64 does it."""
    torch.use_deterministic_algorithms(True)
    op: Op = import_module(f"{package}.{name}").OP
    case = next(case for case in op.cases() if case.name == case_name)
    arguments = case.build(torch.device("cpu"))
    assert_close(op.launch(**arguments), op.reference(**for_twin(arguments, exact=True)), rounding=case.rounding)


@pytest.mark.parametrize("mistake", MISTAKES, ids=[mistake.name for mistake in MISTAKES])
def test_planted_mistake_is_seen(mistake: Mistake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check fails for the reason that the numbers are wrong."""
    monkeypatch.syspath_prepend(tmp_path)
    package = planted(tmp_path, mistake)

    with pytest.raises(AssertionError, match="is allowed"):
        check(package, mistake.op, mistake.case)


@pytest.mark.parametrize(("op", "case"), sorted({(mistake.op, mistake.case) for mistake in MISTAKES}))
def test_copy_without_a_mistake_passes(op: str, case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the mistake that is seen, and not the copy."""
    monkeypatch.syspath_prepend(tmp_path)

    check(planted(tmp_path, None), op, case)
