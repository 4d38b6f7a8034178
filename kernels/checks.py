"""What a launcher asks of its arguments before it hands addresses to a kernel. Nothing here waits for a device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.paging import PAGE_SIZE, AttentionPlan, PagedKV

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


def check_attention(q: Tensor, kv: PagedKV, plan: AttentionPlan, *, window: int, softcap: float) -> None:
    """What every attention kernel asks of its arguments. Page ids are looked at only where they lie on the host.

    Raises KernelInputError.
    """
    device, keys = q.device, kv.keys
    check_tensor("q", q, MODEL_DTYPES, (None, None, None), device=device, packed=2)
    num_tokens, num_heads, head_dim = q.shape
    check(1 <= head_dim <= MAX_HEAD_DIM, "q", f"of a head_dim from 1 to {MAX_HEAD_DIM}", head_dim)
    kv_dtypes = (q.dtype,) if kv.key_scales is None else QUANTIZED_DTYPES
    check_tensor("kv.keys", keys, kv_dtypes, (None, None, PAGE_SIZE, head_dim), device=device, packed=2)
    check_tensor("kv.values", kv.values, (keys.dtype,), keys.shape, device=device, packed=2)
    check(kv.values.stride() == keys.stride(), "kv.values", f"strided as the keys, {keys.stride()}", kv.values.stride())
    num_kv_heads = keys.shape[1]
    check(num_heads % num_kv_heads == 0, "q", f"of a multiple of {num_kv_heads} heads", f"{num_heads} heads")
    if kv.key_scales is not None or kv.value_scales is not None:
        _check_scales(kv, device)
    num_sequences = plan.kv_lengths.shape[0]
    ints = (torch.int32,)
    check_tensor("plan.page_table", plan.page_table, ints, (num_sequences, None), device=device, packed=1)
    check_tensor("plan.query_starts", plan.query_starts, ints, (num_sequences + 1,), device=device)
    check_tensor("plan.kv_lengths", plan.kv_lengths, ints, (num_sequences,), device=device)
    most = plan.page_table.shape[1] * PAGE_SIZE
    check(0 <= plan.max_kv <= most, "plan.max_kv", f"from 0 to {most}, what the page table holds", plan.max_kv)
    check(0 <= plan.max_query <= max(num_tokens, 1), "plan.max_query", f"from 0 to {num_tokens}", plan.max_query)
    check(window >= 0, "window", "0 or more", window)
    check(softcap >= 0, "softcap", "0 or more", softcap)
    if device.type == "cpu":
        _check_pages(plan, keys.shape[0])


def _check_scales(kv: PagedKV, device: torch.device) -> None:
    shape = kv.keys.shape[:3]
    for argument, scales in (("kv.key_scales", kv.key_scales), ("kv.value_scales", kv.value_scales)):
        if scales is None:
            raise KernelInputError(argument, "given, as the other's scales are", None)
        check_tensor(argument, scales, (torch.float16,), shape, device=device, packed=1)
    assert kv.key_scales is not None
    assert kv.value_scales is not None
    strides = kv.key_scales.stride()
    check(
        kv.value_scales.stride() == strides,
        "kv.value_scales",
        f"strided as the keys' {strides}",
        kv.value_scales.stride(),
    )


def _check_pages(plan: AttentionPlan, num_pages: int) -> None:
    """What only a host can look at without waiting: lengths and page ids."""
    longest = int(plan.kv_lengths.max()) if plan.kv_lengths.numel() else 0
    check(longest <= plan.max_kv, "plan.kv_lengths", f"at most plan.max_kv, {plan.max_kv}", longest)
    if plan.page_table.numel():
        lowest, highest = (int(bound) for bound in plan.page_table.aminmax())
        check(lowest >= 0, "plan.page_table", "of page ids from 0 on", lowest)
        check(highest < num_pages, "plan.page_table", f"of page ids below {num_pages}", highest)
