"""The kernels that choose tokens, in Triton's interpreter, beyond their cases. Run by `test_against_float64.py`."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from kernels.choice.cases import ChoiceShape, build_reject, build_rows
from kernels.choice.penalties import Penalties
from kernels.choice.probabilities_kernel import probabilities
from kernels.choice.random import ACCEPT_STREAM, TARGET_STREAM, negated_exponentials_reference
from kernels.choice.reject_kernel import reject
from kernels.choice.sample import SampleRows, sample_reference
from kernels.choice.sample_kernel import sample, sample_with_logprobs
from tests.support.kernels.chi_square import P_001, misfit
from tests.support.kernels.triton_interpreter import repair_interpreter

repair_interpreter()
CPU = torch.device("cpu")
RUNS = 100


@pytest.fixture(autouse=True)
def _poisoned_memory() -> None:
    """Memory that is not yet written to holds NaN, so that an entry that is left out shows."""
    torch.use_deterministic_algorithms(True)


def with_rows(rows: SampleRows, index: Tensor) -> SampleRows:
    """Those rows alone, or in another order."""
    parts = (rows.seeds, rows.positions, rows.temperature, rows.top_k, rows.top_p, rows.min_p, rows.is_greedy)
    penalties = rows.penalties
    if penalties is not None:
        paid = (penalties.texts, penalties.repetition, penalties.frequency, penalties.presence)
        penalties = Penalties(penalties.seen, *(part[index] for part in paid))
    return SampleRows(*(None if part is None else part[index] for part in parts), penalties)  # type: ignore[arg-type]


def test_sample_draws_follow_the_distribution() -> None:
    """Chi-square of draws at one position after another, under all filters at once, at p > 0.001."""
    shape = ChoiceShape(1, 6, temperature=(1.5,), top_k=(5,), top_p=(0.9,), min_p=(0.1,), scale=1.5)
    logits, rows = build_rows(shape, CPU)
    many = with_rows(rows, torch.zeros(RUNS, dtype=torch.int64))
    many = SampleRows(many.seeds, torch.arange(RUNS), many.temperature, many.top_k, many.top_p, many.min_p)

    tokens = sample(logits.expand(RUNS, -1).contiguous(), many, TARGET_STREAM)

    assert misfit(tokens.bincount(minlength=6), probabilities(logits, rows)[0]) < P_001


def test_sample_of_equal_logits_is_uniform() -> None:
    """Ties are drawn between, and a cut that falls among equals keeps them all."""
    _, rows = build_rows(ChoiceShape(RUNS, 4, min_p=(1.0,)), CPU)

    tokens = sample(torch.zeros(RUNS, 4), rows, TARGET_STREAM)

    assert misfit(tokens.bincount(minlength=4), torch.ones(4)) < P_001


def test_sample_row_depends_on_nothing_but_itself() -> None:
    """Alone, in another order and beside others, a row has the same token and log-probability, to the bit."""
    shape = ChoiceShape(
        5,
        9001,
        temperature=(0.7, 1.0),
        top_p=(0.9, 1.0, 0.5),
        top_k=(9001, 30),
        penalties=((1.0, 0.0, 0.0), (1.5, 0.5, 0.5), (0.8, -1.0, 0.0)),
    )
    logits, rows = build_rows(shape, CPU)
    tokens, logprobs = sample_with_logprobs(logits, rows, TARGET_STREAM)
    order = torch.tensor([3, 0, 4, 2, 1])

    shuffled = sample_with_logprobs(logits[order], with_rows(rows, order), TARGET_STREAM)
    alone = sample_with_logprobs(logits[2:3], with_rows(rows, torch.tensor([2])), TARGET_STREAM)

    assert torch.equal(shuffled[0], tokens[order])
    assert torch.equal(shuffled[1], logprobs[order])
    assert (alone[0].item(), alone[1].item()) == (tokens[2].item(), logprobs[2].item())


@pytest.mark.parametrize("stream", [TARGET_STREAM, ACCEPT_STREAM])
def test_sample_takes_the_noise_of_its_stream(stream: int) -> None:
    """As the twin does, for whichever stream is named."""
    logits, rows = build_rows(ChoiceShape(8, 40, scale=0.5), CPU)

    assert torch.equal(sample(logits, rows, stream), sample_reference(logits, rows, stream))


def test_sample_masked_row_gives_the_first_token() -> None:
    """Where nothing may be drawn the answer is 0, as the twin's, whatever the filters, and no neighbour is touched."""
    logits, rows = build_rows(ChoiceShape(4, 500, temperature=(1.0, 0.0), top_k=(40,), top_p=(0.9,), min_p=(0.1,)), CPU)
    before = sample(logits, rows, TARGET_STREAM)
    logits[:2] = -math.inf

    tokens = sample(logits, rows, TARGET_STREAM)

    assert tokens.tolist() == [0, 0, *before[2:].tolist()]
    assert torch.equal(tokens, sample_reference(logits, rows, TARGET_STREAM))


@pytest.mark.parametrize("vocab_size", [3, 500])
def test_sample_row_of_no_numbers_gives_some_token(vocab_size: int) -> None:
    """A model that breaks down answers nonsense, but no address is made of it, and no neighbour is touched."""
    logits, rows = build_rows(ChoiceShape(5, vocab_size, temperature=(1.0, 1.0, 0.0)), CPU)
    clean = sample(logits, rows, TARGET_STREAM)
    logits[0], logits[1], logits[2, 1:] = math.nan, math.inf, math.nan

    tokens, _ = sample_with_logprobs(logits, rows, TARGET_STREAM)

    assert ((tokens >= 0) & (tokens < vocab_size)).all()
    assert torch.equal(tokens[3:], clean[3:])


def test_reject_distribution_of_no_numbers_gives_some_token() -> None:
    """The same of what drafts are verified with."""
    arguments = build_reject((2, 0), 3, 1.0, 1.0, CPU)
    arguments["probs"][:] = math.nan

    _, tokens = reject(**arguments)

    assert ((tokens >= 0) & (tokens < 3)).all()


def test_probabilities_masked_row_has_none() -> None:
    """No NaN comes of it."""
    logits, rows = build_rows(ChoiceShape(2, 70, top_p=(0.5,)), CPU)
    logits[0] = -math.inf

    probs = probabilities(logits, rows)

    assert not probs[0].any()
    assert probs[1].sum().item() == pytest.approx(1.0)


def test_sample_of_no_rows_is_empty() -> None:
    """An empty step runs nothing."""
    logits, rows = build_rows(ChoiceShape(0, 70), CPU)

    assert sample(logits, rows, TARGET_STREAM).shape == (0,)
    assert probabilities(logits, rows).shape == (0, 70)


def test_sample_draws_of_the_smallest_noise_are_apart() -> None:
    """Among 60,000 equal logits the winner is that of the least draw, where it is a few hundred-thousandths."""
    size = 60_000
    rows = SampleRows(torch.tensor([7]), torch.tensor([3]), torch.ones(1))
    noise = -negated_exponentials_reference(rows.seeds, rows.positions, TARGET_STREAM, size)

    token = sample(torch.zeros(1, size), rows, TARGET_STREAM)

    assert noise.min() < 1e-4
    assert token.tolist() == noise.argmin(1).tolist()


def test_reject_gives_the_target_distribution() -> None:
    """Chi-square of the first token of one draft and what follows it, drawn from another distribution."""
    vocab = 5
    generator = torch.Generator().manual_seed(5)
    p, q = torch.randn(2, vocab, generator=generator).softmax(1).unbind(0)
    drafts = torch.multinomial(q, RUNS, replacement=True, generator=generator)
    seeds = torch.arange(RUNS).repeat_interleave(2)
    rows = SampleRows(seeds, torch.tensor([4, 5]).repeat(RUNS), torch.ones(2 * RUNS))
    probs = p.expand(2 * RUNS, -1).contiguous()

    accepted, tokens = reject(probs, q.expand(RUNS, -1).contiguous(), drafts, torch.arange(0, 2 * RUNS + 1, 2), rows)

    first = torch.where(accepted == 1, drafts, tokens)
    assert misfit(first.bincount(minlength=vocab), p) < P_001
    assert misfit(tokens[accepted == 1].bincount(minlength=vocab), p) < P_001
    rate = float(torch.minimum(p, q).sum())
    assert abs(float(accepted.double().mean()) - rate) < 4 * (rate * (1 - rate) / RUNS) ** 0.5
