"""Norm, activation, and rotation with storing, in Triton's interpreter. Run by `test_against_float64.py`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.benchmark.checking import check_all, check_case
from kernels.checks import KernelInputError
from kernels.jit import launched
from kernels.operation import Arguments, tensors
from kernels.paging import PAGE_SIZE, PagedKV
from kernels.rows.act_kernel import gated_activation, prepare_gated_activation
from kernels.rows.norm_kernel import prepare_rms_norm, rms_norm
from kernels.rows.quantize_rows_kernel import prepare_quantize_rows
from kernels.rows.rope_cases import Projection, build_projection
from kernels.rows.rope_store_kernel import prepare_rope_store, rope_store
from tests.support.kernels.triton_interpreter import repair_interpreter

repair_interpreter()
CPU = torch.device("cpu")
FAR = 2**31
"""Numbers that no 32-bit address reaches beyond."""


def numbers(*shape: int, seed: int = 0) -> Tensor:
    """Normal numbers, float32."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def far_apart(rows: Tensor) -> Tensor:
    """The same two rows, FAR numbers from each other in memory that is reserved and not touched between them."""
    apart = torch.empty(FAR + rows.shape[1], dtype=rows.dtype).as_strided(rows.shape, (FAR, 1))
    return apart.copy_(rows)


def test_rms_norm_rows_beyond_two_to_the_31_are_found() -> None:
    """Addresses are computed in 64 bits."""
    x, residual, weight = numbers(2, 40).bfloat16(), numbers(2, 40, seed=1).bfloat16(), numbers(40).bfloat16()

    far = rms_norm(far_apart(x), weight, 1e-5, residual=far_apart(residual))

    for actual, expected in zip(far, rms_norm(x, weight, 1e-5, residual=residual), strict=True):
        assert torch.equal(actual, expected)


def test_gated_activation_rows_beyond_two_to_the_31_are_found() -> None:
    """Addresses are computed in 64 bits."""
    gate_up = numbers(2, 40).bfloat16()

    assert torch.equal(gated_activation(far_apart(gate_up), "silu"), gated_activation(gate_up, "silu"))


def test_rope_store_slots_and_rows_beyond_two_to_the_31_are_found() -> None:
    """Tokens are read and pages are written where they are, however far that is."""
    near = build_projection(Projection(2, head_dim=32, dtype=torch.bfloat16, kv_dtype=torch.int8), CPU)
    queries = rope_store(**near)
    kv, plan = near["kv"], near["plan"]
    num_pages = FAR // (kv.keys.shape[1] * PAGE_SIZE * 32) + 2
    scales = torch.empty(num_pages, 2, PAGE_SIZE, dtype=torch.float16)
    keys = torch.empty(num_pages, 2, PAGE_SIZE, 32, dtype=torch.int8)
    far_slots = (num_pages - 1) * PAGE_SIZE + torch.tensor([5, 63])

    far_queries = rope_store(
        **near
        | {
            "qkv": far_apart(near["qkv"]),
            "kv": PagedKV(keys, torch.empty_like(keys), scales, torch.empty_like(scales)),
            "plan": replace(plan, slots=far_slots),
        }
    )

    assert torch.equal(far_queries, queries)
    pages, places = plan.slots // PAGE_SIZE, plan.slots % PAGE_SIZE
    assert torch.equal(keys[-1][:, [5, 63]].transpose(0, 1), kv.keys[pages, :, places])
    assert torch.equal(scales[-1][:, [5, 63]].transpose(0, 1), kv.key_scales[pages, :, places])


def test_rows_alone_equal_themselves_among_others() -> None:
    """A row's bits are the same alone and beside another, even one that is NaN."""
    x, residual, weight = numbers(3, 100).bfloat16(), numbers(3, 100, seed=1).bfloat16(), numbers(100).bfloat16()
    x[0] = torch.nan

    normed, total = rms_norm(x, weight, 1e-5, residual=residual)
    activated = gated_activation(x, "gelu")

    alone, alone_total = rms_norm(x[1:2], weight, 1e-5, residual=residual[1:2])
    assert torch.equal(normed[1:2], alone)
    assert torch.equal(total[1:2], alone_total)
    assert torch.equal(activated[1:2], gated_activation(x[1:2], "gelu"))
    assert normed[0].isnan().all()


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn], ids=["int8", "fp8"])
def test_quantized_rows_of_zeros_and_of_great_numbers_stay_finite(dtype: torch.dtype) -> None:
    """Nothing is divided by zero, and nothing runs over."""
    x = torch.stack((torch.zeros(64), numbers(64) * 1e15))

    stored, scales = launched(prepare_quantize_rows)(x, dtype)

    assert scales.isfinite().all()
    assert (scales > 0).all()
    assert not stored[0].float().any()
    assert stored[1].float().abs().max() == (127 if dtype == torch.int8 else 448)


@pytest.mark.parametrize("kv_dtype", [torch.int8, torch.float8_e4m3fn], ids=["int8", "fp8"])
def test_rope_store_keys_of_zeros_have_a_scale(kv_dtype: torch.dtype) -> None:
    """A row of zeros is stored as such, with a scale that is a number above zero."""
    arguments = build_projection(Projection(1, dtype=torch.bfloat16, kv_dtype=kv_dtype), CPU)
    arguments["qkv"].zero_()
    slot = int(arguments["plan"].slots[0])

    rope_store(**arguments)

    kv = arguments["kv"]
    assert not kv.keys[slot // PAGE_SIZE, :, slot % PAGE_SIZE].float().any()
    assert (kv.key_scales[slot // PAGE_SIZE, :, slot % PAGE_SIZE] > 0).all()


X, WEIGHT = numbers(2, 16), torch.ones(16)


@pytest.mark.parametrize(
    ("arguments", "argument", "expected"),
    [
        ({"x": X.double()}, "x", "not float64"),
        ({"x": X[0]}, "x", r"of shape \[any, any\]"),
        ({"x": X.T}, "x", "without gaps"),
        ({"x": X[:, :0]}, "x", "one number or more"),
        ({"x": numbers(1, 16400)}, "x", "at most 16384"),
        ({"weight": WEIGHT[:8]}, "weight", r"of shape \[16\]"),
        ({"weight": WEIGHT.to("meta")}, "weight", "on cpu, not meta"),
        ({"residual": X[:1]}, "residual", r"of shape \[2, 16\]"),
        ({"residual": X.bfloat16()}, "residual", "float32, not bfloat16"),
    ],
)
def test_rms_norm_wrong_argument_is_named(arguments: Arguments, argument: str, expected: str) -> None:
    """The error says which one, what was expected and what came."""
    with pytest.raises(KernelInputError, match=expected) as raised:
        prepare_rms_norm(**{"x": X, "weight": WEIGHT, "eps": 1e-5} | arguments)

    assert raised.value.argument == argument


@pytest.mark.parametrize(
    ("arguments", "argument", "expected"),
    [
        ({"gate_up": X.int()}, "gate_up", "not int32"),
        ({"gate_up": X[:, :15]}, "gate_up", "even number"),
        ({"kind": "relu"}, "kind", "silu or gelu or gelu_tanh, not 'relu'"),
    ],
)
def test_gated_activation_wrong_argument_is_named(arguments: Arguments, argument: str, expected: str) -> None:
    """The error says which one, what was expected and what came."""
    with pytest.raises(KernelInputError, match=expected) as raised:
        prepare_gated_activation(**{"gate_up": X, "kind": "silu"} | arguments)

    assert raised.value.argument == argument


def plan_with(**changes: object) -> Callable[[Arguments], Arguments]:
    """Changes fields of the plan."""
    return lambda given: given | {"plan": replace(given["plan"], **changes)}


def kv_with(**changes: Any) -> Callable[[Arguments], Arguments]:
    """Changes fields of the pages."""
    return lambda given: given | {"kv": replace(given["kv"], **changes)}


@pytest.mark.parametrize(
    ("change", "argument", "expected"),
    [
        (lambda given: given | {"qkv": given["qkv"].double()}, "qkv", "not float64"),
        (lambda given: given | {"qkv": given["qkv"][:, :100]}, "qkv", "of rows of 128 numbers"),
        (lambda given: given | {"qkv": given["qkv"].bfloat16()}, "kv.keys", "bfloat16, not float32"),
        (lambda given: given | {"num_heads": 0}, "num_heads", "1 or more"),
        (lambda given: given | {"q_norm": torch.ones(16)}, "k_norm", "given, as the other's"),
        (lambda given: given | {"q_norm": torch.ones(8), "k_norm": torch.ones(16)}, "q_norm", r"of shape \[16\]"),
        (plan_with(cos_sin=torch.ones(2, 15)), "plan.cos_sin", "an even number from 2 to 16"),
        (plan_with(cos_sin=torch.ones(2, 18)), "plan.cos_sin", "an even number from 2 to 16"),
        (plan_with(cos_sin=torch.ones(3, 16)), "plan.cos_sin", r"of shape \[2, any\]"),
        (plan_with(slots=torch.tensor([0, 1], dtype=torch.int32)), "plan.slots", "int64, not int32"),
        (plan_with(slots=torch.tensor([0, 128])), "plan.slots", "below 128, not 128"),
        (plan_with(slots=torch.tensor([0, -2])), "plan.slots", "-1 for none, not -2"),
        (kv_with(value_scales=torch.ones(2, 2, 64).half()), "kv.key_scales", "given, as the other's"),
        (kv_with(values=torch.ones(2, 1, 64, 16)), "kv.values", r"of shape \[2, 2, 64, 16\]"),
    ],
)
def test_rope_store_wrong_argument_is_named(
    change: Callable[[Arguments], Arguments], argument: str, expected: str
) -> None:
    """The error says which one, what was expected and what came."""
    with pytest.raises(KernelInputError, match=expected) as raised:
        prepare_rope_store(**change(build_projection(Projection(2), CPU)))

    assert raised.value.argument == argument


def test_preparing_for_no_rows_has_nothing_to_run() -> None:
    """An empty step launches nothing, and the results have the right shapes."""
    normed, launches = prepare_rms_norm(X[:0], WEIGHT, 1e-5)
    activated, more = prepare_gated_activation(X[:0], "silu")
    rounded, none = prepare_quantize_rows(X[:0], torch.int8)
    stored, yet_more = prepare_rope_store(**build_projection(Projection(0), CPU))

    assert launches == more == none == yet_more == []
    shapes = [list(part.shape) for result in (normed, activated, rounded, stored[:1]) for part in tensors(result)]
    assert shapes == [[0, 16], [0, 16], [0, 8], [0, 16], [0], [0, 4, 16]]


def test_benchmark_checks_cases_in_processes_of_their_own() -> None:
    """Each case is answered for once, by its name; what cannot be built is told and ends nothing."""
    cases = [("norm", "odd-width"), ("act", "gelu"), ("rope_store", "unstored")]

    found = {(op, case): problem for op, case, problem in check_all(cases, "cpu")}

    assert found == dict.fromkeys(cases)


def test_benchmark_check_tells_what_a_kernel_raises() -> None:
    """A kernel that fails is a problem of its case; too little memory is none."""
    has_room, problem = check_case("norm", "odd-width", "meta")

    assert has_room
    assert problem is not None
