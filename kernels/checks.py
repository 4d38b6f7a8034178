"""What launchers ask of their arguments before they hand addresses to a kernel. Nothing here waits for a device.

What the kernels of one room ask in common stands in its `checks.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

MODEL_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
"""What activations may be."""
QUANTIZED_DTYPES = (torch.float8_e4m3fn, torch.int8)
"""What pages may be, besides the type of the queries."""
MAX_HEAD_DIM = 256
"""The widest head whose tiles fit into registers."""


class KernelInputError(ValueError):
    """An argument that a kernel cannot take: which one, what was expected, what came."""

    def __init__(self, argument: str, expected: str, got: object) -> None:
        super().__init__(f"{argument} must be {expected}, not {got}")
        self.argument = argument


def check(holds: bool, argument: str, expected: str, got: object) -> None:
    """Raises KernelInputError where the condition does not hold."""
    if not holds:
        raise KernelInputError(argument, expected, got)


def check_tensor(
    argument: str,
    tensor: Tensor,
    dtypes: Sequence[torch.dtype],
    shape: Sequence[int | None],
    *,
    device: torch.device,
    packed: int | None = None,
) -> None:
    """Type, shape (None: any extent), device, and that the last `packed` dimensions (None: all) lie without gaps.

    Raises KernelInputError.
    """
    if tensor.dtype not in dtypes:
        names = [str(dtype).removeprefix("torch.") for dtype in dtypes]
        raise KernelInputError(argument, " or ".join(names), str(tensor.dtype).removeprefix("torch."))
    if tensor.ndim != len(shape) or any(
        want not in (None, have) for want, have in zip(shape, tensor.shape, strict=True)
    ):
        wanted = ", ".join("any" if extent is None else str(extent) for extent in shape)
        raise KernelInputError(argument, f"of shape [{wanted}]", list(tensor.shape))
    if tensor.device != device:
        raise KernelInputError(argument, f"on {device}", tensor.device)
    stride, strides = 1, tensor.stride()
    for dim in reversed(range(0 if packed is None else tensor.ndim - packed, tensor.ndim)):
        if strides[dim] != stride and tensor.shape[dim] > 1:
            raise KernelInputError(argument, f"without gaps: stride {stride} in dimension {dim}", strides[dim])
        stride *= tensor.shape[dim]


def check_range(argument: str, values: Tensor, least: float, most: float) -> None:
    """Looks at values only where they lie on the host. Raises KernelInputError."""
    if values.device.type == "cpu" and values.numel():
        for bound in values.aminmax():
            check(least <= float(bound) <= most, argument, f"from {least} to {most}", float(bound))
