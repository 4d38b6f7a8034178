"""Muon: momentum whose update is made orthogonal, for weight matrices; written from Jordan et al. 2024."""

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor

_QUINTIC = (3.4445, -4.7750, 2.0315)
"""Coefficients of the Newton-Schulz quintic, from the write-up: quick rather than exact convergence."""


class Muon(torch.optim.Optimizer):
    """Nesterov momentum, orthogonalized, over two-dimensional parameters only.

    `lr` is on AdamW's scale: an update has 0.2 times its root mean square, as AdamW's have (Moonlight, 2025).
    """

    def __init__(self, parameters: Iterable[Tensor], *, lr: float, momentum: float = 0.95) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # the closure form is never used here
        """Updates every parameter that has a gradient."""
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[tuple[Tensor, Tensor]]] = defaultdict(list)
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                buffer = state.setdefault("momentum", torch.zeros_like(parameter))
                buffer.lerp_(parameter.grad, 1 - group["momentum"])
                by_shape[parameter.shape].append((parameter, parameter.grad.lerp(buffer, group["momentum"])))
            for shape, pairs in by_shape.items():
                directions = orthogonalize(torch.stack([direction for _, direction in pairs]))
                scale = group["lr"] * 0.2 * max(shape) ** 0.5
                for (parameter, _), direction in zip(pairs, directions, strict=True):
                    parameter.add_(direction.to(parameter.dtype), alpha=-scale)


def orthogonalize(matrices: Tensor, *, steps: int = 5) -> Tensor:
    """The nearest (semi-)orthogonal matrices, roughly: `[N, rows, columns]` in and out, worked out in bfloat16 where
    the device has it.
    """
    a, b, c = _QUINTIC
    is_tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if is_tall else matrices
    x = (x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)).to(
        torch.bfloat16 if has_bfloat16(matrices.device) else torch.float32
    )
    for _ in range(steps):
        gram = torch.bmm(x, x.mT)
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if is_tall else x


def has_bfloat16(device: torch.device) -> bool:
    """Whether the device multiplies in bfloat16 itself: a CPU without it is ten times slower so than in float32."""
    return device.type != "cpu" or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())  # noqa: SLF001
