"""Fits both heads, bends their log odds so that they are probabilities, and counts how often these hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from policies.cache.semantic.sameness.training.batches import ReadPair, in_batches, tensors
from policies.cache.semantic.sameness.training.network import Network
from policies.cache.semantic.sameness.words import FEATURES

_HIDDEN = 32
_RATE = 2e-3
_WARM_STEPS = 100
_SMOOTH = 0.01
"""Labels are so far from 0 and 1: some are mistaken, and a head must not learn to be surer than that."""

Floats = NDArray[np.float64]


class Scale(NamedTuple):
    """Mean and deviation of the words' features in training: [FEATURES] each."""

    mean: NDArray[np.float32]
    deviation: NDArray[np.float32]

    def __call__(self, samples: Sequence[ReadPair]) -> NDArray[np.float32]:
        """[samples, FEATURES], standardized."""
        words = np.stack([sample.words for sample in samples])
        return np.clip((words - self.mean) / self.deviation, -4, 4).astype(np.float32)


def scale_of(samples: Sequence[ReadPair]) -> Scale:
    """Of these."""
    words = np.stack([sample.words for sample in samples])
    return Scale(words.mean(axis=0), words.std(axis=0) + np.float32(1e-3))


def fit_tokens(
    samples: Sequence[ReadPair], scale: Scale, *, epochs: int, seed: int, note: Callable[[str], None]
) -> Network:
    """The head over tokens. AdamW with a rate that rises for a moment and then falls to nothing."""
    torch.manual_seed(seed)
    random = Random(seed)
    network = Network(samples[0].one.vectors.shape[1], len(FEATURES))
    optimizer = torch.optim.AdamW(network.parameters(), _RATE, weight_decay=1e-2)
    rounds = [in_batches(samples, random) for _ in range(epochs)]
    num_steps = sum(map(len, rounds))
    step = 0
    for epoch, batches in enumerate(rounds):
        total = 0.0
        for batch in batches:
            step += 1
            for group in optimizer.param_groups:
                group["lr"] = _RATE * min(1.0, step / _WARM_STEPS) * (1 - step / (num_steps + 1))
            chosen = [samples[at] for at in batch]
            loss = _loss(network(*tensors(chosen, scale(chosen))), chosen)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimizer.step()
            total += float(loss.detach()) * len(batch)
        note(f"epoch {epoch + 1} of {epochs}: loss {total / len(samples):.4f}")
    return network.eval()


def fit_words(samples: Sequence[ReadPair], scale: Scale, *, epochs: int, seed: int) -> nn.Sequential:
    """The head over words alone."""
    torch.manual_seed(seed)
    network = nn.Sequential(nn.Linear(len(FEATURES), _HIDDEN), nn.ReLU(), nn.Dropout(0.1), nn.Linear(_HIDDEN, 1))
    optimizer = torch.optim.AdamW(network.parameters(), 3e-3, weight_decay=1e-2)
    words = torch.from_numpy(scale(samples))
    order = Random(seed)
    for _ in range(epochs):
        positions = list(range(len(samples)))
        order.shuffle(positions)
        for start in range(0, len(positions), 256):
            batch = positions[start : start + 256]
            loss = _loss(network(words[batch]).squeeze(1), [samples[at] for at in batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return network.eval()


def token_log_odds(network: Network, samples: Sequence[ReadPair], scale: Scale) -> Floats:
    """Of each."""
    told = np.zeros(len(samples))
    with torch.inference_mode():
        for batch in in_batches(samples, Random(0)):
            chosen = [samples[at] for at in batch]
            told[batch] = network(*tensors(chosen, scale(chosen))).numpy()
    return told


def word_log_odds(network: nn.Sequential, samples: Sequence[ReadPair], scale: Scale) -> Floats:
    """Of each."""
    with torch.inference_mode():
        told: Floats = network(torch.from_numpy(scale(samples))).squeeze(1).double().numpy()
    return told


def bend_of(log_odds: Floats, is_same: NDArray[np.bool_]) -> Floats:
    """[heads + 1]: weights and intercept that make [pairs, heads] log odds probabilities (Platt, 1999) where as many
    pairs say the same as do not.
    """
    x = torch.from_numpy(np.column_stack((log_odds, np.ones(len(log_odds)))))
    y = torch.from_numpy(is_same.astype(np.float64))
    weights = torch.where(y > 0, 0.5 / y.mean(), 0.5 / (1 - y.mean()))
    # His targets: the rate that so many of one kind allow to be claimed, not 1 and 0.
    num_same, num_other = float(y.sum()), float((1 - y).sum())
    targets = torch.where(y > 0, (num_same + 1) / (num_same + 2), 1 / (num_other + 2))
    bend = torch.zeros(x.shape[1], dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([bend], max_iter=200, line_search_fn="strong_wolfe")

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = functional.binary_cross_entropy_with_logits(x @ bend, targets, weight=weights)
        loss.backward()
        return loss

    optimizer.step(step)
    found: Floats = bend.detach().numpy()
    return found


def _loss(log_odds: torch.Tensor, samples: Sequence[ReadPair]) -> torch.Tensor:
    is_same = torch.tensor([float(sample.example.is_same) for sample in samples])
    weights = torch.tensor([sample.example.weight for sample in samples])
    targets = is_same * (1 - 2 * _SMOOTH) + _SMOOTH
    return functional.binary_cross_entropy_with_logits(log_odds, targets, weight=weights)
