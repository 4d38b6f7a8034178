"""Drafts accepted and what follows them drawn, sequence by sequence, in two launches and without a look from the host.

Every program of the first works out for itself how far its sequence's drafts are accepted, which costs it two numbers a
draft, and then races through its part of what is left of the row where they end. Torch twin: `reject.py`.
"""

# What a kernel is compiled for stands in capitals.
# ruff: noqa: N803

from __future__ import annotations

import torch
from torch import Tensor

from kernels.attention.tile_kernel import padded
from kernels.choice.cases import reject_cases, reject_cost
from kernels.choice.checks import check_rejection
from kernels.choice.random import ACCEPT_STREAM, TARGET_STREAM
from kernels.choice.random_kernel import rate, uniform, words
from kernels.choice.reject import reject_reference
from kernels.choice.sample import SampleRows
from kernels.jit import Launch, jit, launched, tl
from kernels.operation import Op
from kernels.tuning import RACE, RACE_COUNTERS, WINNER

_DRAFTS = tl.constexpr(16)
"""Drafts that are judged at once."""
_NO_TOKEN = tl.constexpr(0x7FFFFFFF)
_ACCEPT = tl.constexpr(ACCEPT_STREAM)
_TARGET = tl.constexpr(TARGET_STREAM)


def prepare_reject(
    probs: Tensor, draft_probs: Tensor, drafts: Tensor, row_starts: Tensor, rows: SampleRows
) -> tuple[tuple[Tensor, Tensor], list[Launch]]:
    """Where the results of `reject` will be, and what has to run for them. Raises KernelInputError."""
    check_rejection(probs, draft_probs, drafts, row_starts, rows)
    num_sequences, vocab_size = row_starts.shape[0] - 1, probs.shape[1]
    accepted, tokens = (row_starts.new_empty(num_sequences) for _ in range(2))
    if not num_sequences:
        return (accepted, tokens), []
    num_counters = -(-vocab_size // 4)
    num_parts = -(-num_counters // RACE_COUNTERS)
    size = (2, num_sequences, num_parts)
    found: dict[str, object] = {
        "chances": probs.new_empty(size),
        "winners": probs.new_empty(size, dtype=torch.int32),
    }
    racing: dict[str, object] = {
        "probs": probs,
        "draft_probs": draft_probs,
        "drafts": drafts,
        "row_starts": row_starts,
        "seeds": rows.seeds,
        "positions": rows.positions,
        "accepted": accepted,
        "vocab_size": vocab_size,
        "num_counters": num_counters,
        "COUNTERS": RACE_COUNTERS,
    }
    ending: dict[str, object] = {
        "tokens": tokens,
        "vocab_size": vocab_size,
        "num_parts": num_parts,
        "PARTS": padded(num_parts),
    }
    return (accepted, tokens), [
        Launch(_reject_kernel, (num_sequences, num_parts), {**found, **racing}, RACE),
        Launch(_following_kernel, (num_sequences,), {**found, **ending}, WINNER),
    ]


reject = launched(prepare_reject)
"""As `reject_reference`, of contiguous tensors. Raises KernelInputError."""


@jit(varying=("drafts", "row_starts", "seeds", "positions"))
def _reject_kernel(
    chances: tl.tensor,
    winners: tl.tensor,
    probs: tl.tensor,
    draft_probs: tl.tensor,
    drafts: tl.tensor,
    row_starts: tl.tensor,
    seeds: tl.tensor,
    positions: tl.tensor,
    accepted: tl.tensor,
    vocab_size: int,
    num_counters: int,
    COUNTERS: tl.constexpr,
) -> None:
    """Program (sequence, part): the part's winners of what the rejected draft's row leaves, and of that whole row."""
    sequence = tl.program_id(0)
    part = tl.program_id(1)
    start = tl.load(row_starts + sequence).to(tl.int32)
    last = tl.load(row_starts + sequence + 1).to(tl.int32) - 1
    final = _first_rejected(probs, draft_probs, drafts, seeds, positions, start, last, sequence, vocab_size)
    if part == 0:
        tl.store(accepted + sequence, (final - start).to(tl.int64))
    counters = part * COUNTERS + tl.arange(0, COUNTERS)
    probs += final.to(tl.int64) * vocab_size
    # Every sequence before has one row more than drafts.
    draft_probs += (final - sequence).to(tl.int64) * vocab_size
    word = words(tl.load(seeds + final), tl.load(positions + final), _TARGET, counters)
    best = tl.full([COUNTERS], -1.0, tl.float32)
    first = tl.full([COUNTERS], _NO_TOKEN, tl.int32)
    whole_best, whole_first = best, first
    for strip in tl.static_range(4):
        entries = strip * num_counters + counters
        is_entry = (counters < num_counters) & (entries < vocab_size)
        p = tl.load(probs + entries, mask=is_entry, other=0.0)
        q = tl.load(draft_probs + entries, mask=is_entry & (final < last), other=0.0)
        speed = rate(word[strip])
        chance = tl.maximum(p - q, 0.0) * speed
        first = tl.where(chance > best, entries, first)
        best = tl.maximum(best, chance)
        chance = p * speed
        whole_first = tl.where(chance > whole_best, entries, whole_first)
        whole_best = tl.maximum(whole_best, chance)
    at = sequence * tl.num_programs(1) + part
    highest = tl.max(best, 0)
    tl.store(chances + at, highest)
    tl.store(winners + at, tl.min(tl.where(best == highest, first, _NO_TOKEN), 0))
    at += tl.num_programs(0) * tl.num_programs(1)
    highest = tl.max(whole_best, 0)
    tl.store(chances + at, highest)
    tl.store(winners + at, tl.min(tl.where(whole_best == highest, whole_first, _NO_TOKEN), 0))


@jit()
def _first_rejected(
    probs: tl.tensor,
    draft_probs: tl.tensor,
    drafts: tl.tensor,
    seeds: tl.tensor,
    positions: tl.tensor,
    start: tl.tensor,
    last: tl.tensor,
    sequence: tl.tensor,
    vocab_size: int,
) -> tl.tensor:
    """The first of a sequence's rows whose draft is not accepted, or the one behind them all."""
    final = last
    for first in tl.range(start, last, _DRAFTS):
        row = first + tl.arange(0, _DRAFTS)
        is_row = row < last
        number = (row - sequence).to(tl.int64)
        draft = tl.load(drafts + number, mask=is_row, other=0)
        q = tl.load(draft_probs + number * vocab_size + draft, mask=is_row, other=0.0)
        p = tl.load(probs + row.to(tl.int64) * vocab_size + draft, mask=is_row, other=0.0)
        seed = tl.load(seeds + row, mask=is_row, other=0)
        position = tl.load(positions + row, mask=is_row, other=0)
        word, _, _, _ = words(seed, position, _ACCEPT, tl.zeros([_DRAFTS], tl.int32))
        is_rejected = is_row & (uniform(word) * q >= p)
        final = tl.minimum(final, tl.min(tl.where(is_rejected, row, last), 0))
    return final


@jit(varying=("num_parts",))
def _following_kernel(
    chances: tl.tensor,
    winners: tl.tensor,
    tokens: tl.tensor,
    vocab_size: int,
    num_parts: int,
    PARTS: tl.constexpr,
) -> None:
    """Program (sequence): the winner of the parts' winners."""
    sequence = tl.program_id(0)
    parts = tl.arange(0, PARTS)
    is_part = parts < num_parts
    at = sequence * num_parts + parts
    left = tl.load(chances + at, mask=is_part, other=-1.0)
    # Rounding can leave nothing where p and q are equal.
    if tl.max(left, 0) <= 0.0:
        at += tl.num_programs(0) * num_parts
    chance = tl.load(chances + at, mask=is_part, other=-1.0)
    is_best = is_part & (chance == tl.max(chance, 0))
    token = tl.min(tl.where(is_best, tl.load(winners + at, mask=is_part, other=_NO_TOKEN), _NO_TOKEN), 0)
    # Among chances that are no numbers none is the best.
    token = tl.where(token < vocab_size, token, 0)
    tl.store(tokens + sequence, token.to(tl.int64))


OP = Op(
    name="reject",
    launch=reject,
    prepare=prepare_reject,
    reference=reject_reference,
    cases=reject_cases,
    cost=reject_cost,
)
