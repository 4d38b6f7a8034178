"""Rotation and store: the twin against a loop over tokens and heads in float64."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from kernels.paging import PAGE_SIZE, PagedKV, StorePlan, allocate_kv
from kernels.rows.rope_store import rope_store_reference

NUM_PAGES = 4


@dataclass(frozen=True)
class Case:
    """Sizes of one call; `rotary_dim` None is the whole head."""

    tokens: int = 5
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 16
    rotary_dim: int | None = None
    has_norm: bool = False
    offset: float = 0.0

    @property
    def rotary(self) -> int:
        return self.rotary_dim or self.head_dim


CASES = {
    "plain": Case(),
    "one-token": Case(tokens=1),
    "no-token": Case(tokens=0),
    "many-tokens": Case(tokens=150),
    "one-kv-head": Case(num_heads=7, num_kv_heads=1, head_dim=24),
    "odd-half": Case(num_heads=3, num_kv_heads=3, head_dim=10),
    "partial": Case(rotary_dim=6),
    "norm": Case(has_norm=True),
    "norm-offset-partial": Case(has_norm=True, offset=1.0, rotary_dim=12),
}


@dataclass(frozen=True)
class Inputs:
    """Random arguments of one call."""

    qkv: Tensor
    cos_sin: Tensor
    slots: Tensor
    q_norm: Tensor | None
    k_norm: Tensor | None


def random_inputs(case: Case, dtype: torch.dtype = torch.float32) -> Inputs:
    """Distinct random slots, angles of any size."""
    generator = torch.Generator().manual_seed(7)
    width = (case.num_heads + 2 * case.num_kv_heads) * case.head_dim
    angles = 6 * torch.rand(case.tokens, case.rotary // 2, generator=generator)
    norms = torch.randn(2, case.head_dim, generator=generator).to(dtype)
    return Inputs(
        qkv=torch.randn(case.tokens, width, generator=generator).to(dtype),
        cos_sin=torch.cat((angles.cos(), angles.sin()), dim=1),
        slots=torch.randperm(NUM_PAGES * PAGE_SIZE, generator=generator)[: case.tokens],
        q_norm=norms[0] if case.has_norm else None,
        k_norm=norms[1] if case.has_norm else None,
    )


def new_pages(case: Case, dtype: torch.dtype = torch.float32) -> PagedKV:
    """Pages full of a number that no input has."""
    kv = allocate_kv(NUM_PAGES, case.num_kv_heads, case.head_dim, dtype=dtype, device=torch.device("cpu"))
    kv.keys.fill_(77)
    kv.values.fill_(77)
    return kv


def call(case: Case, inputs: Inputs, kv: PagedKV, slots: Tensor | None = None) -> Tensor:
    """The twin on these inputs."""
    return rope_store_reference(
        inputs.qkv,
        kv,
        StorePlan(inputs.cos_sin, inputs.slots if slots is None else slots),
        num_heads=case.num_heads,
        q_norm=inputs.q_norm,
        k_norm=inputs.k_norm,
        eps=1e-5,
        offset=case.offset,
    )


def exact_head(case: Case, inputs: Inputs, token: int, head: int) -> Tensor:
    """One head of qkv as it should come out, float64: queries and keys normed and turned, values untouched."""
    x = inputs.qkv[token].double().view(-1, case.head_dim)[head].clone()
    if head >= case.num_heads + case.num_kv_heads:
        return x
    norm = inputs.q_norm if head < case.num_heads else inputs.k_norm
    if norm is not None:
        x = x / (x.square().mean() + 1e-5).sqrt() * (norm.double() + case.offset)
    row, half = inputs.cos_sin[token].double(), case.rotary // 2
    turned = x.clone()
    for pair in range(half):
        cos, sin = row[pair], row[half + pair]
        turned[pair] = x[pair] * cos - x[half + pair] * sin
        turned[half + pair] = x[half + pair] * cos + x[pair] * sin
    return turned


def exact_rows(case: Case, inputs: Inputs) -> tuple[Tensor, Tensor, Tensor]:
    """(queries, keys, values), each [tokens, heads, head_dim] float64."""
    num_all = case.num_heads + 2 * case.num_kv_heads
    rows = torch.zeros(case.tokens, num_all, case.head_dim, dtype=torch.float64)
    for token in range(case.tokens):
        for head in range(num_all):
            rows[token, head] = exact_head(case, inputs, token, head)
    queries, keys, values = rows.split_with_sizes((case.num_heads, case.num_kv_heads, case.num_kv_heads), dim=1)
    return queries, keys, values


def stored(pages: Tensor, slots: Tensor) -> Tensor:
    """[tokens, kv_heads, ...] back out of the pages."""
    return pages[slots // PAGE_SIZE, :, slots % PAGE_SIZE]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.bfloat16, 2e-2)], ids=str)
@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_rope_store_matches_float64(case: Case, dtype: torch.dtype, tolerance: float) -> None:
    """Queries come back, keys and values lie in their slots, every other slot is untouched."""
    inputs, kv = random_inputs(case, dtype), new_pages(case, dtype)
    before = inputs.qkv.clone()

    queries = call(case, inputs, kv)

    expected = exact_rows(case, inputs)
    found = queries, stored(kv.keys, inputs.slots), stored(kv.values, inputs.slots)
    for mine, exact in zip(found, expected, strict=True):
        assert mine.dtype == dtype
        torch.testing.assert_close(mine.double(), exact, rtol=tolerance, atol=2 * tolerance)
    assert torch.equal(inputs.qkv, before)
    untouched = torch.ones(NUM_PAGES, PAGE_SIZE, dtype=torch.bool)
    untouched[inputs.slots // PAGE_SIZE, inputs.slots % PAGE_SIZE] = False
    assert (kv.keys.transpose(1, 2)[untouched] == 77).all()
    assert (kv.values.transpose(1, 2)[untouched] == 77).all()


def test_rope_store_of_slot_minus_one_stores_nothing() -> None:
    """A padded row's query comes back, and neither the last page nor any other changes for it."""
    case = Case(tokens=6)
    inputs, kv, all_stored = random_inputs(case), new_pages(case), new_pages(case)
    slots = inputs.slots.clone()
    slots[[1, 4]] = -1

    queries = call(case, inputs, kv, slots)

    assert torch.equal(queries, call(case, inputs, all_stored))
    kept = inputs.slots[[0, 2, 3, 5]]
    assert torch.equal(stored(kv.keys, kept), stored(all_stored.keys, kept))
    assert int((kv.keys != 77).any(-1).any(1).sum()) == len(kept)
    assert int((kv.values != 77).any(-1).any(1).sum()) == len(kept)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.int8, 0.5 / 127 + 1e-3), (torch.float8_e4m3fn, 2.0**-4 + 1e-3)], ids=str
)
def test_rope_store_into_quantized_pages_is_exact_to_a_step(dtype: torch.dtype, tolerance: float) -> None:
    """stored * scale is within half a step of the row's largest number, for rows of every size."""
    case = Case(tokens=40)
    inputs, kv = random_inputs(case), new_pages(case, dtype)
    inputs.qkv.mul_(torch.logspace(-4, 3, case.tokens)[:, None])

    call(case, inputs, kv)

    assert kv.key_scales is not None
    assert kv.value_scales is not None
    _, keys, values = exact_rows(case, inputs)
    for pages, scales, exact in ((kv.keys, kv.key_scales, keys), (kv.values, kv.value_scales, values)):
        found = stored(pages, inputs.slots).double() * stored(scales, inputs.slots).double()[..., None]
        largest = exact.abs().amax(-1, keepdim=True)
        # Below 1e-3 the scale's own floor counts.
        assert ((found - exact).abs() <= tolerance * largest.clamp(min=1e-3)).all()


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn], ids=str)
def test_rope_store_of_a_zero_row_into_quantized_pages_is_zero(dtype: torch.dtype) -> None:
    """No division by a scale of zero."""
    case = Case(tokens=1)
    inputs, kv = random_inputs(case), new_pages(case, dtype)
    inputs.qkv.zero_()

    call(case, inputs, kv)

    assert kv.key_scales is not None
    assert (stored(kv.keys, inputs.slots).float() == 0).all()
    assert (stored(kv.key_scales, inputs.slots) > 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8], ids=str)
def test_rope_store_plan_is_read_alike_by_every_layer(dtype: torch.dtype) -> None:
    """A plan that an earlier layer has used turns and stores as a new one, also where the pages are of another kind."""
    case, other = Case(tokens=6), Case(tokens=6, num_heads=6, num_kv_heads=3, head_dim=32, rotary_dim=16)
    inputs, kv, with_new = random_inputs(other), new_pages(other, dtype), new_pages(other, dtype)
    slots = inputs.slots.clone()
    slots[2] = -1
    plan = StorePlan(inputs.cos_sin, slots)
    rope_store_reference(random_inputs(case).qkv, new_pages(case), plan, num_heads=case.num_heads)

    queries = rope_store_reference(inputs.qkv, kv, plan, num_heads=other.num_heads)

    assert torch.equal(queries, call(other, inputs, with_new, slots))
    assert torch.equal(kv.keys, with_new.keys)
    assert torch.equal(kv.values, with_new.values)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8], ids=str)
def test_rope_store_with_what_lasts_stores_where_a_plan_of_its_own_does(dtype: torch.dtype) -> None:
    """Steps that share what holds for all of them, each one token further on its page, store each in its own slot."""
    case = Case(tokens=3, num_kv_heads=3, num_heads=6)
    inputs, kv, with_new = random_inputs(case), new_pages(case, dtype), new_pages(case, dtype)
    first, lasting = torch.tensor([PAGE_SIZE, 5, 2 * PAGE_SIZE + 40]), StorePlan(inputs.cos_sin, inputs.slots).lasting
    for further in range(4):
        plan = StorePlan(inputs.cos_sin, first + further, lasting)

        queries = rope_store_reference(inputs.qkv, kv, plan, num_heads=6, q_norm=inputs.q_norm, k_norm=inputs.k_norm)

        own = StorePlan(inputs.cos_sin, first + further)
        expected = rope_store_reference(
            inputs.qkv, with_new, own, num_heads=6, q_norm=inputs.q_norm, k_norm=inputs.k_norm
        )
        assert torch.equal(queries, expected)
        assert torch.equal(kv.keys, with_new.keys)
        assert torch.equal(kv.values, with_new.values)
    assert len(lasting) == 1
