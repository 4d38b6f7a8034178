"""The gated activation of a feed-forward block: act(gate) * up."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional


def gated_activation_reference(gate_up: Tensor, kind: str) -> Tensor:
    """[tokens, 2 * width], gate first -> act(gate) * up, [tokens, width] in the same type.

    `kind`: "silu", "gelu" (exact) or "gelu_tanh". Raises ValueError for any other.
    """
    gate, up = gate_up.chunk(2, dim=-1)
    if kind == "silu":
        return functional.silu(gate).mul_(up)
    if kind == "gelu":
        return functional.gelu(gate).mul_(up)
    if kind == "gelu_tanh":
        return functional.gelu(gate, approximate="tanh").mul_(up)
    raise ValueError(f"gated activation {kind!r} is unknown; known are silu, gelu and gelu_tanh")
