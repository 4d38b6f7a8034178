"""Feed-forward blocks of which each token takes a few: the twin by the kernel's cases, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kernels.checks import KernelInputError
from kernels.exactness import for_twin
from kernels.operation import Case
from kernels.products.checks import check_experts
from kernels.products.moe import moe_reference
from kernels.products.moe_cases import Experts, build_moe, moe_cases
from kernels.rows.act import gated_activation_reference
from tests.support.kernels.kernel_errors import assert_close

CPU = torch.device("cpu")
CASES = {case.name: case for case in moe_cases() if not case.is_real}
PLAIN = Experts(4, 3, 2, 8, 6, dtype=torch.float32)


def token_by_token(x: Tensor, gate_up: Tensor, down: Tensor, shares: Tensor, chosen: Tensor, kind: str) -> Tensor:
    """The same, as it is defined."""
    out = torch.zeros_like(x)
    for token, (weights, experts) in enumerate(zip(shares.tolist(), chosen.tolist(), strict=True)):
        for share, expert in zip(weights, experts, strict=True):
            inner = gated_activation_reference((gate_up[expert] @ x[token])[None], kind)[0]
            out[token] += share * (down[expert] @ inner)
    return out


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_twin_equals_each_token_by_itself(case: Case) -> None:
    """In its own type within its rounding, and in float64."""
    arguments = case.build(CPU)
    exact = token_by_token(**for_twin(arguments, exact=True))

    assert_close(moe_reference(**arguments), exact, slack=4)
    torch.testing.assert_close(moe_reference(**for_twin(arguments, exact=True)), exact, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("shape", [PLAIN, replace(PLAIN, is_gapped=True), replace(PLAIN, num_tokens=0)])
def test_check_experts_right_arguments_pass(shape: Experts) -> None:
    """Packed or not, or no tokens at all."""
    arguments = build_moe(shape, CPU)
    del arguments["kind"]

    check_experts(**arguments)


@pytest.mark.parametrize(
    ("name", "change", "expected"),
    [
        ("x", lambda x: x.double(), "float32, not float64"),
        ("x", lambda x: x.T, r"without gaps"),
        ("down", lambda down: down.half(), "float32, not float16"),
        ("down", lambda down: down[:, :4], r"\[any, 8, any\], not \[3, 4, 6\]"),
        ("down", lambda down: down[:0], "1 to 1024 experts, not 0"),
        ("gate_up", lambda gate_up: gate_up[:, :6], r"\[3, 12, 8\], not \[3, 6, 8\]"),
        ("chosen", lambda chosen: chosen.int(), "int64, not int32"),
        ("chosen", lambda chosen: chosen[:2], r"\[4, any\]"),
        ("chosen", lambda chosen: chosen.repeat(1, 2), "1 to 3 experts a token, not 4"),
        ("chosen", lambda chosen: chosen + 3, "from 0 to 2"),
        ("chosen", lambda chosen: chosen - 3, "from 0 to 2"),
        ("shares", lambda shares: shares[:, :1], r"\[4, 2\], not \[4, 1\]"),
        ("shares", lambda shares: shares.bfloat16(), "float32, not bfloat16"),
        ("shares", lambda shares: shares.to("meta"), "on cpu, not meta"),
    ],
)
def test_check_experts_wrong_argument_is_named(name: str, change: Callable[[Tensor], Tensor], expected: str) -> None:
    """The message names the argument, what it must be and what it is."""
    arguments = build_moe(PLAIN, CPU)
    del arguments["kind"]

    with pytest.raises(KernelInputError, match=expected) as caught:
        check_experts(**arguments | {name: change(arguments[name])})

    assert caught.value.argument == name
