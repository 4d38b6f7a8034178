"""One token a row from its logits: penalties taken off (`penalties_kernel.py`), filters as cuts (`cutoff_kernel.py`),
then the exponential race, in parts of the vocabulary.

A part's winner is found in one read, before the row's largest logit is known: its chances are relative to the part's
own largest, and put in relation to the others' when the winners race each other. The noise is a function of seed,
position and token, so a row's token depends neither on its slot nor on its neighbours. Equal chances go to the lower
token; a row that is masked altogether gives token 0. Torch twin: `sample.py`.
"""

# What a kernel is compiled for stands in capitals.
# ruff: noqa: N803

from __future__ import annotations

import torch
from torch import Tensor

from kernels.attention.tile_kernel import padded
from kernels.choice.cases import logits_cost, sample_cases
from kernels.choice.checks import check_sampling
from kernels.choice.cutoff_kernel import LOG2_E, prepare_cutoffs
from kernels.choice.exactness import sample_complaint
from kernels.choice.penalties_kernel import prepare_penalised
from kernels.choice.probabilities_kernel import prepare_probabilities
from kernels.choice.random_kernel import rate, words
from kernels.choice.sample import SampleRows, sample_with_logprobs_reference
from kernels.jit import Launch, jit, launched, tl
from kernels.operation import Op
from kernels.tuning import RACE, RACE_COUNTERS, WINNER

LN_2 = tl.constexpr(0.6931471805599453)
_NO_TOKEN = tl.constexpr(0x7FFFFFFF)


def prepare_tokens(logits: Tensor, rows: SampleRows, stream: int) -> tuple[Tensor, list[Launch]]:
    """Where the tokens alone will be, and what has to run for them. Raises KernelInputError."""
    (tokens, _), launches = _prepared(logits, rows, stream, with_logprobs=False)
    return tokens, launches


sample = launched(prepare_tokens)
"""One token a row, [rows] int64: that of `sample_reference`, of [rows, vocab] float32 with packed rows.

Raises KernelInputError.
"""


def prepare_sample(logits: Tensor, rows: SampleRows, stream: int) -> tuple[tuple[Tensor, Tensor], list[Launch]]:
    """Where tokens and log-probabilities will be, and what has to run for them. Raises KernelInputError."""
    (tokens, logprobs), launches = _prepared(logits, rows, stream, with_logprobs=True)
    assert logprobs is not None
    return (tokens, logprobs), launches


sample_with_logprobs = launched(prepare_sample)
"""The tokens, and their log-probabilities [rows] float32 by the logits alone: before penalties and filters.

Raises KernelInputError.
"""


def prepare_with_probs(logits: Tensor, rows: SampleRows, stream: int) -> tuple[tuple[Tensor, Tensor], list[Launch]]:
    """Where tokens and distributions will be, and what has to run for them. Raises KernelInputError."""
    tokens, drawing = prepare_tokens(logits, rows, stream)
    probs, writing = prepare_probabilities(logits, rows)
    return (tokens, probs), drawing + writing


sample_with_probs = launched(prepare_with_probs)
"""The tokens, and the distributions they were drawn from, [rows, vocab] float32. Raises KernelInputError."""


def _prepared(
    logits: Tensor, rows: SampleRows, stream: int, *, with_logprobs: bool
) -> tuple[tuple[Tensor, Tensor | None], list[Launch]]:
    check_sampling(logits, rows)
    num_rows, vocab_size = logits.shape
    tokens = logits.new_empty(num_rows, dtype=torch.int64)
    logprobs = logits.new_empty(num_rows) if with_logprobs else None
    if not num_rows:
        return (tokens, logprobs), []
    num_counters = -(-vocab_size // 4)
    num_parts = -(-num_counters // RACE_COUNTERS)
    said = logits
    logits, launches = prepare_penalised(said, rows.penalties)
    cutoffs = None
    if rows.is_filtered:
        found, launch = prepare_cutoffs(logits, rows)
        cutoffs = found.cutoff
        launches.append(launch)
    raw = [logits.new_empty(num_rows, num_parts) if with_logprobs else None for _ in range(2)]
    shared: dict[str, object] = {
        "logits": logits,
        "temperature": rows.temperature,
        "is_greedy": rows.is_greedy,
        "chances": logits.new_empty(num_rows, num_parts),
        "peaks": logits.new_empty(num_rows, num_parts),
        "winners": logits.new_empty(num_rows, num_parts, dtype=torch.int32),
        "raw_peaks": raw[0],
        "raw_sums": raw[1],
        "said": said if with_logprobs and rows.penalties is not None else None,
        "row_stride": logits.stride(0),
        "said_stride": said.stride(0),
    }
    racing: dict[str, object] = {
        "seeds": rows.seeds,
        "positions": rows.positions,
        "cutoffs": cutoffs,
        "vocab_size": vocab_size,
        "num_counters": num_counters,
        "STREAM": stream,
        "COUNTERS": RACE_COUNTERS,
    }
    launches.append(Launch(_race_kernel, (num_rows, num_parts), {**shared, **racing}, RACE))
    ending: dict[str, object] = {
        "tokens": tokens,
        "logprobs": logprobs,
        "vocab_size": vocab_size,
        "num_parts": num_parts,
        "PARTS": padded(num_parts),
    }
    launches.append(Launch(_winner_kernel, (num_rows,), {**shared, **ending}, WINNER))
    return (tokens, logprobs), launches


@jit(varying=("temperature", "is_greedy", "seeds", "positions"))
def _race_kernel(
    logits: tl.tensor,
    temperature: tl.tensor,
    is_greedy: tl.tensor,
    chances: tl.tensor,
    peaks: tl.tensor,
    winners: tl.tensor,
    raw_peaks: tl.tensor,
    raw_sums: tl.tensor,
    said: tl.tensor,
    row_stride: int,
    said_stride: int,
    seeds: tl.tensor,
    positions: tl.tensor,
    cutoffs: tl.tensor,
    vocab_size: int,
    num_counters: int,
    STREAM: tl.constexpr,
    COUNTERS: tl.constexpr,
) -> None:
    """Program (row, part): the winner among the part's counters, each of which stands for four strips' tokens."""
    row = tl.program_id(0)
    at = row * tl.num_programs(1) + tl.program_id(1)
    logits += row.to(tl.int64) * row_stride
    factor = LOG2_E / tl.load(temperature + row)
    counters = tl.program_id(1) * COUNTERS + tl.arange(0, COUNTERS)
    x0 = _strip(logits, counters, num_counters * 0, num_counters, vocab_size)
    x1 = _strip(logits, counters, num_counters, num_counters, vocab_size)
    x2 = _strip(logits, counters, num_counters * 2, num_counters, vocab_size)
    x3 = _strip(logits, counters, num_counters * 3, num_counters, vocab_size)
    if raw_peaks is not None:
        r0, r1, r2, r3 = x0, x1, x2, x3
        if said is not None:
            said += row.to(tl.int64) * said_stride
            r0 = _strip(said, counters, num_counters * 0, num_counters, vocab_size)
            r1 = _strip(said, counters, num_counters, num_counters, vocab_size)
            r2 = _strip(said, counters, num_counters * 2, num_counters, vocab_size)
            r3 = _strip(said, counters, num_counters * 3, num_counters, vocab_size)
        peak = tl.max(tl.maximum(tl.maximum(r0, r1), tl.maximum(r2, r3)), 0)
        base = tl.where(peak == float("-inf"), 0.0, peak) * LOG2_E
        sums = tl.exp2(r0 * LOG2_E - base) + tl.exp2(r1 * LOG2_E - base)
        sums += tl.exp2(r2 * LOG2_E - base) + tl.exp2(r3 * LOG2_E - base)
        tl.store(raw_peaks + at, peak)
        tl.store(raw_sums + at, tl.sum(sums, 0))
    if cutoffs is not None:
        cutoff = tl.load(cutoffs + row)
        x0 = tl.where(x0 >= cutoff, x0, float("-inf"))
        x1 = tl.where(x1 >= cutoff, x1, float("-inf"))
        x2 = tl.where(x2 >= cutoff, x2, float("-inf"))
        x3 = tl.where(x3 >= cutoff, x3, float("-inf"))
    peak = tl.max(tl.maximum(tl.maximum(x0, x1), tl.maximum(x2, x3)), 0)
    greedy = None
    if is_greedy is not None:
        greedy = tl.load(is_greedy + row) != 0
    w0, w1, w2, w3 = words(tl.load(seeds + row), tl.load(positions + row), STREAM, counters)
    c0 = _chance(x0, w0, peak, factor, greedy)
    c1 = _chance(x1, w1, peak, factor, greedy)
    c2 = _chance(x2, w2, peak, factor, greedy)
    c3 = _chance(x3, w3, peak, factor, greedy)
    best = tl.max(tl.maximum(tl.maximum(c0, c1), tl.maximum(c2, c3)), 0)
    # Lower strips hold the lower tokens.
    first = tl.where(c3 == best, counters + num_counters * 3, _NO_TOKEN)
    first = tl.where(c2 == best, counters + num_counters * 2, first)
    first = tl.where(c1 == best, counters + num_counters, first)
    first = tl.where(c0 == best, counters, first)
    tl.store(chances + at, best)
    tl.store(peaks + at, peak)
    tl.store(winners + at, tl.min(first, 0))


@jit(varying=("temperature", "is_greedy", "num_parts"))
def _winner_kernel(
    logits: tl.tensor,
    temperature: tl.tensor,
    is_greedy: tl.tensor,
    chances: tl.tensor,
    peaks: tl.tensor,
    winners: tl.tensor,
    raw_peaks: tl.tensor,
    raw_sums: tl.tensor,
    said: tl.tensor,
    row_stride: int,
    said_stride: int,
    tokens: tl.tensor,
    logprobs: tl.tensor,
    vocab_size: int,
    num_parts: int,
    PARTS: tl.constexpr,
) -> None:
    """Program (row): the winner of the parts' winners."""
    row = tl.program_id(0)
    parts = tl.arange(0, PARTS)
    is_part = parts < num_parts
    at = row * num_parts + parts
    factor = LOG2_E / tl.load(temperature + row)
    part_peaks = tl.load(peaks + at, mask=is_part, other=float("-inf"))
    peak = tl.max(part_peaks, 0)
    share = tl.exp2((part_peaks - tl.where(peak == float("-inf"), 0.0, peak)) * factor)
    if is_greedy is not None:
        share = tl.where(tl.load(is_greedy + row) != 0, (part_peaks == peak).to(tl.float32), share)
    chance = tl.load(chances + at, mask=is_part, other=-1.0) * share
    best = tl.max(tl.where(is_part, chance, -1.0), 0)
    is_best = is_part & (chance == best)
    token = tl.min(tl.where(is_best, tl.load(winners + at, mask=is_part, other=_NO_TOKEN), _NO_TOKEN), 0)
    # Among chances that are no numbers none is the best.
    token = tl.where(token < vocab_size, token, 0)
    tl.store(tokens + row, token.to(tl.int64))
    if logprobs is not None:
        part_peaks = tl.load(raw_peaks + at, mask=is_part, other=float("-inf"))
        peak = tl.max(part_peaks, 0)
        base = tl.where(peak == float("-inf"), 0.0, peak)
        sums = tl.load(raw_sums + at, mask=is_part, other=0.0) * tl.exp2((part_peaks - base) * LOG2_E)
        if said is not None:
            x = tl.load(said + row.to(tl.int64) * said_stride + token)
        else:
            x = tl.load(logits + row.to(tl.int64) * row_stride + token)
        tl.store(logprobs + row, x - base - tl.log2(tl.sum(sums, 0)) * LN_2)


@jit()
def _strip(logits: tl.tensor, counters: tl.tensor, first: tl.tensor, num_counters: int, vocab_size: int) -> tl.tensor:
    """The logits of one strip's counters, -inf where there are none."""
    is_entry = (counters < num_counters) & (first + counters < vocab_size)
    return tl.load(logits + first + counters, mask=is_entry, other=float("-inf"))


@jit()
def _chance(x: tl.tensor, word: tl.tensor, peak: tl.tensor, factor: tl.tensor, greedy: tl.tensor) -> tl.tensor:
    """What an entry races with: its weight over its draw; in greedy rows 1 for the likeliest and 0 for others."""
    base = tl.where(peak == float("-inf"), 0.0, peak)
    chance = tl.exp2((x - base) * factor) * rate(word)
    if greedy is not None:
        chance = tl.where(greedy, (x == peak).to(tl.float32), chance)
    return chance


OP = Op(
    name="sample",
    launch=sample_with_logprobs,
    prepare=prepare_sample,
    reference=sample_with_logprobs_reference,
    cases=sample_cases,
    cost=logits_cost,
    complaint=sample_complaint,
)
