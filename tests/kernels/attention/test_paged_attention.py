"""The torch twin of paged attention against plain attention over contiguous keys, in float64."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.attention.paged_attention import GATHERED_BYTES, paged_attention_reference
from kernels.attention.plan import AttentionPlan
from kernels.paging import PagedKV
from kernels.products.w8 import quantize_w8
from tests.support.engine.paged import PagedStep, attend_plainly, paged_step

STEPS = {
    "decode": [(1, 100)],
    "first-token": [(1, 1)],
    "decode-batch": [(1, 100), (1, 65), (1, 128), (1, 127)],
    "page-borders": [(1, 63), (1, 64), (1, 65), (1, 128), (1, 129), (1, 1)],
    "verify": [(5, 70), (5, 66), (5, 5)],
    "verify-one": [(4, 130)],
    "whole-prompt": [(70, 70)],
    "chunk-after-prefix": [(30, 158)],
    "chunk-of-9": [(9, 64)],
    "ragged-mix": [(1, 300), (33, 97), (1, 3), (5, 64), (70, 70), (1, 310), (2, 129)],
    "many-pages": [(1, 400), (3, 330), (20, 385)],
    "padded-rows": [(1, 90), (1, 0), (1, 64), (1, 0)],
}
SHAPES = {"one-to-one": (3, 3, 16), "grouped": (4, 2, 16), "seven-to-one": (7, 1, 24)}


def relative_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """RMS error over the RMS of what was expected."""
    return float((actual.double() - expected).norm() / expected.norm())


@pytest.mark.parametrize("sequences", STEPS.values(), ids=STEPS.keys())
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize(
    ("window", "softcap"), [(0, 0.0), (40, 0.0), (0, 2.0), (65, 3.0)], ids=["full", "window", "softcap", "both"]
)
def test_paged_attention_scattered_pages_equal_contiguous_keys(
    sequences: list[tuple[int, int]], shape: tuple[int, int, int], window: int, softcap: float
) -> None:
    """Shuffled pages, NaN in every slot that was never written: the same numbers as over contiguous keys."""
    heads, kv_heads, head_dim = shape
    step = paged_step(sequences, num_heads=heads, num_kv_heads=kv_heads, head_dim=head_dim)

    out = paged_attention_reference(step.q, step.kv, step.plan, scale=0.3, window=window, softcap=softcap)

    expected = attend_plainly(step, scale=0.3, window=window, softcap=softcap)
    assert out.shape == step.q.shape
    assert out.is_contiguous()
    torch.testing.assert_close(out.double(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("sequences", STEPS.values(), ids=STEPS.keys())
def test_paged_attention_bf16_stays_near_float64(sequences: list[tuple[int, int]]) -> None:
    """In bf16 the error is that of the type, whichever road a group takes."""
    for heads, kv_heads in ((4, 4), (4, 2)):
        step = paged_step(sequences, num_heads=heads, num_kv_heads=kv_heads, dtype=torch.bfloat16)

        out = paged_attention_reference(step.q, step.kv, step.plan, scale=0.25)

        assert out.dtype == torch.bfloat16
        assert relative_error(out, attend_plainly(step, scale=0.25)) <= 1e-2


@settings(max_examples=40, deadline=None)
@given(
    sequences=st.lists(
        st.integers(0, 200).flatmap(lambda length: st.tuples(st.integers(0, min(length, 20)), st.just(length))),
        min_size=1,
        max_size=6,
    ).filter(lambda sequences: any(queries for queries, _ in sequences)),
    window=st.sampled_from((0, 1, 7, 64, 500)),
    seed=st.integers(0, 1000),
)
def test_paged_attention_any_step_equals_contiguous_keys(
    sequences: list[tuple[int, int]], window: int, seed: int
) -> None:
    """Whatever the step is made of, each row is the attention of its own sequence."""
    step = paged_step(sequences, seed=seed)

    out = paged_attention_reference(step.q, step.kv, step.plan, scale=0.25, window=window)

    expected = attend_plainly(step, scale=0.25, window=window)
    torch.testing.assert_close(out.double(), expected, rtol=1e-4, atol=1e-5)


def test_paged_attention_more_than_fits_at_once_equals_contiguous_keys() -> None:
    """Sequences of one length that are too many for one gather are attended in several, each row its own."""
    step = paged_step([(1, 65 + i % 3) for i in range(21)], num_heads=8, num_kv_heads=8, head_dim=64)
    bytes_of_a_sequence = 2 * step.kv.keys[0].nbytes
    assert 21 * bytes_of_a_sequence > 2 * GATHERED_BYTES

    out = paged_attention_reference(step.q, step.kv, step.plan, scale=0.1)

    torch.testing.assert_close(out.double(), attend_plainly(step, scale=0.1), rtol=1e-4, atol=1e-5)


def quantized_kv(step: PagedStep, dtype: torch.dtype) -> PagedKV:
    """The step's pages rounded to `dtype`, NaN scales where nothing was written."""
    parts = []
    for pages in (step.kv.keys, step.kv.values):
        rounded = quantize_w8(pages.flatten(0, 2).nan_to_num(), dtype)
        scales = torch.where(pages[..., 0].isnan(), math.nan, rounded.scales.view(pages.shape[:3]))
        parts.append((rounded.stored.view(pages.shape), scales.to(torch.float16)))
    (keys, key_scales), (values, value_scales) = parts
    return PagedKV(keys, values, key_scales, value_scales)


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn], ids=["int8", "fp8"])
@pytest.mark.parametrize("model_dtype", [torch.float32, torch.bfloat16], ids=["float32", "bf16"])
def test_paged_attention_quantized_pages_point_the_same_way(dtype: torch.dtype, model_dtype: torch.dtype) -> None:
    """int8 and fp8 pages, their unused scales NaN: the answer's cosine to the exact one is at least 0.999."""
    step = paged_step([(1, 100), (1, 65), (40, 150), (5, 70), (1, 0)], head_dim=32, dtype=model_dtype)

    out = paged_attention_reference(step.q, quantized_kv(step, dtype), step.plan, scale=0.18)

    expected = attend_plainly(step, scale=0.18)
    assert torch.cosine_similarity(out.double().flatten(), expected.flatten(), dim=0) >= 0.999
    assert out[-1].eq(0).all()


def test_paged_attention_neighbour_of_nan_is_untouched() -> None:
    """A sequence whose own keys are NaN spoils its own rows and no other's, though they are gathered together."""
    step = paged_step([(1, 100), (1, 110), (1, 128)])
    clean = paged_attention_reference(step.q, step.kv, step.plan, scale=0.25)
    page = int(step.plan.page_table[1, 0])
    step.kv.keys[page] = math.nan
    step.kv.values[page] = math.nan

    out = paged_attention_reference(step.q, step.kv, step.plan, scale=0.25)

    assert out[1].isnan().all()
    assert torch.equal(out[[0, 2]], clean[[0, 2]])


def test_paged_attention_second_layer_reads_what_the_first_derived() -> None:
    """One plan serves layers of other pages, windows and KV heads, and each gets its own answer."""
    sequences = [(1, 100), (3, 200), (20, 90)]
    layers = [
        (paged_step(sequences, num_kv_heads=kv_heads, seed=seed), window)
        for seed, (kv_heads, window) in enumerate([(2, 0), (2, 50), (4, 0), (2, 0)])
    ]
    shared = layers[0][0].plan
    for step, window in layers:
        tables = AttentionPlan(
            step.plan.page_table, shared.query_starts, shared.kv_lengths, shared.max_query, shared.max_kv
        )
        expected = attend_plainly(step, scale=0.25, window=window)

        for plan in (tables, tables):
            out = paged_attention_reference(step.q, step.kv, plan, scale=0.25, window=window)
            torch.testing.assert_close(out.double(), expected, rtol=1e-4, atol=1e-5)
        paged_attention_reference(step.q, step.kv, tables, scale=0.25, window=window + 1)
        assert len(tables.derived) == 2


@pytest.mark.parametrize("lengths", [[65], [65, 65, 65], [65, 70], [3, 100]], ids=str)
@pytest.mark.parametrize("num_heads", [2, 4], ids=["one-to-one", "grouped"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("window", [0, 30], ids=["full", "window"])
def test_paged_attention_with_what_lasts_is_that_of_a_plan_of_its_own(
    lengths: list[int], num_heads: int, dtype: torch.dtype, window: int
) -> None:
    """Steps that share what holds for all of them, each one token longer, attend as if each stood alone."""
    most = [(1, length + 9) for length in lengths]
    step = paged_step(most, num_heads=num_heads, dtype=dtype)
    lasting: dict[Hashable, object] = {}
    for further in range(10):
        now = torch.tensor([length + further for length in lengths], dtype=torch.int32)
        alone = AttentionPlan(step.plan.page_table, step.plan.query_starts, now, 1, int(now.max()))
        plan = replace(alone, lasting=lasting)

        out = paged_attention_reference(step.q, step.kv, plan, scale=0.25, window=window)

        assert torch.equal(out, paged_attention_reference(step.q, step.kv, alone, scale=0.25, window=window))


@pytest.mark.parametrize("scale", [1e-6, 40.0], ids=["flat", "sharp"])
def test_paged_attention_extreme_scores_stay_finite(scale: float) -> None:
    """Scores near nothing or in the thousands bring no overflow."""
    step = paged_step([(1, 100), (1, 90), (30, 64)])

    out = paged_attention_reference(step.q, step.kv, step.plan, scale=scale)

    torch.testing.assert_close(out.double(), attend_plainly(step, scale=scale), rtol=2e-3, atol=2e-3)
