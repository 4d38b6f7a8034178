"""What every kernel that goes row by row asks of its arguments."""

from __future__ import annotations

from torch import Tensor

from kernels.checks import MODEL_DTYPES, check, check_tensor


def check_rows(argument: str, x: Tensor, *, like: Tensor | None = None, max_width: int | None = None) -> None:
    """[rows, width] in a model's type, rows without gaps; `like`: of that one's type, shape and device.

    Raises KernelInputError.
    """
    dtypes, shape = (MODEL_DTYPES, (None, None)) if like is None else ((like.dtype,), like.shape)
    check_tensor(argument, x, dtypes, shape, device=(x if like is None else like).device, packed=1)
    check(x.shape[1] > 0, argument, "of rows of one number or more", list(x.shape))
    if max_width is not None:
        check(x.shape[1] <= max_width, argument, f"of rows of at most {max_width} numbers", x.shape[1])
