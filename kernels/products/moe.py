"""Gated feed-forward blocks of which each token takes a few, weighted: the torch twin of the grouped products."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from kernels.rows.act import gated_activation_reference


def moe_reference(x: Tensor, gate_up: Tensor, down: Tensor, shares: Tensor, chosen: Tensor, kind: str) -> Tensor:
    """The sum over a token's experts of share * down(act(gate(x)) * up(x)), [tokens, hidden] in the type of `x`.

        x        [tokens, hidden]
        gate_up  [experts, 2 * width, hidden], gate first, and `down` [experts, hidden, width], in the type of `x`
        shares   [tokens, per token] float32
        chosen   [tokens, per token] int64, the experts, each at most once a token
        kind     of activation, as `gated_activation_reference` has it

    Looks on the host how many tokens each expert has.
    """
    num_experts, per_token = gate_up.shape[0], chosen.shape[1]
    by_expert = chosen.flatten()
    # Sorted by expert: each one's tokens lie in a row.
    order = by_expert.argsort(stable=True)
    tokens = order // per_token
    scales = shares.to(x.dtype).flatten()[order, None]
    inputs, output = x[tokens], torch.zeros_like(x)
    start = 0
    for number, count in enumerate(by_expert.bincount(minlength=num_experts).tolist()):
        if count:
            part = slice(start, start + count)
            start += count
            inner = gated_activation_reference(functional.linear(inputs[part], gate_up[number]), kind)
            output.index_add_(0, tokens[part], functional.linear(inner, down[number]) * scales[part])
    return output
