"""Every kernel, in Triton's interpreter, against its torch twin in float64. Run by `test_against_float64.py`."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from kernels.attention.cascade_kernel import prepare_cascade
from kernels.attention.cases import AttentionShape, build, build_shared
from kernels.attention.decode_kernel import paged_decode, prepare_paged_decode
from kernels.attention.launch import paged_attention
from kernels.attention.paged_attention import paged_attention_reference
from kernels.attention.plan import AttentionPlan
from kernels.checks import KernelInputError
from kernels.dispatch import load_ops
from kernels.exactness import for_twin
from kernels.operation import Arguments, Case, Op
from kernels.paging import PAGE_SIZE, PagedKV
from tests.support.kernels.kernel_errors import assert_close, assert_op_close, exact_log_sums
from tests.support.kernels.triton_interpreter import repair_interpreter

repair_interpreter()
CPU = torch.device("cpu")
CASES = [(op, case) for op in load_ops() for case in op.cases() if not case.is_real]


@pytest.fixture(autouse=True)
def _poisoned_memory() -> None:
    """Memory that is not yet written to holds NaN, so that an entry that is left out shows."""
    torch.use_deterministic_algorithms(True)


@pytest.mark.parametrize(("op", "case"), CASES, ids=[f"{op.name}-{case.name}" for op, case in CASES])
def test_kernel_equals_its_twin_in_float64(op: Op, case: Case) -> None:
    """All of the kernel's result is within its type's rounding of the exact one, everywhere and on the whole."""
    # What is written in place is compared too, so either gets arguments of its own.
    assert_op_close(op, case.build(CPU), case.build(CPU), rounding=case.rounding)


@pytest.mark.parametrize(
    "sequences", [[(1, 100), (2, 65), (1, 0)], [(1, 700), (1, 30), (0, 5)]], ids=["whole", "split"]
)
def test_paged_decode_log_sums_are_those_of_the_scores(sequences: list[tuple[int, int]]) -> None:
    """The logarithm of the sum of e^score comes out for every head, -inf where a row sees nothing."""
    arguments = build(AttentionShape(sequences, num_heads=2, num_kv_heads=1), CPU)
    log_sums = torch.full(arguments["q"].shape[:2], math.nan)

    _, launches = prepare_paged_decode(**arguments, log_sums=log_sums)
    for launch in launches:
        launch()

    expected = exact_log_sums(arguments["q"], arguments["kv"], arguments["plan"], scale=arguments["scale"])
    torch.testing.assert_close(log_sums.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bf16"])
def test_paged_attention_sequence_alone_equals_itself_among_others(dtype: torch.dtype) -> None:
    """A decoding row's bits are the same alone, in a longer batch, and beside a prompt."""
    shape = AttentionShape([(1, 600), (1, 530), (12, 40)], num_heads=2, num_kv_heads=1, dtype=dtype)
    arguments = build(shape, CPU)
    plan = arguments["plan"]
    beside_a_prompt = paged_attention(**arguments)

    for count in (1, 2):
        first = AttentionPlan(
            plan.page_table[:count], plan.query_starts[: count + 1], plan.kv_lengths[:count], 1, plan.max_kv
        )
        alone = paged_attention(**{**arguments, "q": arguments["q"][:count], "plan": first})
        assert torch.equal(alone, beside_a_prompt[:count])


@pytest.mark.parametrize(
    "sequences",
    [[(1, 100), (40, 90), (3, 70), (1, 0), (0, 20)], [(9, 9), (9, 30)], [(12, 12)]],
    ids=["mixed", "prompts-of-one-length", "alone"],
)
def test_paged_attention_any_step_equals_its_twin_in_float64(sequences: list[tuple[int, int]]) -> None:
    """Whichever kernels a step is made of, every row is written, once, and right."""
    arguments = build(AttentionShape(sequences, num_heads=2, num_kv_heads=1, dtype=torch.bfloat16), CPU)

    actual = paged_attention(**arguments)

    assert_close(actual, paged_attention_reference(**for_twin(arguments, exact=True)))


def test_paged_attention_of_shared_pages_equals_its_twin_in_float64() -> None:
    """A plan that tells what is shared is followed, but not where a window hides it."""
    shape = AttentionShape(
        [(1, 20), (1, 530), (2, 600)], num_heads=2, num_kv_heads=1, dtype=torch.bfloat16, num_shared=8
    )
    arguments = build_shared(shape, CPU)
    plan = replace(arguments["plan"], shared=arguments.pop("shared"))

    for window in (0, 65):
        step = {**arguments, "plan": plan, "window": window}
        assert_close(paged_attention(**step), paged_attention_reference(**for_twin(step, exact=True)))


@pytest.mark.parametrize("max_shared", [-1, 2])
def test_cascade_more_shared_than_all_have_is_refused(max_shared: int) -> None:
    """A second split would be read behind the end of the page table's row."""
    arguments = build_shared(AttentionShape([(1, 530), (1, 600)], num_heads=2, num_kv_heads=1, num_shared=8), CPU)

    with pytest.raises(KernelInputError, match="max_shared must be from 0 to 1 splits") as caught:
        prepare_cascade(**arguments | {"shared": replace(arguments["shared"], max_shared=max_shared)})

    assert caught.value.argument == "shared.max_shared"


def test_paged_decode_pages_beyond_two_to_the_31_are_found() -> None:
    """Addresses are computed in 64 bits: pages that begin 2^31 numbers into the pool are read where they are."""
    head_dim = 32
    num_pages = 2**31 // (PAGE_SIZE * head_dim) + 3
    # Reserved and not touched, but for the pages that are written to.
    torch.use_deterministic_algorithms(False)
    keys = torch.empty(num_pages, 1, PAGE_SIZE, head_dim, dtype=torch.int8)
    near = build(AttentionShape([(1, 100)], head_dim=head_dim, num_kv_heads=1, kv_dtype=torch.int8), CPU)
    kv, plan = near["kv"], near["plan"]
    scales = torch.empty(2, num_pages, 1, PAGE_SIZE, dtype=torch.float16)
    far_pages = [num_pages - 1, num_pages - 2]
    for page, far in zip(plan.page_table[0].tolist(), far_pages, strict=True):
        keys[far], scales[0, far], scales[1, far] = kv.keys[page], kv.key_scales[page], kv.value_scales[page]
    far_plan = AttentionPlan(torch.tensor([far_pages], dtype=torch.int32), plan.query_starts, plan.kv_lengths, 1, 100)

    far_out = paged_decode(near["q"], PagedKV(keys, keys, scales[0], scales[1]), far_plan, scale=0.2)

    twice = PagedKV(kv.keys, kv.keys, kv.key_scales, kv.value_scales)
    assert torch.equal(far_out, paged_decode(near["q"], twice, plan, scale=0.2))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["fp16", "bf16"])
def test_paged_decode_values_beside_an_outstanding_key_are_not_lost(dtype: torch.dtype) -> None:
    """In half precision a weight of e^-11 times a small scale is too small to hold; a thousand of them matter."""
    arguments: Arguments = build(
        AttentionShape([(1, 1024)], num_heads=1, num_kv_heads=1, dtype=dtype, kv_dtype=torch.int8), CPU
    )
    kv, first = arguments["kv"], int(arguments["plan"].page_table[0, 0])
    arguments["q"].fill_(1.0)
    kv.keys.zero_()
    kv.keys[first, 0, 0] = 1
    kv.key_scales.fill_(11 / 4)
    kv.values.abs_()
    kv.values[first, 0, 0] = 0
    kv.value_scales.fill_(2.0**-10)

    actual = paged_decode(**arguments)

    assert_close(actual, paged_attention_reference(**for_twin(arguments, exact=True)), rounding=torch.bfloat16)


@pytest.mark.parametrize("kv_dtype", [torch.int8, torch.float8_e4m3fn], ids=["int8", "fp8"])
def test_paged_decode_of_numbers_that_half_precision_lacks(kv_dtype: torch.dtype) -> None:
    """Pages of eight bits are multiplied in half precision: queries beyond it and far beneath it come out all the same,
    and so do values of which some have a scale of nothing, where the likeliest key is, and others a large one.
    """
    shape = AttentionShape([(1, 100), (1, 70)], num_heads=2, num_kv_heads=1, dtype=torch.bfloat16, kv_dtype=kv_dtype)
    arguments = build(shape, CPU)
    kv, pages = arguments["kv"], arguments["plan"].page_table
    arguments["q"][0] *= 1e6
    arguments["q"][1] *= 1e-8
    kv.key_scales[pages[0, :2].long()] *= 1e-3
    arguments["scale"] = 1e-3
    kv.value_scales[pages[0, :2].long()] *= 100.0
    first = int(pages[0, 0])
    kv.key_scales[first, 0, 5] *= 100.0
    kv.value_scales[first, 0, 5] = 0.0

    actual = paged_decode(**arguments)

    assert_close(actual, paged_attention_reference(**for_twin(arguments, exact=True)), rounding=torch.bfloat16)


@pytest.mark.parametrize("scale", [1e-6, 40.0], ids=["flat", "sharp"])
def test_paged_attention_extreme_scores_stay_finite(scale: float) -> None:
    """Scores near nothing or in the hundreds bring no overflow."""
    arguments = {**build(AttentionShape([(1, 100), (10, 64)], num_heads=2, num_kv_heads=1), CPU), "scale": scale}

    actual = paged_attention(**arguments)

    exact = paged_attention_reference(**for_twin(arguments, exact=True))
    torch.testing.assert_close(actual.double(), exact, rtol=1e-3, atol=1e-3)


def test_paged_decode_neighbour_of_nan_is_untouched() -> None:
    """A sequence whose own keys are NaN spoils its own rows and no other's."""
    arguments = build(AttentionShape([(1, 100), (1, 110), (1, 128)], num_heads=2, num_kv_heads=1), CPU)
    clean = paged_decode(**arguments)
    page = int(arguments["plan"].page_table[1, 0])
    arguments["kv"].keys[page] = math.nan

    out = paged_decode(**arguments)

    assert out[1].isnan().all()
    assert torch.equal(out[[0, 2]], clean[[0, 2]])
