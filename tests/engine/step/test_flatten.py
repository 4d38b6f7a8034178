"""The flat tensors of a step against a description of them, token by token."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from backends.engine.step.batch import Batch
from backends.engine.step.flatten import BatchBuilder, Span, build_batch, build_steps
from kernels.paging import PAGE_SIZE

CPU = torch.device("cpu")


@st.composite
def spans(draw: st.DrawFn) -> list[Span]:
    """Some spans on pages of their own, with more pages than they need."""
    found = []
    next_page = 3
    for _ in range(draw(st.integers(1, 5))):
        start = draw(st.sampled_from((0, 1, 62, 63, 64, 65, 127, 200)))
        tokens = draw(st.lists(st.integers(0, 99), min_size=1, max_size=4))
        num_pages = (start + len(tokens)) // PAGE_SIZE + draw(st.integers(1, 2))
        found.append(Span(tokens, start, list(range(next_page, next_page + num_pages))))
        next_page += num_pages
    return found


@given(spans(), st.lists(st.integers(0, 3), max_size=4))
def test_batch_of_spans_says_where_each_token_goes(made: list[Span], rows: list[int]) -> None:
    """Tokens one after the other, each with its position and its slot; per sequence its pages and lengths."""
    batch = build_batch(made, rows, CPU)

    flat = [(span, offset) for span in made for offset in range(len(span.tokens))]
    assert batch.token_ids.tolist() == [span.tokens[offset] for span, offset in flat]
    assert batch.positions.tolist() == [span.start + offset for span, offset in flat]
    assert batch.slots.tolist() == [
        span.pages[(span.start + offset) // PAGE_SIZE] * PAGE_SIZE + (span.start + offset) % PAGE_SIZE
        for span, offset in flat
    ]
    assert batch.rows.tolist() == rows
    ends = [span.start + len(span.tokens) for span in made]
    assert batch.plan.kv_lengths.tolist() == ends
    assert batch.plan.query_starts.diff().tolist() == [len(span.tokens) for span in made]
    assert (batch.plan.max_query, batch.plan.max_kv) == (max(len(span.tokens) for span in made), max(ends))
    for row, span, end in zip(batch.plan.page_table.tolist(), made, ends, strict=True):
        used = -(-end // PAGE_SIZE)
        assert row == span.pages[:used] + [0] * (len(row) - used)
    assert batch.plan.page_table.dtype == batch.plan.kv_lengths.dtype == batch.plan.query_starts.dtype == torch.int32
    assert batch.token_ids.dtype == batch.positions.dtype == batch.slots.dtype == batch.rows.dtype == torch.int64


def described(batch: Batch) -> dict[str, object]:
    """Everything that a batch says."""
    plan = batch.plan
    tensors = {name: getattr(batch, name) for name in ("token_ids", "positions", "slots", "rows")}
    tensors |= {name: getattr(plan, name) for name in ("page_table", "query_starts", "kv_lengths")}
    numbers = {"max_query": plan.max_query, "max_kv": plan.max_kv}
    return numbers | {name: (tensor.dtype, tensor.tolist()) for name, tensor in tensors.items()}


@given(spans(), st.lists(st.sampled_from(("on", "again", "drop", "swap", "two tokens", "rows", "pages")), max_size=12))
def test_builder_step_by_step_builds_what_each_step_says(made: list[Span], changes: list[str]) -> None:
    """Whatever becomes of the sequences from step to step, page borders included, each batch is as built alone."""
    builder = BatchBuilder(CPU)
    current, num_rows = [Span([5], span.start, span.pages) for span in made], len(made)
    for number, change in enumerate(["on", *changes]):
        further = 0 if change == "again" else 1
        current = [Span([number], span.start + further, span.pages) for span in current]
        for span in current:
            if span.start // PAGE_SIZE == len(span.pages):
                span.pages.append(900 + number)
        match change:
            case "drop" if len(current) > 1:
                del current[0]
            case "swap":
                current.reverse()
            case "two tokens":
                current[-1] = Span([1, 2], current[-1].start - 1, current[-1].pages)
            case "rows":
                num_rows -= 1
            case "pages":
                current[-1].pages[0] = 800 + number
        rows = list(range(max(num_rows, 1)))

        assert described(builder.build(current, rows)) == described(build_batch(current, rows, CPU))


def test_builder_keeps_what_lasts_while_every_sequence_stays_on_its_page() -> None:
    """What one step's readers left for the next is there until a sequence reaches another page."""
    builder = BatchBuilder(CPU)
    kept = [
        builder.build([Span([1], first, [4, 5]), Span([1], first + 20, [7, 8])], [0, 1]).plan.lasting
        for first in range(40, 50)
    ]

    assert all(lasting is kept[0] for lasting in kept[:4])
    assert kept[4] is not kept[0]
    assert all(lasting is kept[4] for lasting in kept[4:])


@given(spans(), st.integers(1, 5))
def test_steps_of_spans_are_batches_of_one_token_that_stop_at_the_end(made: list[Span], num_steps: int) -> None:
    """Step i is the batch of the i-th token of each span, or of the last."""
    steps = list(build_steps(made, num_steps, CPU))

    assert len(steps) == num_steps
    for number, step in enumerate(steps):
        now = [Span([7], min(span.start + number, span.start + len(span.tokens) - 1), span.pages) for span in made]
        expected = build_batch(now, list(range(len(made))), CPU)
        batch = step.batch(torch.full((len(made),), 7))
        for name in ("token_ids", "positions", "slots", "rows"):
            assert getattr(batch, name).tolist() == getattr(expected, name).tolist(), name
        assert batch.plan.kv_lengths.tolist() == expected.plan.kv_lengths.tolist()
        assert batch.plan.query_starts.tolist() == expected.plan.query_starts.tolist()
        width = expected.plan.page_table.shape[1]
        used = [at // PAGE_SIZE + 1 for at in expected.positions.tolist()]
        for row, shorter, count in zip(
            batch.plan.page_table.tolist(), expected.plan.page_table.tolist(), used, strict=True
        ):
            assert row[:count] == shorter[:count]
        assert batch.plan.page_table.shape[1] >= width
        assert batch.plan.max_kv >= expected.plan.max_kv
