"""The kernels' cases: the torch twins against attention in float64 here, the kernels in a process of their own."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from kernels.attention.cases import decode_cases, prefill_cases, shared_cases
from kernels.attention.paged_attention import paged_attention_reference
from kernels.exactness import for_twin
from kernels.operation import Case
from tests.support.kernels.apart import needs_triton, run_apart
from tests.support.kernels.kernel_errors import assert_close
from tests.support.kernels.naive_attention import naive_paged_attention

CASES = {
    f"{name}-{case.name}": case
    for name, cases in (("decode", decode_cases()), ("prefill", prefill_cases()), ("shared", shared_cases()))
    for case in cases
    if not case.is_real
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_twin_equals_attention_in_float64(case: Case) -> None:
    """What the kernels are compared with is itself right, in its own types and in float64."""
    arguments = case.build(torch.device("cpu"))
    # Which pages are shared is nothing to the twin.
    arguments.pop("shared", None)

    actual = paged_attention_reference(**for_twin(arguments))
    widened = paged_attention_reference(**for_twin(arguments, exact=True))

    exact = naive_paged_attention(**for_twin(arguments, exact=True))
    # Where a kernel sums in float32, the twin rounds scores and weights too.
    assert_close(actual, exact, rounding=case.rounding, slack=4)
    torch.testing.assert_close(widened, exact, rtol=1e-9, atol=1e-9)


@needs_triton
@pytest.mark.parametrize(
    "checks",
    [
        ("check_interpreter.py", "check_against_float64.py"),
        ("check_rows.py", "check_decoder.py", "check_matmul.py", "check_choice.py"),
    ],
    ids=["cases", "rows, decoder, products and choice"],
)
def test_kernels_equal_their_twins_in_float64(checks: tuple[str, ...], tmp_path: Path) -> None:
    """Every kernel and case in Triton's interpreter, which itself rounds as a GPU does: see `apart/`.

    Few processes, as each is seconds of imports.
    """
    run_apart(*checks, interpret=True, cache=tmp_path)
