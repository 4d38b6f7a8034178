"""How far the kernels that choose tokens may be from the exact result: entry by entry, because rows may be peaked.

A softmax in float32 is off by the rounding of its exponents, in proportion to how far an entry lies below the row's
largest, and by that of its sum. A cut by weight may fall on either side of an entry only where the sum is that close.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from kernels.choice.penalties import penalised_reference
from kernels.choice.sample import SampleRows, probabilities_reference, sample_with_logprobs_reference
from kernels.operation import Arguments, Result, tensors

_ROUNDING = 2.0**-24
"""Half of the distance between 1 and the next float32."""
_PER_EXPONENT = 8
"""Roundings of an exponent (x - peak) * (log2(e) / temperature): one of each of its parts, of a GPU's quotient four."""
_BESIDE = 32
"""Of a GPU's power and quotient four each; the others are the sum's, of which most cancel each other."""
_SMALLEST = 2.0**-125
"""Where float32 begins to lose digits, and a GPU the number."""


def probabilities_complaint(arguments: Arguments, actual: Result, *, divides_first: bool = False) -> str | None:
    """What is wrong with distributions of `arguments`, whose floating tensors are float64; None if all is well.

    `divides_first`: logits are divided by the temperature before the largest is taken off, as the twin does it. They
    are then rounded at their own size, as they are where penalties are taken off.
    """
    rows: SampleRows = arguments["rows"]
    is_shifted = divides_first or rows.penalties is not None
    logits, rows = penalised_reference(arguments["logits"], rows.penalties), replace(rows, penalties=None)
    (probs,) = tensors(actual)
    if probs.shape != logits.shape:
        return f"of shape {list(probs.shape)} instead of {list(logits.shape)}"
    probs = probs.double()
    # What top-p goes by: weights after all other filters, of the sum 1.
    before = probabilities_reference(logits, replace(rows, top_p=None))
    depths = _depths(before)
    magnitudes = torch.zeros_like(depths)
    if is_shifted:
        magnitudes = (logits / rows.temperature.unsqueeze(1)).abs().masked_fill(before == 0, 0.0)
        magnitudes += magnitudes.gather(1, before.argmax(1, keepdim=True))
    said = _complaint_of_cut(probs, before, _allowed(before, depths, magnitudes), rows)
    if said:
        return said
    kept = before * (probs > 0)
    exact = kept / kept.sum(1, keepdim=True)
    allowed = (_PER_EXPONENT * (depths + magnitudes) * _ROUNDING + _allowed(exact, depths, magnitudes)) * exact
    return _complaint_of_entries(probs, exact, allowed + _SMALLEST)


def sample_complaint(arguments: Arguments, actual: Result, *, slack: float = 1.0) -> str | None:
    """What is wrong with tokens and their log-probabilities for `arguments`, whose floating tensors are float64.

    Tokens have to be equal. A log-probability is off by the roundings of the logits and of the sum's logarithm;
    `slack` times as much is allowed, as the twin needs, which adds up one number after the other.
    """
    logits: Tensor = arguments["logits"]
    tokens, logprobs = tensors(actual)
    exact_tokens, exact = sample_with_logprobs_reference(**arguments)
    if not torch.equal(tokens, exact_tokens):
        return f"{int((tokens != exact_tokens).sum())} tokens are others, none is allowed to be"
    probs = logits.softmax(1)
    spread = _allowed(probs, _depths(probs), torch.zeros_like(probs)).squeeze(1)
    largest = logits.masked_fill(probs == 0, 0.0).abs().amax(1)
    allowed = spread + (largest + exact.abs()) * 2 * _ROUNDING
    return _complaint_of_entries(logprobs.double(), exact, slack * allowed)


def _depths(probs: Tensor) -> Tensor:
    """How far the logarithm of each entry lies below the row's largest; 0 where there is no probability."""
    return (probs.amax(1, keepdim=True) / probs).log_().masked_fill_(probs == 0, 0.0)


def _allowed(probs: Tensor, depths: Tensor, magnitudes: Tensor) -> Tensor:
    """How far a float32 sum of the weights behind `probs` may be off, [rows, 1], in units of itself."""
    exponents = (probs * (depths + magnitudes)).sum(1, keepdim=True)
    return (_PER_EXPONENT * exponents + _BESIDE) * _ROUNDING


def _complaint_of_cut(probs: Tensor, before: Tensor, allowed: Tensor, rows: SampleRows) -> str | None:
    """Whether what stays is what filters leave: the fewest largest entries, equal ones together, that reach top_p."""
    is_kept = probs > 0
    least = before.masked_fill(~is_kept, float("inf")).amin(1, keepdim=True)
    share = torch.ones_like(least) if rows.top_p is None else rows.top_p.to(least.dtype).unsqueeze(1)
    if rows.is_greedy is not None:
        share = share.masked_fill(rows.is_greedy.unsqueeze(1), 1.0)
    is_cut = share < 1
    belongs = before >= torch.where(is_cut, least, 0.0)
    wrong = (belongs != is_kept) & (before > _SMALLEST)
    if wrong.any():
        return f"{int(wrong.sum())} entries are kept or left out, none is allowed to be"
    reached = (before * (before >= least)).sum(1, keepdim=True)
    without_last = (before * (before > least)).sum(1, keepdim=True)
    # Written so that a NaN is wrong.
    off = torch.maximum(share - reached, without_last - share)[is_cut]
    if not bool((off < allowed[is_cut]).all()):
        return f"a cut is off by {float(off.max()):.2g}, {float(allowed.min()):.2g} is allowed"
    return None


def _complaint_of_entries(actual: Tensor, exact: Tensor, allowed: Tensor) -> str | None:
    difference = (actual - exact).abs()
    # Written so that a NaN is wrong.
    if difference.numel() and not bool((difference <= allowed).all()):
        share = (difference / allowed).nan_to_num(nan=float("inf"))
        worst = int(share.argmax())
        return f"an entry is off by {float(difference.flatten()[worst]):.2g}, " + (
            f"{float(allowed.flatten()[worst]):.2g} is allowed"
        )
    return None
