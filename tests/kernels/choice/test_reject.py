"""Whatever a draft proposes, what comes out has the target's distribution, and good drafts are accepted."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kernels.choice.random import TARGET_STREAM
from kernels.choice.reject import reject_reference
from kernels.choice.sample import SampleRows, draw_reference
from tests.support.kernels.chi_square import P_001, misfit

VOCAB = 32
RUNS = 20_000


def random_table(seed: int, sharpness: float = 1.5) -> Tensor:
    """Distributions of the next token for each last one, [VOCAB, VOCAB]."""
    return (torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(seed)) * sharpness).softmax(1)


def wrong_support(target: Tensor) -> Tensor:
    """Mass only on the half of the tokens that the target likes least."""
    return torch.where(target < target.median(1, keepdim=True).values, 1.0, 0.0).div(VOCAB // 2 - 1)


def certain(target: Tensor) -> Tensor:
    """Always the target's fourth choice."""
    return torch.zeros_like(target).scatter_(1, target.argsort(1, descending=True)[:, 3:4], 1.0)


def narrow(target: Tensor) -> Tensor:
    """The target's own two likeliest tokens alone."""
    kept = torch.where(target >= target.topk(2, dim=1).values[:, 1:], target, 0.0)
    return kept / kept.sum(1, keepdim=True)


PROPOSERS: dict[str, Callable[[Tensor], Tensor]] = {
    "uniform": lambda target: torch.full_like(target, 1 / VOCAB),
    "wrong support": wrong_support,
    "one-hot": certain,
    "unrelated": lambda target: random_table(8, 4.0),
    "close": lambda target: 0.9 * target + 0.1 * random_table(9),
    "equal": lambda target: target.clone(),
    "narrow": narrow,
}


def speculate(
    target: Tensor, draft: Tensor, last: Tensor, positions: Tensor, num_drafts: int
) -> tuple[Tensor, Tensor, Tensor]:
    """One step of every run: (drafts [runs, num_drafts], number accepted, token that follows)."""
    seeds = torch.arange(len(last))
    drafts, probs, before = [], [], [last]
    for depth in range(num_drafts):
        probs.append(draft[before[-1]])
        drafts.append(draw_reference(probs[-1], ~seeds, positions + depth, TARGET_STREAM))
        before.append(drafts[-1])
    rows = num_drafts + 1
    sample_rows = SampleRows(
        seeds=seeds.repeat_interleave(rows),
        positions=(positions.unsqueeze(1) + torch.arange(rows)).flatten(),
        temperature=torch.ones(len(last) * rows),
    )
    accepted, following = reject_reference(
        target[torch.stack(before, 1).flatten()],
        torch.stack(probs, 1).flatten(0, 1),
        torch.stack(drafts, 1).flatten(),
        torch.arange(len(last) + 1) * rows,
        sample_rows,
    )
    return torch.stack(drafts, 1), accepted, following


@pytest.mark.parametrize("proposer", PROPOSERS)
@pytest.mark.parametrize("num_drafts", [1, 4])
def test_rejection_gives_the_first_three_tokens_the_target_distribution(proposer: str, num_drafts: int) -> None:
    """Chi-square over 20,000 runs of each token and of neighbouring pairs, in as many steps as three tokens take."""
    target = random_table(7)
    target = target / target.sum(1, keepdim=True)
    draft = PROPOSERS[proposer](target)
    text = torch.zeros((RUNS, 1 + 3 * (num_drafts + 1)), dtype=torch.int64)
    lengths = torch.ones(RUNS, dtype=torch.int64)
    for _ in range(3):
        last = text.gather(1, lengths.unsqueeze(1) - 1).squeeze(1)
        drafts, accepted, following = speculate(target, draft, last, lengths, num_drafts)
        new = torch.cat((drafts, drafts[:, :1]), 1).scatter(1, accepted.unsqueeze(1), following.unsqueeze(1))
        text.scatter_(1, lengths.unsqueeze(1) + torch.arange(num_drafts + 1), new)
        lengths += accepted + 1
    first, second, third = text[:, 1:4].unbind(1)
    one = target[0]
    two = one @ target

    assert misfit(first.bincount(minlength=VOCAB), one) < P_001
    assert misfit(second.bincount(minlength=VOCAB), two) < P_001
    assert misfit(third.bincount(minlength=VOCAB), two @ target) < P_001
    assert misfit((VOCAB * first + second).bincount(minlength=VOCAB**2), one.unsqueeze(1) * target) < P_001
    assert misfit((VOCAB * second + third).bincount(minlength=VOCAB**2), two.unsqueeze(1) * target) < P_001


@pytest.mark.parametrize("proposer", PROPOSERS)
def test_rejection_accepts_as_much_as_the_distributions_share(proposer: str) -> None:
    """The first draft is accepted with probability sum(min(p, q)), within 3 sigma of 20,000 runs."""
    target = random_table(7)
    draft = PROPOSERS[proposer](target)
    _, accepted, _ = speculate(target, draft, torch.zeros(RUNS, dtype=torch.int64), torch.ones(RUNS).long(), 1)
    expected = float(torch.minimum(target[0], draft[0]).sum())
    sigma = (expected * max(1 - expected, 0.0) / RUNS) ** 0.5

    assert abs(float(accepted.double().mean()) - expected) <= 3 * sigma + 1e-6


def test_rejection_of_ragged_sequences_treats_each_as_if_alone() -> None:
    """Sequences with 0 to 4 drafts in one batch; some without any."""
    generator = torch.Generator().manual_seed(3)
    counts = [0, 3, 1, 0, 4, 2, 0]
    starts = torch.tensor([0, *(count + 1 for count in counts)]).cumsum(0)
    num_rows, num_drafts = int(starts[-1]), sum(counts)
    probs = torch.rand(num_rows, VOCAB, generator=generator).softmax(1)
    draft_probs = torch.rand(num_drafts, VOCAB, generator=generator).softmax(1)
    drafts = torch.randint(VOCAB, (num_drafts,), generator=generator)
    rows = SampleRows(torch.arange(num_rows) * 7, torch.arange(num_rows), torch.ones(num_rows))
    together = reject_reference(probs, draft_probs, drafts, starts, rows)
    first_draft = 0
    for index, count in enumerate(counts):
        own = slice(int(starts[index]), int(starts[index + 1]))
        mine = slice(first_draft, first_draft + count)
        first_draft += count
        alone_rows = SampleRows(rows.seeds[own], rows.positions[own], rows.temperature[own])
        if count:
            alone = reject_reference(
                probs[own], draft_probs[mine], drafts[mine], torch.tensor([0, count + 1]), alone_rows
            )
        else:
            alone = (
                torch.tensor([0]),
                draw_reference(probs[own], alone_rows.seeds, alone_rows.positions, TARGET_STREAM),
            )

        assert [int(tensor[index]) for tensor in together] == [int(tensor[0]) for tensor in alone]


def test_rejection_of_greedy_rows_accepts_the_likeliest_and_nothing_else() -> None:
    """One-hot targets: the draft that equals it is accepted at any q, another is replaced by it."""
    probs = torch.eye(VOCAB)[[5, 6, 5, 6]]
    draft_probs = torch.full((2, VOCAB), 1 / VOCAB)
    rows = SampleRows(torch.arange(4), torch.arange(4), torch.ones(4))
    accepted, tokens = reject_reference(probs, draft_probs, torch.tensor([5, 9]), torch.tensor([0, 2, 4]), rows)

    assert accepted.tolist() == [1, 0]
    assert tokens.tolist() == [6, 5]
