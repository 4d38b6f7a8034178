"""From sequences to the flat tensors of a step, with few torch calls and one copy to the device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from backends.engine.step.batch import Batch
from kernels.attention.plan import AttentionPlan
from kernels.attention.shared_prefix import worthwhile_prefixes
from kernels.paging import PAGE_SIZE
from kernels.tuning import MAX_QUERY


@dataclass(frozen=True, slots=True)
class Span:
    """Neighbouring tokens of one sequence: `tokens` from position `start` on, which `pages` have room for."""

    tokens: list[int]
    start: int
    pages: list[int]


def build_batch(spans: Sequence[Span], rows: Sequence[int], device: torch.device) -> Batch:
    """The batch of all `spans`, one after the other; `rows` are flat tokens whose hidden states are wanted.

    On CUDA the copy, from pinned memory, is not waited for, and sequences that begin alike are looked for.
    """
    tokens: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    starts, lengths, max_query = [0], [], 0
    for span in spans:
        count = len(span.tokens)
        end = span.start + count
        tokens += span.tokens
        pages = span.pages
        if count == 1:
            positions.append(span.start)
            slots.append(pages[span.start // PAGE_SIZE] * PAGE_SIZE + span.start % PAGE_SIZE)
        else:
            positions += range(span.start, end)
            slots += [pages[at // PAGE_SIZE] * PAGE_SIZE + at % PAGE_SIZE for at in range(span.start, end)]
        starts.append(starts[-1] + count)
        lengths.append(end)
        max_query = max(max_query, count)
    max_kv = max(lengths)
    width = -(-max_kv // PAGE_SIZE)
    table: list[int] = []
    for span, end in zip(spans, lengths, strict=True):
        used = -(-end // PAGE_SIZE)
        table += span.pages[:used]
        table += [0] * (width - used)
    # One list, one tensor, one copy: a torch call costs more than a hundred numbers.
    flat = [*tokens, *positions, *slots, *rows, *table, *starts, *lengths]
    buffer = torch.tensor(flat, dtype=torch.int64, pin_memory=device.type == "cuda").to(device, non_blocking=True)
    num_tokens, num_rows, num_spans = len(tokens), len(rows), len(spans)
    num_ints = num_spans * width + 2 * num_spans + 1
    longs, ints = buffer.split_with_sizes((3 * num_tokens + num_rows, num_ints))
    token_ids, position, slot, row = longs.split_with_sizes((num_tokens, num_tokens, num_tokens, num_rows))
    page_table, query_starts, kv_lengths = ints.int().split_with_sizes((num_spans * width, num_spans + 1, num_spans))
    shared = None
    if device.type == "cuda" and max_query <= MAX_QUERY and num_spans > 1:
        shared = worthwhile_prefixes([span.pages for span in spans], [span.start for span in spans], device)
    plan = AttentionPlan(page_table.view(num_spans, width), query_starts, kv_lengths, max_query, max_kv, shared)
    return Batch(token_ids, position, slot, plan, row)


class BatchBuilder:
    """`build_batch` for one step after the other, quicker where every sequence just goes on by a token.

    A step on the CPU finds little of what it needs in the caches, through which all weights have passed since, and a
    torch call that is the first of its kind costs 5 to 15 us there: what can stay from the step before, does.
    A batch is overwritten by the next, so the step of one has to be over when the next is built.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._last: _Decode | None = None

    def build(self, spans: Sequence[Span], rows: Sequence[int]) -> Batch:
        """As `build_batch`."""
        if self._last is not None and self._last.goes_on(spans, rows):
            return self._last.advance([span.tokens[0] for span in spans])
        batch = build_batch(spans, rows, self._device)
        is_decode = self._device.type == "cpu" and batch.plan.max_query == 1
        self._last = _Decode(batch, spans, rows) if is_decode else None
        return batch


class _Decode:
    """A step of one token a sequence, and those that follow it."""

    def __init__(self, batch: Batch, spans: Sequence[Span], rows: Sequence[int]) -> None:
        self._batch = batch
        self._rows = list(rows)
        self._starts = [span.start for span in spans]
        self._pages = [span.pages.copy() for span in spans]

    def goes_on(self, spans: Sequence[Span], rows: Sequence[int]) -> bool:
        """Whether `spans` are those of the step before, each one token further and on the same page."""
        if len(spans) != len(self._starts) or rows != self._rows:
            return False
        for span, start, pages in zip(spans, self._starts, self._pages, strict=True):
            if span.start != start + 1 or not span.start % PAGE_SIZE or len(span.tokens) > 1 or span.pages != pages:
                return False
        return True

    def advance(self, tokens: list[int]) -> Batch:
        """The next step's batch, of `tokens`."""
        last = self._batch
        plan = last.plan
        for numbers in (last.positions, last.slots, plan.kv_lengths):
            numbers.add_(1)
        self._starts = [start + 1 for start in self._starts]
        plan = AttentionPlan(
            plan.page_table, plan.query_starts, plan.kv_lengths, 1, plan.max_kv + 1, None, lasting=plan.lasting
        )
        self._batch = Batch(torch.tensor(tokens), last.positions, last.slots, plan, last.rows)
        return self._batch


@dataclass(frozen=True, slots=True)
class DecodeStep:
    """Where one token of each sequence goes; with token ids, a batch."""

    positions: Tensor
    slots: Tensor
    plan: AttentionPlan
    rows: Tensor

    def batch(self, token_ids: Tensor) -> Batch:
        """The step over `token_ids`, [sequences] int64."""
        return Batch(token_ids, self.positions, self.slots, self.plan, self.rows)


def build_steps(spans: Sequence[Span], num_steps: int, device: torch.device) -> Iterator[DecodeStep]:
    """`num_steps` steps of one token a sequence, from `span.start` on; the tokens come when they are known.

    A sequence stops at the end of its span, whose last position is written again by the steps that are left.
    """
    num_spans = len(spans)
    ends = [span.start + len(span.tokens) for span in spans]
    width = -(-max(ends) // PAGE_SIZE)
    flat: list[int] = []
    for step in range(num_steps):
        positions = [min(span.start + step, end - 1) for span, end in zip(spans, ends, strict=True)]
        flat += positions
        flat += [
            span.pages[at // PAGE_SIZE] * PAGE_SIZE + at % PAGE_SIZE for span, at in zip(spans, positions, strict=True)
        ]
        flat += [at + 1 for at in positions]
    flat += range(num_spans + 1)
    for span in spans:
        pages = span.pages[:width]
        flat += pages
        flat += [0] * (width - len(pages))
    buffer = torch.tensor(flat, dtype=torch.int64, pin_memory=device.type == "cuda").to(device, non_blocking=True)
    parts = buffer.split_with_sizes([num_spans] * (3 * num_steps) + [num_spans + 1, num_spans * width])
    starts, table = parts[-2].int(), parts[-1].view(num_spans, width).int()
    rows = parts[-2][:-1]
    for step in range(num_steps):
        plan = AttentionPlan(table, starts, parts[3 * step + 2].int(), 1, max(ends))
        yield DecodeStep(parts[3 * step], parts[3 * step + 1], plan, rows)
