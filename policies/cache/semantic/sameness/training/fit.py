"""Fits the heads, bends their log odds so that they are probabilities, and counts how often these hold."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from policies.cache.semantic.sameness.training.batches import ReadPair, WordedPair, in_batches, tensors
from policies.cache.semantic.sameness.training.network import Network

_HIDDEN = 32
_MEMBERS = 5
"""Fits of a head over answers, whose mean it is: of pairs that are the same one alone calls 61 to 69 % so, by luck."""
_SMOOTH = 0.01
"""Labels are so far from 0 and 1: some are mistaken, and a head must not learn to be surer than that."""

Floats = NDArray[np.float64]
Features = NDArray[np.float32]


class Scale(NamedTuple):
    """Mean and deviation of features in training: [features] each."""

    mean: Features
    deviation: Features

    def __call__(self, rows: Features) -> Features:
        """[rows, features], standardized."""
        return np.clip((rows - self.mean) / self.deviation, -4, 4).astype(np.float32)


def scale_of(rows: Features) -> Scale:
    """Of these."""
    return Scale(rows.mean(axis=0), rows.std(axis=0) + np.float32(1e-3))


def words_of(pairs: Sequence[ReadPair | WordedPair]) -> Features:
    """[pairs, FEATURES]."""
    return np.stack([pair.words for pair in pairs])


class Layers(NamedTuple):
    """Two, ReLU between them: `hidden` [width, features], `hidden_bias` [width], `out` [1, width], `out_bias` [1]."""

    hidden: Features
    hidden_bias: Features
    out: Features
    out_bias: Features


def fit_layers(features: Features, pairs: Sequence[WordedPair], scale: Scale, *, epochs: int, seed: int) -> Layers:
    """Over features [pairs, features] of whole answers: the mean of several fits, side by side."""
    rows = torch.from_numpy(scale(features))
    members = [_fit_member(rows, pairs, epochs, seed + number) for number in range(_MEMBERS)]
    hidden, hidden_bias, out, out_bias = zip(*members, strict=True)
    return Layers(
        np.concatenate(hidden),
        np.concatenate(hidden_bias),
        np.concatenate(out, axis=1) / np.float32(_MEMBERS),
        np.mean(out_bias, axis=0),
    )


def _fit_member(rows: Tensor, pairs: Sequence[WordedPair], epochs: int, seed: int) -> Layers:
    torch.manual_seed(seed)
    network = nn.Sequential(nn.Linear(rows.shape[1], _HIDDEN), nn.ReLU(), nn.Dropout(0.1), nn.Linear(_HIDDEN, 1))
    optimizer = torch.optim.AdamW(network.parameters(), 3e-3, weight_decay=1e-2)
    order = Random(seed)
    for _ in range(epochs):
        positions = list(range(len(pairs)))
        order.shuffle(positions)
        for start in range(0, len(positions), 128):
            batch = positions[start : start + 128]
            loss = loss_of(network(rows[batch]).squeeze(1), [pairs[at] for at in batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return Layers(*(parameter.detach().numpy() for parameter in network.parameters()))


def fit_matters(vectors: Features, weights: Features) -> tuple[Features, Features]:
    """[1, dimension] and [1]: which vectors [parts, dimension] of parts say anything of the matter: those of a weight
    [parts] above nothing, the others as much as they are below it.
    """
    layer = nn.Linear(vectors.shape[1], 1)
    rows, weighed = torch.from_numpy(vectors), torch.from_numpy(weights)
    targets = (weighed > 0).float()
    optimizer = torch.optim.AdamW(layer.parameters(), 2e-2, weight_decay=0.1)
    for _ in range(300):
        told = layer(rows).squeeze(1)
        loss = functional.binary_cross_entropy_with_logits(told, targets, weight=weighed.abs(), reduction="sum")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return layer.weight.detach().numpy(), layer.bias.detach().numpy()


def token_log_odds(network: Network, pairs: Sequence[ReadPair], scale: Scale) -> Floats:
    """Of each."""
    told = np.zeros(len(pairs))
    words = scale(words_of(pairs))
    with torch.inference_mode():
        for batch in in_batches([pair.num_tokens for pair in pairs], [1] * len(pairs), Random(0)):
            told[batch] = network(*tensors([pairs[at] for at in batch], words[batch])).numpy()
    return told


def layers_log_odds(layers: Layers, features: Features, scale: Scale) -> Floats:
    """Of each row."""
    hidden = np.maximum(scale(features) @ layers.hidden.T + layers.hidden_bias, 0)
    told: Floats = (hidden @ layers.out[0] + layers.out_bias[0]).astype(np.float64)
    return told


def bend_of(log_odds: Floats, is_same: NDArray[np.bool_]) -> tuple[float, float]:
    """Slope and intercept that make [pairs] log odds probabilities (Platt, 1999) where as many pairs say the same as do
    not.
    """
    x = torch.from_numpy(np.column_stack((log_odds, np.ones(len(log_odds)))))
    y = torch.from_numpy(is_same.astype(np.float64))
    weights = torch.where(y > 0, 0.5 / y.mean(), 0.5 / (1 - y.mean()))
    # His targets: the rate that so many of one kind allow to be claimed, not 1 and 0.
    num_same, num_other = float(y.sum()), float((1 - y).sum())
    targets = torch.where(y > 0, (num_same + 1) / (num_same + 2), 1 / (num_other + 2))
    bend = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([bend], max_iter=200, line_search_fn="strong_wolfe")

    def step() -> Tensor:
        optimizer.zero_grad()
        loss = functional.binary_cross_entropy_with_logits(x @ bend, targets, weight=weights)
        loss.backward()
        return loss

    optimizer.step(step)
    slope, intercept = bend.detach().tolist()
    return slope, intercept


def loss_of(log_odds: Tensor, pairs: Sequence[ReadPair | WordedPair]) -> Tensor:
    """Mean of the pairs' cross-entropies, as their weights say."""
    is_same = torch.tensor([float(pair.example.is_same) for pair in pairs])
    weights = torch.tensor([pair.example.weight for pair in pairs])
    targets = is_same * (1 - 2 * _SMOOTH) + _SMOOTH
    return functional.binary_cross_entropy_with_logits(log_odds, targets, weight=weights / weights.mean())
