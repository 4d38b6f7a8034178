"""What a launcher asks of its arguments before it hands addresses to a kernel. Nothing here waits for a device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.choice.penalties import Penalties
from kernels.choice.sample import SampleRows
from kernels.paging import PAGE_SIZE, AttentionPlan, PagedKV

MODEL_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
"""What activations may be."""
QUANTIZED_DTYPES = (torch.float8_e4m3fn, torch.int8)
"""What pages may be, besides the type of the queries."""
MAX_HEAD_DIM = 256
"""The widest head whose tiles fit into registers."""
MAX_EXPERTS = 1024
"""Whose counts fit into one program's registers."""


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
    """What every attention kernel asks of its arguments. Values are looked at only where they lie on the host.

    Raises KernelInputError.
    """
    device, keys = q.device, kv.keys
    check_tensor("q", q, MODEL_DTYPES, (None, None, None), device=device, packed=2)
    num_tokens, num_heads, head_dim = q.shape
    check(1 <= head_dim <= MAX_HEAD_DIM, "q", f"of a head_dim from 1 to {MAX_HEAD_DIM}", head_dim)
    check_pages(kv, q.dtype, head_dim, device=device)
    num_kv_heads = keys.shape[1]
    check(num_heads >= 1, "q", "of one head or more", num_heads)
    check(num_heads % num_kv_heads == 0, "q", f"of a multiple of {num_kv_heads} heads", f"{num_heads} heads")
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
        _check_values(plan, num_tokens, keys.shape[0])


def check_sampling(logits: Tensor, rows: SampleRows) -> None:
    """What the kernels that go by logits ask. Values are looked at only where they lie on the host.

    Raises KernelInputError.
    """
    device, floats = logits.device, (torch.float32,)
    check_tensor("logits", logits, floats, (None, None), device=device, packed=1)
    num_rows, vocab_size = logits.shape
    check(vocab_size >= 1, "logits", "of one entry a row or more", vocab_size)
    _check_draws(rows, num_rows, device)
    shape = (num_rows,)
    check_tensor("rows.temperature", rows.temperature, floats, shape, device=device)
    for argument, values, dtype, least, most in (
        ("rows.top_k", rows.top_k, torch.int64, 1, vocab_size),
        ("rows.top_p", rows.top_p, torch.float32, 0, 1),
        ("rows.min_p", rows.min_p, torch.float32, 0, 1),
    ):
        if values is not None:
            check_tensor(argument, values, (dtype,), shape, device=device)
            _check_range(argument, values, least, most)
    if rows.is_greedy is not None:
        check_tensor("rows.is_greedy", rows.is_greedy, (torch.bool,), shape, device=device)
    if rows.penalties is not None:
        _check_penalties(rows.penalties, num_rows, vocab_size, device)
    if device.type == "cpu":
        lowest = float(rows.temperature.min()) if num_rows else 1.0
        check(lowest > 0, "rows.temperature", "above 0", lowest)


def check_rejection(probs: Tensor, draft_probs: Tensor, drafts: Tensor, row_starts: Tensor, rows: SampleRows) -> None:
    """What rejection sampling asks. Values are looked at only where they lie on the host. Raises KernelInputError."""
    device, longs = probs.device, (torch.int64,)
    check_tensor("probs", probs, (torch.float32,), (None, None), device=device)
    num_rows, vocab_size = probs.shape
    check(vocab_size >= 1, "probs", "of one entry a row or more", vocab_size)
    check_tensor("row_starts", row_starts, longs, (None,), device=device)
    num_sequences = row_starts.shape[0] - 1
    check(0 <= num_sequences <= num_rows, "row_starts", f"of 1 to {num_rows + 1} numbers", num_sequences + 1)
    num_drafts = num_rows - num_sequences
    check_tensor("draft_probs", draft_probs, (torch.float32,), (num_drafts, vocab_size), device=device)
    check_tensor("drafts", drafts, longs, (num_drafts,), device=device)
    _check_draws(rows, num_rows, device)
    _check_range("drafts", drafts, 0, vocab_size - 1)
    if device.type == "cpu":
        is_right = bool((row_starts.diff() >= 1).all()) and row_starts[[0, -1]].tolist() == [0, num_rows]
        check(is_right, "row_starts", f"rising from 0 to {num_rows}, the rows of probs", row_starts.tolist())


def check_experts(x: Tensor, gate_up: Tensor, down: Tensor, shares: Tensor, chosen: Tensor) -> None:
    """What the grouped products of experts ask. Values are looked at only where they lie on the host.

    Raises KernelInputError.
    """
    device = x.device
    check_tensor("x", x, MODEL_DTYPES, (None, None), device=device, packed=1)
    num_tokens, hidden = x.shape
    check_tensor("down", down, (x.dtype,), (None, hidden, None), device=device)
    num_experts, _, width = down.shape
    check(1 <= num_experts <= MAX_EXPERTS, "down", f"of 1 to {MAX_EXPERTS} experts", num_experts)
    check_tensor("gate_up", gate_up, (x.dtype,), (num_experts, 2 * width, hidden), device=device)
    check_tensor("chosen", chosen, (torch.int64,), (num_tokens, None), device=device)
    per_token = chosen.shape[1]
    check(1 <= per_token <= num_experts, "chosen", f"of 1 to {num_experts} experts a token", per_token)
    check_tensor("shares", shares, (torch.float32,), chosen.shape, device=device)
    _check_range("chosen", chosen, 0, num_experts - 1)


def _check_penalties(penalties: Penalties, num_rows: int, vocab_size: int, device: torch.device) -> None:
    name = "rows.penalties"
    check_tensor(f"{name}.seen", penalties.seen, (torch.int32,), (None, vocab_size), device=device)
    check_tensor(f"{name}.texts", penalties.texts, (torch.int64,), (num_rows,), device=device)
    _check_range(f"{name}.texts", penalties.texts, -1, penalties.seen.shape[0] - 1)
    for field in ("repetition", "frequency", "presence"):
        check_tensor(f"{name}.{field}", getattr(penalties, field), (torch.float32,), (num_rows,), device=device)
    if device.type == "cpu" and num_rows:
        lowest = float(penalties.repetition.min())
        check(lowest > 0, f"{name}.repetition", "above 0", lowest)


def _check_draws(rows: SampleRows, num_rows: int, device: torch.device) -> None:
    for argument, numbers in (("rows.seeds", rows.seeds), ("rows.positions", rows.positions)):
        check_tensor(argument, numbers, (torch.int64,), (num_rows,), device=device)
    _check_range("rows.positions", rows.positions, 0, 2**32 - 1)


def _check_range(argument: str, values: Tensor, least: float, most: float) -> None:
    if values.device.type == "cpu" and values.numel():
        for bound in values.aminmax():
            check(least <= float(bound) <= most, argument, f"from {least} to {most}", float(bound))


def check_pages(kv: PagedKV, dtype: torch.dtype, head_dim: int, *, device: torch.device) -> None:
    """Pages of `dtype`, or quantized ones with their scales; keys and values lie alike. Raises KernelInputError."""
    keys, dtypes = kv.keys, (dtype,) if kv.key_scales is None else QUANTIZED_DTYPES
    check_tensor("kv.keys", keys, dtypes, (None, None, PAGE_SIZE, head_dim), device=device, packed=2)
    check(keys.shape[1] >= 1, "kv.keys", "of one head or more", keys.shape[1])
    check_tensor("kv.values", kv.values, (keys.dtype,), keys.shape, device=device, packed=2)
    check(kv.values.stride() == keys.stride(), "kv.values", f"strided as the keys, {keys.stride()}", kv.values.stride())
    if kv.key_scales is not None or kv.value_scales is not None:
        _check_scales(kv, device)


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


def _check_values(plan: AttentionPlan, num_tokens: int, num_pages: int) -> None:
    """What only a host can look at without waiting: rows, lengths and page ids."""
    starts = plan.query_starts
    counts = starts.diff()
    is_right = starts[[0, -1]].tolist() == [0, num_tokens] and bool((counts >= 0).all())
    check(is_right, "plan.query_starts", f"rising from 0 to {num_tokens}, the rows of q", starts.tolist())
    if plan.kv_lengths.numel():
        most = int(counts.max())
        is_right = plan.max_query >= most
        check(is_right, "plan.max_query", f"{most} or more, the most queries of a sequence", plan.max_query)
        shortest, longest = (int(bound) for bound in plan.kv_lengths.aminmax())
        check(shortest >= 0, "plan.kv_lengths", "0 or more", shortest)
        check(longest <= plan.max_kv, "plan.kv_lengths", f"at most plan.max_kv, {plan.max_kv}", longest)
    if plan.page_table.numel():
        lowest, highest = (int(bound) for bound in plan.page_table.aminmax())
        check(lowest >= 0, "plan.page_table", "of page ids from 0 on", lowest)
        check(highest < num_pages, "plan.page_table", f"of page ids below {num_pages}", highest)
