"""What the grouped products of experts are tried with: random routing, even and all to one."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.operation import Arguments, Case, Cost, cases_of
from kernels.rows.cases import random_rows, seeded

_GAP = 3


@dataclass(frozen=True, slots=True)
class Experts:
    """`num_tokens` to `per_token` each of `num_experts`; `favourites` > 0: only so many of them are ever chosen."""

    num_tokens: int
    num_experts: int
    per_token: int
    hidden: int
    width: int
    kind: str = "silu"
    dtype: torch.dtype = torch.bfloat16
    favourites: int = 0
    is_gapped: bool = False


def build_moe(shape: Experts, device: torch.device) -> Arguments:
    """Arguments of `moe`; weights are about as large as keeps the size of what they multiply."""
    generator = seeded(device)
    gap = _GAP if shape.is_gapped else 0
    x = random_rows(shape.num_tokens, shape.hidden, shape.dtype, generator, device, gap=gap)

    def weight(num_outputs: int, num_inputs: int) -> Tensor:
        size = (shape.num_experts, num_outputs, num_inputs)
        numbers = torch.randn(size, generator=generator, device=device, dtype=shape.dtype)
        return numbers * math.sqrt(1 / num_inputs)

    choices = shape.favourites or shape.num_experts
    preference = torch.rand((shape.num_tokens, choices), generator=generator, device=device)
    # The last are the favourites, so that some before them have nobody.
    chosen = preference.argsort(dim=1)[:, : shape.per_token] + (shape.num_experts - choices)
    shares = torch.rand((shape.num_tokens, shape.per_token), generator=generator, device=device)
    return {
        "x": x,
        "gate_up": weight(2 * shape.width, shape.hidden),
        "down": weight(shape.hidden, shape.width),
        "shares": shares / shares.sum(1, keepdim=True),
        "chosen": chosen.contiguous(),
        "kind": shape.kind,
    }


def moe_cost(arguments: Arguments) -> Cost:
    """The weights of the experts that are chosen, each once, the rows, and a product of each pair with its expert's."""
    x, down, chosen = (arguments[name] for name in ("x", "down", "chosen"))
    hidden, width = down.shape[1:]
    num_used = len(chosen.unique())
    num_bytes = (3 * num_used * hidden * width + 2 * x.numel()) * x.element_size()
    return Cost(num_bytes, 6 * chosen.numel() * hidden * width)


_BF16, _FP16, _FP32 = torch.bfloat16, torch.float16, torch.float32
_SMALL = {
    "one-token": Experts(1, 4, 2, 48, 24),
    "one-expert": Experts(5, 1, 1, 32, 16, dtype=_FP32),
    "tile-borders": Experts(17, 2, 1, 40, 40, kind="gelu", dtype=_FP32),
    "ragged": Experts(13, 5, 3, 70, 33, kind="gelu_tanh", is_gapped=True),
    "all-to-two": Experts(20, 6, 2, 64, 32, favourites=2, dtype=_FP16),
    "many-experts": Experts(6, 40, 4, 32, 16, dtype=_FP32),
    "wide-tiles": Experts(90, 3, 2, 72, 40),
    "many-pairs": Experts(260, 4, 4, 16, 8, dtype=_FP32),
    "nobody": Experts(0, 4, 2, 32, 16),
}
_REAL = {
    "30b-1": Experts(1, 128, 8, 2048, 768),
    "30b-64": Experts(64, 128, 8, 2048, 768),
    "30b-4096": Experts(4096, 128, 8, 2048, 768),
    "8x7b-16": Experts(16, 8, 2, 4096, 14336),
    "8x7b-2048-fp16": Experts(2048, 8, 2, 4096, 14336, dtype=_FP16),
}


def moe_cases() -> list[Case]:
    """From one token to many, for few experts and for many."""
    return cases_of(build_moe, _SMALL, _REAL)
