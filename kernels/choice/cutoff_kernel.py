"""Where top-k, top-p and min-p cut a row of logits off: one kernel without a sort, for those that draw and those that
write distributions.

One pass over the row keeps the four largest entries of each of LANES residue classes, so that all entries above the
largest fourth are at hand. The cut is found by halving the range of possible values; a value among the entries at hand
is judged in registers, any other by a pass over the row. At most 32 passes a filter, and none for a few hundred entries
kept. Cuts are exact, and entries equal to the last one kept stay.
"""

# What a kernel is compiled for stands in capitals.
# ruff: noqa: N803

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.choice.sample import SampleRows
from kernels.jit import Launch, jit, tl
from kernels.tuning import CUTOFF, CUTOFF_LANES

LOG2_E = tl.constexpr(1.4426950408889634)
_MAGNITUDE = tl.constexpr(0x7FFFFFFF)
_LOWEST_KEY = tl.constexpr(-0x7F800001)
"""The key of -inf."""
_STAGES = tl.constexpr(CUTOFF.num_stages)
_SMALLEST = tl.constexpr(1e-30)


@dataclass(frozen=True, slots=True)
class Cutoffs:
    """What the rest of a row's work goes by, [rows] each.

    cutoff      float32, the least logit that stays; -inf where all do
    peak       float32, the largest logit
    total      float32, the sum of e^((logit - peak) / temperature) over what stays
    likeliest  int64, the first entry of the largest logit; None where no row is greedy
    """

    cutoff: Tensor
    peak: Tensor
    total: Tensor
    likeliest: Tensor | None


def prepare_cutoffs(logits: Tensor, rows: SampleRows) -> tuple[Cutoffs, Launch]:
    """Where the cuts of [rows, vocab] float32 will be, and what has to run for them. Arguments are checked before."""
    num_rows, vocab_size = logits.shape
    cutoff, peak, total = (logits.new_empty(num_rows) for _ in range(3))
    likeliest = None if rows.is_greedy is None else logits.new_empty(num_rows, dtype=torch.int64)
    cutoffs = Cutoffs(cutoff, peak, total, likeliest)
    arguments: dict[str, object] = {
        "logits": logits,
        "temperature": rows.temperature,
        "top_k": rows.top_k,
        "top_p": rows.top_p,
        "min_p": rows.min_p,
        "is_greedy": rows.is_greedy,
        "cutoffs": cutoffs.cutoff,
        "peaks": cutoffs.peak,
        "totals": cutoffs.total,
        "likeliest": cutoffs.likeliest,
        "row_stride": logits.stride(0),
        "vocab_size": vocab_size,
        "LANES": CUTOFF_LANES,
    }
    return cutoffs, Launch(_cutoff_kernel, (num_rows,), arguments, CUTOFF)


@jit(varying=("temperature", "top_k", "top_p", "min_p", "is_greedy"))
def _cutoff_kernel(
    logits: tl.tensor,
    temperature: tl.tensor,
    top_k: tl.tensor,
    top_p: tl.tensor,
    min_p: tl.tensor,
    is_greedy: tl.tensor,
    cutoffs: tl.tensor,
    peaks: tl.tensor,
    totals: tl.tensor,
    likeliest: tl.tensor,
    row_stride: int,
    vocab_size: int,
    LANES: tl.constexpr,
) -> None:
    """Program (row): its cut, and the sum of what stays."""
    row = tl.program_id(0)
    logits += row.to(tl.int64) * row_stride
    factor = LOG2_E / tl.load(temperature + row)
    lanes = tl.arange(0, LANES)
    first = tl.full([LANES], float("-inf"), tl.float32)
    second, third, fourth = first, first, first
    total = tl.zeros([LANES], tl.float32)
    place = lanes
    for start in tl.range(0, vocab_size, LANES, num_stages=_STAGES):
        x = tl.load(logits + start + lanes, mask=start + lanes < vocab_size, other=float("-inf"))
        # Of the sum so far and the new entry, the smaller is scaled to the larger.
        fade = tl.where(x == float("-inf"), 0.0, tl.exp2(-tl.abs(x - first) * factor))
        total = tl.where(x > first, total * fade + 1.0, total + fade)
        if is_greedy is not None:
            place = tl.where(x > first, start + lanes, place)
        first, x = tl.maximum(first, x), tl.minimum(first, x)
        second, x = tl.maximum(second, x), tl.minimum(second, x)
        third, x = tl.maximum(third, x), tl.minimum(third, x)
        fourth = tl.maximum(fourth, x)
    peak = tl.max(first, 0)
    base = tl.where(peak == float("-inf"), 0.0, peak)
    whole = tl.sum(total * tl.exp2((first - base) * factor), 0)
    top = tl.reshape(tl.join(tl.join(first, second), tl.join(third, fourth)), [4 * LANES])
    keys = _key(top)
    weights = tl.exp2((top - base) * factor)
    reach = _key(tl.max(fourth, 0)).to(tl.int64) + 1
    chosen = False
    if is_greedy is not None:
        chosen = tl.load(is_greedy + row)
        tl.store(likeliest + row, tl.min(tl.where(first == peak, place, vocab_size), 0).to(tl.int64))
    cutoff = tl.full([], _LOWEST_KEY, tl.int64)
    if min_p is not None:
        cutoff = tl.maximum(cutoff, _key(peak + tl.log2(tl.load(min_p + row)) / factor).to(tl.int64))
    if top_k is not None:
        most = tl.load(top_k + row)
        if (most < vocab_size) & (chosen == 0):
            cut = _search(
                most.to(tl.float32), True, reach, keys, weights, logits, vocab_size, peak, base, factor, LANES
            )
            cutoff = tl.maximum(cutoff, cut)
    if top_p is not None:
        share = tl.load(top_p + row)
        if (share < 1.0) & (chosen == 0):
            left = _left(cutoff, whole, reach, keys, weights, logits, vocab_size, base, factor, LANES)
            wanted = tl.maximum(share * left, _SMALLEST)
            cut = _search(wanted, False, reach, keys, weights, logits, vocab_size, peak, base, factor, LANES)
            cutoff = tl.maximum(cutoff, cut)
    tl.store(peaks + row, peak)
    tl.store(totals + row, _left(cutoff, whole, reach, keys, weights, logits, vocab_size, base, factor, LANES))
    tl.store(cutoffs + row, _value(cutoff.to(tl.int32)))


@jit()
def _search(
    wanted: tl.tensor,
    BY_COUNT: tl.constexpr,
    reach: tl.tensor,
    keys: tl.tensor,
    weights: tl.tensor,
    logits: tl.tensor,
    vocab_size: int,
    peak: tl.tensor,
    base: tl.tensor,
    factor: tl.tensor,
    LANES: tl.constexpr,
) -> tl.tensor:
    """A key from which on entries come to `wanted`, by number or by weight, with the fewest entries; int64."""
    low = tl.full([], _LOWEST_KEY, tl.int64)
    high = _key(peak).to(tl.int64) + 1
    more = low * 0 + vocab_size
    fewer = low * 0
    # The first question is whether the entries at hand are enough.
    middle = reach
    while (high - low > 1) & (more - fewer > 1):
        count, weight = _mass(middle, reach, keys, weights, logits, vocab_size, base, factor, LANES)
        is_enough = count.to(tl.float32) >= wanted if BY_COUNT else weight >= wanted
        low = tl.where(is_enough, middle, low)
        more = tl.where(is_enough, count.to(tl.int64), more)
        high = tl.where(is_enough, high, middle)
        fewer = tl.where(is_enough, fewer, count.to(tl.int64))
        middle = (low + high) >> 1
    return low


@jit()
def _left(
    cutoff: tl.tensor,
    whole: tl.tensor,
    reach: tl.tensor,
    keys: tl.tensor,
    weights: tl.tensor,
    logits: tl.tensor,
    vocab_size: int,
    base: tl.tensor,
    factor: tl.tensor,
    LANES: tl.constexpr,
) -> tl.tensor:
    """The weight of what is left above a cut."""
    left = whole
    if cutoff > _LOWEST_KEY:
        _, left = _mass(cutoff, reach, keys, weights, logits, vocab_size, base, factor, LANES)
    return left


@jit()
def _mass(
    key: tl.tensor,
    reach: tl.tensor,
    keys: tl.tensor,
    weights: tl.tensor,
    logits: tl.tensor,
    vocab_size: int,
    base: tl.tensor,
    factor: tl.tensor,
    LANES: tl.constexpr,
) -> tl.tensor:
    """How many of the row's entries have this key or a higher one, and their weight."""
    low = key.to(tl.int32)
    if key >= reach:
        count = tl.sum((keys >= low).to(tl.int32), 0)
        weight = tl.sum(tl.where(keys >= low, weights, 0.0), 0)
    else:
        lanes = tl.arange(0, LANES)
        counts = tl.zeros([LANES], tl.int32)
        sums = tl.zeros([LANES], tl.float32)
        for start in tl.range(0, vocab_size, LANES):
            is_entry = start + lanes < vocab_size
            x = tl.load(logits + start + lanes, mask=is_entry, other=float("-inf"))
            is_in = (_key(x) >= low) & is_entry
            counts += is_in.to(tl.int32)
            sums += tl.where(is_in, tl.exp2((x - base) * factor), 0.0)
        count = tl.sum(counts, 0)
        weight = tl.sum(sums, 0)
    return count, weight


@jit()
def _key(x: tl.tensor) -> tl.tensor:
    """An int32 for each float32, in the same order; both zeros have one."""
    bits = (x + 0.0).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & _MAGNITUDE)


@jit()
def _value(key: tl.tensor) -> tl.tensor:
    """The float32 of a key."""
    return (key ^ ((key >> 31) & _MAGNITUDE)).to(tl.float32, bitcast=True)
