"""Triton's interpreter, made to round as a GPU does. For processes with TRITON_INTERPRET=1 only.

Triton 3.6 keeps bfloat16 and float8 as the integers of their bits: products, sums and comparisons are made of the bits,
and casts cut off instead of rounding. Here both types are computed in float32 and rounded to the nearest.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy
import torch
from triton import language as tl
from triton.runtime import interpreter

_DTYPES = {tl.bfloat16: torch.bfloat16, tl.float8e4nv: torch.float8_e4m3fn, tl.float8e5: torch.float8_e5m2}
"""What the interpreter holds as bits, and what the bits are."""


def _widened(handle: Any) -> numpy.ndarray[Any, Any]:
    """The numbers of a handle: in float32 where it holds bits, else as they are."""
    dtype = _DTYPES.get(handle.dtype.scalar)
    if dtype is None:
        return numpy.asarray(handle.data)
    bits = torch.from_numpy(numpy.array(handle.data))
    return bits.view(dtype).float().numpy()


def _handle(values: numpy.ndarray[Any, Any], dtype: Any) -> Any:
    """Numbers as a handle of a Triton type."""
    held = _DTYPES.get(dtype.scalar)
    if held is None:
        return interpreter.TensorHandle(values.astype(interpreter._get_np_dtype(dtype.scalar)), dtype.scalar)
    rounded = torch.from_numpy(numpy.array(values, dtype=numpy.float32)).to(held)
    bits = rounded.view(torch.uint16 if held == torch.bfloat16 else torch.uint8).numpy()
    return interpreter.TensorHandle(bits, dtype.scalar)


def repair_interpreter() -> None:
    """Mends this process's interpreter, for good."""
    builder = interpreter.InterpreterBuilder
    plain_cast, plain_binary, plain_dot = builder.cast_impl, builder.binary_op, builder.create_dot

    def cast(self: Any, source: Any, dtype: Any) -> Any:
        if source.dtype.scalar in _DTYPES or dtype.scalar in _DTYPES:
            return _handle(_widened(source), dtype)
        return plain_cast(self, source, dtype)

    def float_to_float(self: Any, source: Any, dtype: Any, rounding: object) -> Any:
        return cast(self, source, dtype)

    def binary(self: Any, left: Any, right: Any, operator: Callable[..., Any]) -> Any:
        if left.dtype.scalar not in _DTYPES:
            return plain_binary(self, left, right, operator)
        result = operator(_widened(left), _widened(right))
        return interpreter.TensorHandle(result, tl.int1) if result.dtype == bool else _handle(result, left.dtype)

    def dot(self: Any, a: Any, b: Any, total: Any, precision: object, most_imprecise: object) -> Any:
        if a.dtype.scalar not in _DTYPES and b.dtype.scalar not in _DTYPES:
            return plain_dot(self, a, b, total, precision, most_imprecise)
        product = numpy.matmul(_widened(a), _widened(b), dtype=total.data.dtype)
        return interpreter.TensorHandle(product + total.data, total.dtype.scalar)

    builder.cast_impl, builder.create_fp_to_fp = cast, float_to_float
    builder.binary_op, builder.create_dot = binary, dot
    plain_patch = interpreter._patch_lang_tensor

    def patch(tensor: Any, scope: Any) -> None:
        plain_patch(tensor, scope)
        # numpy 2.4 no longer takes an array of one number for a number.
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patch
    # Tensors of this process are handed over as they are, so there is nothing to copy back.
    interpreter.GridExecutor._restore_args_dev = lambda *_: None
    _hurry()


def _hurry() -> None:
    """What the interpreter does again at every step is done once: a program then takes half of its time."""
    plain_patch, plain_dtype = interpreter._patch_lang, interpreter._get_np_dtype

    @cache
    def patch_for_good(function: Callable[..., object]) -> Any:
        # Plain: all of the language is replaced for each call of a function of a kernel, and put back after a launch.
        scope = plain_patch(function)
        scope._changes.clear()
        return scope

    by_name: dict[str, numpy.dtype[Any]] = {}

    def numpy_dtype(dtype: Any) -> numpy.dtype[Any]:
        # Plain: a table of all types is made to look one up.
        name = dtype.scalar.name
        if name not in by_name:
            by_name[name] = plain_dtype(dtype.scalar)
        return by_name[name]

    def tuple_type(self: Any, types: list[Any], fields: list[str] | None = None) -> None:
        # Plain: every shape of a tensor writes out the names of its types, which nobody reads.
        self.types, self.fields = types, fields or [""] * len(types)

    interpreter._patch_lang = patch_for_good
    interpreter._get_np_dtype = numpy_dtype
    tl.core.tuple_type.__init__ = tuple_type
