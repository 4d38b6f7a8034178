"""The draws of `random.py` inside of kernels: the same words bit for bit, exponentials within their roundings."""

# What a kernel is compiled for stands in capitals.
# ruff: noqa: N803

from __future__ import annotations

from kernels.choice.random import ROUNDS, UNIFORM_SCALE, UNIFORM_SHIFT
from kernels.jit import jit, tl

_ROUNDS = tl.constexpr(ROUNDS)
_SCALE = tl.constexpr(UNIFORM_SCALE)
_SHIFT = tl.constexpr(UNIFORM_SHIFT)


@jit()
def words(seed: tl.tensor, position: tl.tensor, STREAM: tl.constexpr, counters: tl.tensor) -> tl.tensor:
    """The four words of each counter [N] int32, int32 too; seed and position int64."""
    zero = counters * 0
    a, b, c, d = tl.philox(seed, counters, zero + position.to(tl.int32), zero + STREAM, zero, _ROUNDS)
    return (
        a.to(tl.int32, bitcast=True),
        b.to(tl.int32, bitcast=True),
        c.to(tl.int32, bitcast=True),
        d.to(tl.int32, bitcast=True),
    )


@jit()
def uniform(word: tl.tensor) -> tl.tensor:
    """A number in [0, 1)."""
    return (word ^ (word >> 31)).to(tl.float32) * _SCALE


@jit()
def rate(word: tl.tensor) -> tl.tensor:
    """One over a standard exponential draw, -log(1 - u): neither 0 nor infinite."""
    u = uniform(word) + _SHIFT
    rest = 1.0 - u
    # What the difference lost of u is put back as a factor (Goldberg, 1991, theorem 4): small draws decide.
    is_lost = rest == 1.0
    return tl.where(is_lost, 1.0, 1.0 - rest) / (u * tl.where(is_lost, 1.0, -tl.log(rest)))
