"""The mended interpreter: bfloat16 and float8 as a GPU computes them. Run by `test_against_float64.py`."""

from __future__ import annotations

import pytest
import torch

from kernels.jit import jit, tl
from tests.support.kernels.triton_interpreter import repair_interpreter

repair_interpreter()
SIZE = 32


@jit()
def _cast_kernel(source: tl.tensor, target: tl.tensor, N: tl.constexpr) -> None:
    places = tl.arange(0, N)
    tl.store(target + places, tl.load(source + places).to(target.dtype.element_ty))


@jit()
def _arithmetic_kernel(a: tl.tensor, b: tl.tensor, out: tl.tensor, N: tl.constexpr) -> None:
    places = tl.arange(0, N)
    x, y = tl.load(a + places), tl.load(b + places)
    tl.store(out + places, tl.where(x < y, x + y, x * y))


@jit()
def _dot_kernel(a: tl.tensor, b: tl.tensor, out: tl.tensor, N: tl.constexpr) -> None:
    places = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(out + places, tl.dot(tl.load(a + places), tl.load(b + places)))


def numbers(seed: int, *shape: int) -> torch.Tensor:
    """Normal numbers, float32."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("target", [torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
@pytest.mark.parametrize("source", [torch.float32, torch.float16, torch.int8], ids=str)
def test_interpreter_cast_rounds_to_the_nearest(source: torch.dtype, target: torch.dtype) -> None:
    """From every type, bit for bit as torch rounds."""
    if source == torch.int8 and target != torch.bfloat16:
        pytest.skip("Triton has no such cast")
    x = (numbers(0, SIZE) * 100).to(source)
    out = torch.zeros(SIZE, dtype=target)

    _cast_kernel[(1,)](x, out, SIZE)

    assert torch.equal(out.float(), x.to(target).float())


def test_interpreter_bf16_arithmetic_is_that_of_numbers() -> None:
    """Sums, products and comparisons are not made of the bits."""
    a, b = numbers(1, SIZE).bfloat16(), numbers(2, SIZE).bfloat16()
    out = torch.zeros(SIZE, dtype=torch.bfloat16)

    _arithmetic_kernel[(1,)](a, b, out, SIZE)

    assert torch.equal(out, torch.where(a < b, a + b, a * b))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn], ids=str)
def test_interpreter_dot_is_that_of_numbers(dtype: torch.dtype) -> None:
    """A product of matrices is exact but for the rounding of its sums."""
    a, b = numbers(3, SIZE, SIZE).to(dtype), numbers(4, SIZE, SIZE).to(dtype)
    out = torch.zeros(SIZE, SIZE)

    _dot_kernel[(1,)](a, b, out, SIZE)

    torch.testing.assert_close(out, a.float() @ b.float(), rtol=1e-5, atol=1e-5)
