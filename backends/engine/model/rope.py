"""Rotary position tables: which frequencies a model turns with, in both spellings of config.json, and their cosines.

Scalings: linear (Chen et al., 2023), Llama 3, YaRN (Peng et al., 2023), LongRoPE (Ding et al., 2024). Dynamic NTK
equals no scaling up to the model's own maximum, which is as far as we serve, so it is read as none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

RopeKind = Literal["default", "linear", "llama3", "yarn", "longrope"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Frequencies of one kind of layer.

    `rotary_dim`: how many of a head's numbers turn. `trained_positions`: the context before it was stretched.
    `attention_factor` scales cosines and sines. `short_factors`, `long_factors`: [rotary_dim / 2], longrope only.
    """

    kind: RopeKind = "default"
    theta: float
    rotary_dim: int
    factor: float = 1.0
    trained_positions: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float = 1.0
    short_factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()


def rope_table(config: RopeConfig, num_positions: int, device: torch.device) -> Tensor:
    """[num_positions, rotary_dim] float32, cosines in the first half, sines in the second.

    LongRoPE takes its long factors where `num_positions` passes the trained context, for every position: keys stay
    comparable and results do not depend on the neighbours in the batch. A context within the trained one is exact.
    """
    frequencies = _frequencies(config, num_positions)
    angles = torch.arange(num_positions, dtype=torch.float32)[:, None] * frequencies
    table = torch.cat((angles.cos(), angles.sin()), dim=1).mul_(config.attention_factor)
    return table.to(device)


def _frequencies(config: RopeConfig, num_positions: int) -> Tensor:
    """[rotary_dim / 2] float32, radians a position."""
    exponents = torch.arange(0, config.rotary_dim, 2, dtype=torch.float32) / config.rotary_dim
    plain = 1.0 / config.theta**exponents
    match config.kind:
        case "default":
            return plain
        case "linear":
            return plain / config.factor
        case "llama3":
            return _llama3(plain, config)
        case "yarn":
            return _yarn(plain, config)
        case "longrope":
            is_long = num_positions > config.trained_positions
            return plain / torch.tensor(config.long_factors if is_long else config.short_factors)


def _llama3(plain: Tensor, config: RopeConfig) -> Tensor:
    """High frequencies kept, low ones stretched by `factor`, a smooth passage between."""
    turns = config.trained_positions * plain / (2 * math.pi)
    kept = (turns - config.low_freq_factor) / (config.high_freq_factor - config.low_freq_factor)
    kept = kept.clamp(0.0, 1.0)
    return kept * plain + (1 - kept) * plain / config.factor


def _yarn(plain: Tensor, config: RopeConfig) -> Tensor:
    """As llama3, but the passage is linear in the frequency's number, between two counts of turns."""

    def number(turns: float) -> float:
        ratio = config.trained_positions / (turns * 2 * math.pi)
        return config.rotary_dim * math.log(ratio) / (2 * math.log(config.theta))

    low, high = number(config.beta_fast), number(config.beta_slow)
    if config.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, config.rotary_dim - 1)
    span = max(high - low, 0.001)
    stretched = ((torch.arange(plain.shape[0], dtype=torch.float32) - low) / span).clamp(0.0, 1.0)
    return stretched * plain / config.factor + (1 - stretched) * plain
