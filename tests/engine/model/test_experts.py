"""Routed experts: all of a layer's at once, or one after the other where their weights are kept otherwise."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from backends.engine.model.decoder import load_decoder
from kernels.dispatch import select_ops
from tests.support.engine.engine_batches import run_sequences
from tests.support.engine.tiny_models import random_tokens, save_tiny_model, tiny_config

CPU = torch.device("cpu")
QWEN = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
MIXTRAL = {"num_local_experts": 5, "num_experts_per_tok": 2}


@pytest.mark.parametrize(("family", "fields"), [("Mixtral", MIXTRAL), ("Qwen3Moe", QWEN)])
def test_experts_at_once_are_those_in_turn(family: str, fields: dict[str, int], tmp_path: Path) -> None:
    """An observer keeps the layers apart; every logit is the same, and as many bytes are counted."""
    save_tiny_model(tmp_path, tiny_config(family, **fields))
    calls: list[int] = []
    ops = select_ops("cpu")

    def counted(x: torch.Tensor, *given: object, **named: object) -> torch.Tensor:
        calls.append(len(x))
        return ops.moe(x, *given, **named)  # type: ignore[arg-type]

    at_once = load_decoder(tmp_path, dtype=None, device=CPU, ops=replace(ops, moe=counted))
    in_turn = load_decoder(tmp_path, dtype=None, device=CPU, ops=ops, observe=lambda names, x: None)
    tokens = [random_tokens(40, 97, seed=1), random_tokens(9, 97, seed=2)]

    found = run_sequences(at_once, tokens, num_decode=4, chunk=16)
    expected = run_sequences(in_turn, tokens, num_decode=4, chunk=16)

    assert calls
    assert at_once.weight_bytes == in_turn.weight_bytes
    for mine, others in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, others, rtol=1e-5, atol=1e-5)
