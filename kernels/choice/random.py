"""Random numbers as a function of (seed, position, stream, index), so that no row's draw depends on its neighbours.

Philox 4x32 of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011, written from the paper. Key: the
seed's 64 bits. Counter: (index, position, stream, 0). Triton's `tl.philox` gives the same words for the same key,
counter and number of rounds.
"""

from __future__ import annotations

from typing import Any

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

ROUNDS = 7
"""The fewest that pass BigCrush (table 2 of the paper); 10 is what the authors name with a margin."""

TARGET_STREAM = 0
"""Draws of tokens."""
ACCEPT_STREAM = 1
"""Whether a draft is accepted."""

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_LOW = 0xFFFFFFFF
UNIFORM_SCALE = 4.6566127342e-10
"""2^-31, rounded down so that the largest word stays below 1 in float32; Triton's `tl.rand` has the same."""
UNIFORM_SHIFT = 2.0**-32
"""Keeps an exponential draw above zero: at zero its entry would win against any other."""
_HOST_BLOCK = 8192
"""Counters at once on the host: two of them fill 128 KiB, which stays in the cache."""


def philox_reference(seeds: Tensor, positions: Tensor, stream: int, indices: Tensor, *, rounds: int = ROUNDS) -> Tensor:
    """The four words of each row's counters: [rows, 4, counters] int32.

    `seeds`: [rows] int64, all 64 bits count. `positions`: [rows] int64 and `indices`: [rows or 1, counters] int64, both
    0..2^32 - 1.
    """
    if seeds.device.type != "cpu":
        return _philox_torch(seeds, positions, stream, indices, rounds)
    num_rows, num_counters = len(seeds), indices.shape[1]
    words = numpy.empty((num_rows, 4, num_counters), dtype=numpy.uint32)
    out = words.transpose(1, 0, 2)
    seed, position, index = seeds.numpy()[:, None], positions.numpy()[:, None], indices.numpy()
    block = max(_HOST_BLOCK // max(num_rows, 1), 1)
    for first in range(0, num_counters, block):
        part = slice(first, first + block)
        _philox_numpy(seed, position, stream, index[:, part], rounds, out[:, :, part])
    return torch.from_numpy(words.view(numpy.int32))


def uniforms_reference(words: Tensor) -> Tensor:
    """Numbers in [0, 1), float32, from int32 words of any shape, as `tl.rand` makes them."""
    return (words ^ (words >> 31)) * UNIFORM_SCALE


def negated_exponentials_reference(seeds: Tensor, positions: Tensor, stream: int, num_entries: int) -> Tensor:
    """Standard exponential draws with the sign turned, [rows, num_entries] float32, none of them 0 or infinite.

    With n = ceil(num_entries / 4) counters, entry i takes word i // n of counter i % n: a kernel reads four strips of
    the vocabulary at once, each in one piece.
    """
    counters = torch.arange(-(-num_entries // 4), device=seeds.device).unsqueeze(0)
    return _negated_exponentials(philox_reference(seeds, positions, stream, counters).flatten(1)[:, :num_entries])


def negated_exponentials_at_reference(
    seeds: Tensor, positions: Tensor, stream: int, num_entries: int, entries: Tensor
) -> Tensor:
    """Of each row only the draw of entry `entries[row]`, [rows] float32: bit-equal to that of the whole row."""
    num_counters = -(-num_entries // 4)
    if seeds.device.type != "cpu":
        words = philox_reference(seeds, positions, stream, (entries % num_counters).unsqueeze(1)).squeeze(2)
        return _negated_exponentials(words.gather(1, (entries // num_counters).unsqueeze(1)).squeeze(1))
    strips, counters = numpy.divmod(entries.numpy(), num_counters)
    table = numpy.empty((4, len(counters)), dtype=numpy.uint32)
    _philox_numpy(seeds.numpy(), positions.numpy(), stream, counters, ROUNDS, table)
    chosen = table[strips, numpy.arange(len(counters))]
    return _negated_exponentials(torch.from_numpy(chosen.view(numpy.int32)))


def _negated_exponentials(words: Tensor) -> Tensor:
    # log1p of a small number keeps the small draws, which decide, apart from each other.
    if words.device.type != "cpu":
        return ((words ^ (words >> 31)) * -UNIFORM_SCALE).sub_(UNIFORM_SHIFT).log1p_()
    # The same, in less time where there are few; only the last step is not bit-equal in numpy.
    table = words.numpy()
    draws = (table ^ (table >> 31)).astype(numpy.float32)
    draws *= numpy.float32(-UNIFORM_SCALE)
    draws -= numpy.float32(UNIFORM_SHIFT)
    return torch.from_numpy(draws).log1p_()


def _philox_torch(seeds: Tensor, positions: Tensor, stream: int, indices: Tensor, rounds: int) -> Tensor:
    device = seeds.device
    multipliers = torch.tensor(_MULTIPLIERS, device=device).view(2, 1, 1)
    steps = torch.tensor(_KEY_STEPS, device=device).view(2, 1) * torch.arange(rounds, device=device).view(-1, 1, 1)
    keys = (torch.stack((seeds & _LOW, seeds >> 32)) + steps).to(torch.int32).unsqueeze(3)
    # Words 0 and 2 are what is multiplied, words 1 and 3 what is mixed in.
    even = torch.zeros((2, len(seeds), indices.shape[1]), dtype=torch.int32, device=device)
    even[0] = indices
    even[1] = stream
    odd = torch.stack((positions, torch.zeros_like(positions))).to(torch.int32).unsqueeze(2)
    for key in keys.unbind(0):
        # The product overflows int64, but its bits are right.
        products = (even.to(torch.int64) & _LOW) * multipliers
        halves = products.view(torch.int32).view(*even.shape, 2).flip(0)
        even = halves[..., 1] ^ (odd ^ key)
        odd = halves[..., 0]
    return torch.stack((even[0], odd[0], even[1], odd[1]), dim=1)


def _philox_numpy(
    seeds: NDArray[Any],
    positions: NDArray[Any],
    stream: int,
    indices: NDArray[Any],
    rounds: int,
    out: NDArray[numpy.uint32],
) -> None:
    """The same on the host, where numpy takes a third of torch's time for arrays as small as a CPU step's.

    `seeds` and `positions` have one shape, and are broadcast with `indices`; `out`: [4, *that shape].
    """
    dims = (1,) * seeds.ndim
    multipliers = numpy.array(_MULTIPLIERS, dtype=numpy.uint64).reshape(2, *dims)
    steps = numpy.array(_KEY_STEPS, dtype=numpy.uint32) * numpy.arange(rounds, dtype=numpy.uint32)[:, None]
    halves_of_seeds = seeds.reshape(-1, 1).view(numpy.uint32).T.reshape(2, *seeds.shape)
    # They wrap around, as they should.
    keys = halves_of_seeds + steps.reshape(rounds, 2, *dims)
    # Words 0 and 2 wait in the low halves of what is multiplied next.
    wide = numpy.zeros((2, *out.shape[1:]), dtype=numpy.uint64)
    even: NDArray[numpy.uint32] = wide.view(numpy.uint32)[..., ::2]
    wide[0] = indices
    wide[1] = stream
    products = numpy.empty_like(wide)
    halves = products.view(numpy.uint32)[::-1]
    odd = numpy.zeros((2, *seeds.shape), dtype=numpy.uint32)
    odd[0] = positions
    for key in keys:
        mixed = odd ^ key
        numpy.multiply(wide, multipliers, out=products)
        numpy.bitwise_xor(halves[..., 1::2], mixed, out=even)
        odd = halves[..., ::2]
    out[::2] = even
    out[1::2] = odd
