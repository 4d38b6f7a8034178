"""What the kernels that choose tokens ask of their arguments. Nothing here waits for a device."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.checks import check, check_range, check_tensor
from kernels.choice.penalties import Penalties
from kernels.choice.sample import SampleRows


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
            check_range(argument, values, least, most)
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
    check_range("drafts", drafts, 0, vocab_size - 1)
    if device.type == "cpu":
        is_right = bool((row_starts.diff() >= 1).all()) and row_starts[[0, -1]].tolist() == [0, num_rows]
        check(is_right, "row_starts", f"rising from 0 to {num_rows}, the rows of probs", row_starts.tolist())


def _check_penalties(penalties: Penalties, num_rows: int, vocab_size: int, device: torch.device) -> None:
    name = "rows.penalties"
    check_tensor(f"{name}.seen", penalties.seen, (torch.int32,), (None, vocab_size), device=device)
    check_tensor(f"{name}.texts", penalties.texts, (torch.int64,), (num_rows,), device=device)
    check_range(f"{name}.texts", penalties.texts, -1, penalties.seen.shape[0] - 1)
    for field in ("repetition", "frequency", "presence"):
        check_tensor(f"{name}.{field}", getattr(penalties, field), (torch.float32,), (num_rows,), device=device)
    if device.type == "cpu" and num_rows:
        lowest = float(penalties.repetition.min())
        check(lowest > 0, f"{name}.repetition", "above 0", lowest)


def _check_draws(rows: SampleRows, num_rows: int, device: torch.device) -> None:
    for argument, numbers in (("rows.seeds", rows.seeds), ("rows.positions", rows.positions)):
        check_tensor(argument, numbers, (torch.int64,), (num_rows,), device=device)
    check_range("rows.positions", rows.positions, 0, 2**32 - 1)
