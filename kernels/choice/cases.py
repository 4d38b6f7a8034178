"""What the kernels that choose tokens are tried with: rows of random logits, each with its seed and filters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from kernels.choice.penalties import Penalties
from kernels.choice.random import TARGET_STREAM
from kernels.choice.sample import SampleRows
from kernels.operation import Arguments, Case, Cost, cases_of

_SEED = 22
_FAR = 2**32 - 1
"""The furthest position."""
_NOTHING = (1.0, 0.0, 0.0)
"""The penalties of a row that pays none."""


@dataclass(frozen=True, slots=True)
class ChoiceShape:
    """`num_rows` rows of `vocab_size` logits; filters have a value a row, or one for all.

    `scale`: of the normal logits. `step` > 0: logits are its multiples, so that many are equal. `num_masked`: leading
    entries that are -inf. `is_gapped`: rows of a wider matrix. A temperature of 0 is a greedy row. `penalties`:
    repetition, frequency and presence; rows of (1, 0, 0) have no text, others one of two.
    """

    num_rows: int
    vocab_size: int
    temperature: Sequence[float] = (1.0,)
    top_k: Sequence[int] | None = None
    top_p: Sequence[float] | None = None
    min_p: Sequence[float] | None = None
    scale: float = 3.0
    step: float = 0.0
    num_masked: int = 0
    is_gapped: bool = False
    penalties: Sequence[tuple[float, float, float]] | None = None


def build_rows(shape: ChoiceShape, device: torch.device) -> tuple[Tensor, SampleRows]:
    """Logits and how their rows are drawn."""
    generator = None if device.type == "meta" else torch.Generator(device).manual_seed(_SEED)
    width = shape.vocab_size + (5 if shape.is_gapped else 0)
    logits = torch.randn(shape.num_rows, width, generator=generator, device=device) * shape.scale
    if shape.step:
        logits = (logits / shape.step).round_() * shape.step
    logits = logits[:, : shape.vocab_size]
    logits[:, : shape.num_masked] = float("-inf")
    count = shape.num_rows
    # Neighbours have neighbouring keys and counters, at both ends of their ranges.
    numbers = torch.arange(count)
    temperature = _repeated(shape.temperature, count, torch.float32)
    rows = SampleRows(
        seeds=torch.where(numbers % 2 == 0, numbers, -(2**63) + numbers).to(device),
        positions=torch.where(numbers % 3 == 2, _FAR - numbers, numbers).to(device),
        temperature=torch.where(temperature > 0, temperature, 1.0).to(device),
        top_k=None if shape.top_k is None else _repeated(shape.top_k, count, torch.int64).to(device),
        top_p=None if shape.top_p is None else _repeated(shape.top_p, count, torch.float32).to(device),
        min_p=None if shape.min_p is None else _repeated(shape.min_p, count, torch.float32).to(device),
        is_greedy=(temperature == 0).to(device) if 0 in shape.temperature else None,
        penalties=None if shape.penalties is None else _penalties(shape.penalties, logits),
    )
    return logits, rows


def _penalties(values: Sequence[tuple[float, float, float]], logits: Tensor) -> Penalties:
    """Of two texts: a sixteenth of the tokens stands in each, up to four times in its answer or in its prompt alone."""
    num_rows, vocab_size = logits.shape
    device = logits.device
    numbers = torch.arange(2 * vocab_size, device=device).view(2, vocab_size)
    marks = numbers * 2_654_435_761 % 2**32 >> 25
    chosen = [values[row % len(values)] for row in range(num_rows)]
    texts = [row % 2 if value != _NOTHING else -1 for row, value in enumerate(chosen)]
    repetition, frequency, presence = torch.tensor(chosen, device=device).view(-1, 3).t().contiguous().unbind(0)
    return Penalties(
        seen=(marks - 119).clamp(min=0).int(),
        texts=torch.tensor(texts, dtype=torch.int64, device=device),
        repetition=repetition,
        frequency=frequency,
        presence=presence,
    )


def build_sample(shape: ChoiceShape, device: torch.device) -> Arguments:
    """Arguments of `sample`."""
    logits, rows = build_rows(shape, device)
    return {"logits": logits, "rows": rows, "stream": TARGET_STREAM}


def build_probabilities(shape: ChoiceShape, device: torch.device) -> Arguments:
    """Arguments of `probabilities`."""
    logits, rows = build_rows(shape, device)
    return {"logits": logits, "rows": rows}


def build_reject(
    num_drafts: Sequence[int], vocab_size: int, distance: float, scale: float, device: torch.device
) -> Arguments:
    """Arguments of `reject` for sequences of so many drafts each.

    Proposals come from the target's logits plus `distance` times others; entries of small probability have none.
    """
    starts = [0]
    for count in num_drafts:
        starts.append(starts[-1] + count + 1)
    logits, rows = build_rows(ChoiceShape(starts[-1], vocab_size, scale=scale), device)
    others = torch.randn_like(logits) if device.type == "meta" else logits.roll(1, dims=0)
    is_drafted = torch.ones(starts[-1], dtype=torch.bool)
    is_drafted[torch.tensor(starts[1:], dtype=torch.int64) - 1] = False
    drafted = torch.nonzero(is_drafted).flatten().to(device)
    probs, draft_probs = (
        (values - values.logsumexp(1, keepdim=True)).exp() for values in (logits, logits + distance * others)
    )
    probs, draft_probs = (torch.where(values < 1e-5, 0.0, values) for values in (probs, draft_probs[drafted]))
    return {
        "probs": probs,
        "draft_probs": draft_probs,
        # The likeliest of what is proposed, as often as not.
        "drafts": draft_probs.argmax(1) if draft_probs.numel() else drafted,
        "row_starts": torch.tensor(starts).to(device),
        "rows": rows,
    }


def logits_cost(arguments: Arguments) -> Cost:
    """Each logit once, and what was seen where rows pay for it; a draw is about forty operations."""
    count = arguments["logits"].numel()
    return Cost(num_bytes=_bytes_read(arguments), num_operations=40 * count)


def probabilities_cost(arguments: Arguments) -> Cost:
    """Each logit once, what was seen where rows pay for it, and as many probabilities."""
    count = arguments["logits"].numel()
    return Cost(num_bytes=4 * count + _bytes_read(arguments), num_operations=4 * count)


def reject_cost(arguments: Arguments) -> Cost:
    """One row of either distribution a sequence: where its drafts end."""
    count = (arguments["row_starts"].shape[0] - 1) * arguments["probs"].shape[1]
    return Cost(num_bytes=8 * count, num_operations=40 * count)


def _bytes_read(arguments: Arguments) -> int:
    logits: Tensor = arguments["logits"]
    penalties: Penalties | None = arguments["rows"].penalties
    return 4 * logits.numel() + (0 if penalties is None else 4 * penalties.seen.numel())


def _repeated(values: Sequence[float], count: int, dtype: torch.dtype) -> Tensor:
    """The values over and over, [count]."""
    return torch.tensor([values[index % len(values)] for index in range(count)], dtype=dtype)


_SMALL = {
    "one-entry": ChoiceShape(2, 1),
    "three-entries": ChoiceShape(3, 3, temperature=(0.5, 2.0)),
    "temperatures": ChoiceShape(4, 1003, temperature=(0.1, 1.0, 1.7, 5.0), is_gapped=True),
    "parts": ChoiceShape(8, 9001, temperature=(1.0, 0.5)),
    "greedy-beside-drawn": ChoiceShape(6, 9001, temperature=(0.0, 1.0), step=6.0),
    "greedy-of-almost-equal": ChoiceShape(3, 5000, temperature=(0.0,), scale=1e-9),
    "top-k": ChoiceShape(6, 9003, top_k=(1, 2, 40, 300, 9002, 9003)),
    # Of both zeros.
    "all-equal": ChoiceShape(2, 9000, top_k=(3, 9000), top_p=(1.0, 0.5), scale=0.0),
    "top-p": ChoiceShape(6, 9001, top_p=(0.0, 0.3, 0.8, 0.95, 0.999, 1.0), is_gapped=True),
    "all-filters": ChoiceShape(
        6,
        5003,
        temperature=(1.0, 0.7, 3.0, 0.0, 1.2),
        top_k=(50, 5003, 3000, 5, 900, 2),
        top_p=(0.9, 0.5, 0.9, 0.1, 1.0, 0.999),
        min_p=(0.01, 0.0, 0.001, 0.5, 0.1, 0.0),
        step=0.125,
        is_gapped=True,
    ),
    "masked": ChoiceShape(4, 2000, top_k=(2000, 20, 3, 2000), top_p=(1.0, 0.9, 0.99, 0.7), num_masked=1990),
    "masked-but-one": ChoiceShape(2, 3000, temperature=(1.0, 0.0), min_p=(0.1, 0.0), num_masked=2999),
    "peaked": ChoiceShape(8, 5003, temperature=(1.0, 0.3, 2.0), top_p=(0.999, 1.0, 0.9, 0.999999), scale=10.0),
    "peaked-top-k": ChoiceShape(5, 3000, top_k=(1, 2, 3, 40, 3000), top_p=(0.999, 1.0), scale=20.0),
    "peaked-beyond-float32": ChoiceShape(4, 2000, temperature=(1.0, 0.1), min_p=(0.0, 1e-30), scale=40.0),
    "penalties": ChoiceShape(5, 2051, penalties=((1.3, 0.5, 0.25), (1.0, 0.0, 0.0), (0.7, -1.5, 0.0)), is_gapped=True),
    "penalties-of-greedy": ChoiceShape(4, 5003, temperature=(0.0, 1.0), penalties=((1.0, 0.0, 2.0), (1.7, 2.0, -2.0))),
    "penalties-of-masked": ChoiceShape(3, 130, penalties=((2.0, 1.0, 1.0),), top_p=(0.9,), num_masked=90),
    "penalties-and-filters": ChoiceShape(
        4,
        3001,
        temperature=(0.7, 1.5),
        top_k=(40, 3001, 900),
        top_p=(0.9, 1.0),
        min_p=(0.0, 0.01),
        penalties=((1.1, 0.0, 0.0), (1.0, 0.75, 0.5), (1.0, 0.0, 0.0)),
    ),
}
_SMALL_CUTS = {
    "top-k-of-equal": ChoiceShape(4, 9000, top_k=(1, 3, 900, 4000), step=0.5),
    "top-p-of-flat": ChoiceShape(3, 9003, top_p=(0.2, 0.9, 0.99), scale=0.01),
    "top-p-of-equal": ChoiceShape(2, 5000, top_p=(0.01, 0.9), step=0.5, scale=1.0),
    "min-p": ChoiceShape(4, 3000, temperature=(1.0, 2.0), min_p=(0.0, 0.01, 0.2, 1.0)),
    "peaked-of-equal": ChoiceShape(6, 3000, top_k=(1, 2, 7, 3000), top_p=(1.0, 0.999, 0.5), scale=10.0, step=4.0),
}
_VOCAB = 128_256
_REAL = {
    "256x128k": ChoiceShape(256, _VOCAB),
    "256x128k-top-p": ChoiceShape(256, _VOCAB, top_p=(0.95,)),
    "256x128k-top-k-top-p": ChoiceShape(256, _VOCAB, temperature=(0.6,), top_k=(20,), top_p=(0.95,)),
    "256x128k-top-p-of-flat": ChoiceShape(256, _VOCAB, top_p=(0.95,), scale=1.0),
    "1x152k": ChoiceShape(1, 151_936),
    "1x152k-all-filters": ChoiceShape(1, 151_936, top_k=(20,), top_p=(0.95,), min_p=(0.01,)),
    "256x128k-penalties": ChoiceShape(256, _VOCAB, penalties=((1.1, 0.5, 0.5),)),
    "64x152k-penalties-top-p": ChoiceShape(64, 151_936, top_p=(0.9,), penalties=((1.1, 0.0, 0.0), (1.0, 0.0, 0.0))),
    "64x152k-greedy-beside-drawn": ChoiceShape(64, 151_936, temperature=(0.0, 1.0), top_p=(0.9,)),
}
_SMALL_REJECT: dict[str, tuple[Sequence[int], int, float, float]] = {
    "no-drafts": ((0, 0), 50, 1.0, 2.0),
    "one-entry": ((2, 0), 1, 1.0, 1.0),
    "ragged": ((3, 0, 5, 1, 2, 4), 1003, 0.3, 2.0),
    "parts": ((2, 4, 1), 9001, 0.5, 3.0),
    "many-drafts": ((17, 40, 20), 31, 0.15, 1.0),
    "far-from-the-target": ((2, 2, 2, 2), 257, 4.0, 3.0),
    "equal": ((3, 6), 100, 0.0, 2.0),
    "peaked": ((4, 2, 5), 1003, 0.1, 10.0),
    "peaked-and-far": ((4, 2, 5), 503, 1.0, 40.0),
    "certain": ((3, 3, 1), 500, 0.0, 1000.0),
}
_REAL_REJECT: dict[str, tuple[Sequence[int], int, float, float]] = {
    "16x4-128k": ((4,) * 16, _VOCAB, 0.3, 3.0),
    "1x7-152k": ((7,), 151_936, 0.3, 3.0),
}


def sample_cases() -> list[Case]:
    """Every filter alone and with the others, at the edges of their ranges."""
    return cases_of(build_sample, _SMALL, _REAL)


def probabilities_cases() -> list[Case]:
    """The same rows, and where cuts are hard to find, which is the same kernel's work for either."""
    return cases_of(build_probabilities, _SMALL | _SMALL_CUTS, _REAL)


def reject_cases() -> list[Case]:
    """Sequences of none to many drafts, as close to the target as can be and far from it."""
    return [
        *(Case(name, partial(build_reject, *numbers)) for name, numbers in _SMALL_REJECT.items()),
        *(Case(name, partial(build_reject, *numbers), is_real=True) for name, numbers in _REAL_REJECT.items()),
    ]
