"""A decoder on the kernels, in Triton's interpreter, beside itself on the twins. Run by `test_against_float64.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from backends.engine.model.decoder import load_decoder
from kernels.dispatch import select_ops
from tests.support.engine.engine_batches import run_sequences
from tests.support.engine.tiny_models import random_tokens, save_tiny_model, tiny_config
from tests.support.kernels.triton_interpreter import repair_interpreter

repair_interpreter()


@pytest.mark.parametrize(
    ("family", "fields", "kv_dtype", "tolerance"),
    [
        ("Qwen3", {}, None, 1e-4),
        # A number just between two of a quantized type may be rounded to either.
        ("Gemma2", {"sliding_window": 20, "attn_logit_softcapping": 5.0}, torch.int8, 1e-2),
        ("Phi3", {"head_dim": None, "partial_rotary_factor": 0.5}, torch.float8_e4m3fn, 5e-2),
    ],
    ids=["norms", "offset-window-softcap-int8", "partial-rotation-fp8"],
)
def test_decoder_on_kernels_gives_the_logits_of_the_twins(
    family: str, fields: dict[str, Any], kv_dtype: torch.dtype | None, tolerance: float, tmp_path: Path
) -> None:
    """Prompts in chunks, then token by token, beside each other: what CUDA is given computes what the CPU computes."""
    save_tiny_model(tmp_path, tiny_config(family, num_hidden_layers=2, **fields))
    sequences = [random_tokens(22, 97, seed=1), random_tokens(7, 97, seed=2)]
    found = []
    for device_type in ("cpu", "cuda"):
        ops = select_ops(device_type)
        decoder = load_decoder(tmp_path, dtype=torch.float32, device=torch.device("cpu"), ops=ops)
        logits = run_sequences(decoder, sequences, num_decode=2, chunk=14, kv_dtype=kv_dtype)
        found.append(torch.cat(logits))

    twins, kernels = found
    assert float((kernels - twins).abs().max() / twins.abs().max()) <= tolerance
