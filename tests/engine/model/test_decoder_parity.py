"""The decoder's logits against transformers' for each family: random tiny models, float32, chunked and paged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from backends.engine.model.decoder import Decoder, load_decoder
from kernels.dispatch import select_ops
from tests.support.engine.engine_batches import Part, build_batch, poisoned_kv, run_sequences
from tests.support.engine.tiny_models import LLAMA3_ROPE, judge_logits, random_tokens, save_tiny_model, tiny_config
from tests.support.kernels.naive_attention import naive_paged_attention

OPS = replace(select_ops("cpu"), paged_attention=naive_paged_attention)
NUM_DECODE = 32
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 100.0,
    "short_factor": [1.0, 1.1, 1.3, 1.5, 1.6, 1.8],
    "long_factor": [1.0, 1.5, 2.0, 3.0, 4.0, 6.0],
    "original_max_position_embeddings": 256,
    "partial_rotary_factor": 0.75,
}
YARN = {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 64}
LOCAL_AND_GLOBAL = {
    "full_attention": {"rope_type": "linear", "rope_theta": 1000.0, "factor": 8.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
}
MOE = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama-tied": ("Llama", {"tie_word_embeddings": True}),
    "llama-4-heads-a-group": ("Llama", {"num_attention_heads": 8, "num_key_value_heads": 2}),
    "llama-7-heads-a-group": (
        "Llama",
        {"num_attention_heads": 7, "num_key_value_heads": 1, "hidden_size": 56, "head_dim": 12},
    ),
    "llama-own-kv-head-each": ("Llama", {"num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": 20}),
    "llama-all-biases": ("Llama", {"attention_bias": True, "mlp_bias": True, "head_dim": 24}),
    "llama3-rope": ("Llama", {"rope_parameters": LLAMA3_ROPE}),
    "llama-linear-rope": ("Llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 99.0, "factor": 3.0}}),
    "llama-yarn-rope": ("Llama", {"rope_parameters": YARN}),
    "llama-dynamic-rope": ("Llama", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 99.0, "factor": 2.0}}),
    "mistral": ("Mistral", {"sliding_window": None}),
    "mistral-window": ("Mistral", {"sliding_window": 33}),
    "qwen2": ("Qwen2", {"head_dim": None}),
    "qwen2-mixed-windows": ("Qwen2", {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 1}),
    "qwen3": ("Qwen3", {"head_dim": 32, "tie_word_embeddings": True}),
    "gemma": ("Gemma", {}),
    "gemma2": ("Gemma2", {"sliding_window": 40, "query_pre_attn_scalar": 24, "attn_logit_softcapping": 5.0}),
    "gemma3": ("Gemma3Text", {"sliding_window": 40, "num_hidden_layers": 7, "rope_parameters": LOCAL_AND_GLOBAL}),
    "gemma3-wide-window": ("Gemma3Text", {"sliding_window": 4096, "rope_parameters": LOCAL_AND_GLOBAL}),
    "phi3": ("Phi3", {"sliding_window": 50}),
    "phi3-longrope": ("Phi3", {"head_dim": None, "hidden_size": 64, "rope_parameters": LONGROPE}),
    "granite": (
        "Granite",
        {
            "embedding_multiplier": 6.0,
            "residual_multiplier": 0.22,
            "attention_multiplier": 0.3,
            "logits_scaling": 4.0,
        },
    ),
    "mixtral": ("Mixtral", {"num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": 40}),
    "qwen3-moe": ("Qwen3Moe", MOE | {"norm_topk_prob": True, "mlp_only_layers": [1]}),
    "qwen3-moe-raw-shares": ("Qwen3Moe", MOE | {"decoder_sparse_step": 2}),
}


def load(folder: Path, **options: Any) -> Decoder:
    """The folder in float32 on the twins, attention written out naively."""
    return load_decoder(folder, dtype=torch.float32, device=torch.device("cpu"), ops=OPS, **options)


def relative_error(found: Tensor, expected: Tensor) -> float:
    """Largest difference over the largest logit."""
    return float((found - expected).abs().max() / expected.abs().max())


@pytest.mark.parametrize("case", FAMILIES, ids=list(FAMILIES))
def test_decoder_of_each_family_matches_transformers(case: str, tmp_path: Path) -> None:
    """Prefill in chunks and 32 decode steps, three sequences in shuffled, poisoned pages, agree at every position."""
    family, fields = FAMILIES[case]
    if "longrope" in case:
        fields = fields | {"max_position_embeddings": 256, "original_max_position_embeddings": 256}
    judge = save_tiny_model(tmp_path, tiny_config(family, **fields))
    sequences = [random_tokens(NUM_DECODE + prompt, 97, seed=prompt) for prompt in (1, 63, 130)]

    found = run_sequences(load(tmp_path), sequences, num_decode=NUM_DECODE, chunk=50)

    errors = [relative_error(mine, judge_logits(judge, ids)) for mine, ids in zip(found, sequences, strict=True)]
    assert max(errors) <= 1e-4


@pytest.mark.parametrize(("served", "length"), [(64, 60), (256, 150)], ids=["short", "long"])
def test_decoder_with_longrope_takes_the_factors_of_the_context_served(
    served: int, length: int, tmp_path: Path
) -> None:
    """Within the trained context the short factors, beyond it the long ones, stretched cosines included."""
    fields = FAMILIES["phi3-longrope"][1] | {"max_position_embeddings": 256, "original_max_position_embeddings": 64}
    judge = save_tiny_model(tmp_path, tiny_config("Phi3", **fields))
    tokens = random_tokens(length, 97, seed=3)

    (found,) = run_sequences(load(tmp_path, max_positions=served), [tokens], num_decode=0, chunk=length)

    assert relative_error(found, judge_logits(judge, tokens)) <= 1e-4


def test_decoder_of_wanted_rows_only_gives_the_same_hidden_states(tmp_path: Path) -> None:
    """The last layer works on the wanted rows alone, and they come out as among all."""
    save_tiny_model(tmp_path, tiny_config("Qwen3"))
    decoder = load(tmp_path)
    parts = [Part(random_tokens(70, 97, seed=1), 0, [3, 1]), Part(random_tokens(9, 97, seed=2), 0, [0])]

    every = decoder.forward(build_batch(parts, all_rows=True), poisoned_kv(decoder, 4))
    last = decoder.forward(build_batch(parts), poisoned_kv(decoder, 4))

    assert last.shape == (2, 48)
    torch.testing.assert_close(last, every[[69, 78]], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn], ids=["int8", "fp8"])
def test_decoder_with_quantized_pages_stays_near_the_exact_one(dtype: torch.dtype, tmp_path: Path) -> None:
    """Eight bits a number in the pages cost a few per cent, not the answer."""
    save_tiny_model(tmp_path, tiny_config("Qwen3"))
    decoder = load(tmp_path)
    tokens = random_tokens(100, 97, seed=5)

    (exact,) = run_sequences(decoder, [tokens], num_decode=8, chunk=64)
    (found,) = run_sequences(decoder, [tokens], num_decode=8, chunk=64, kv_dtype=dtype)

    assert 0.0 < relative_error(found, exact) <= (0.03 if dtype == torch.int8 else 0.12)


@pytest.mark.parametrize("case", ["llama-tied", "gemma3", "phi3-longrope", "qwen3-moe"])
def test_decoder_in_bfloat16_stays_near_the_float32_one(case: str, tmp_path: Path) -> None:
    """Half precision runs through every operation and costs what half precision costs."""
    family, fields = FAMILIES[case]
    save_tiny_model(tmp_path, tiny_config(family, **fields))
    tokens = random_tokens(40, 97, seed=6)
    half = load_decoder(tmp_path, dtype=torch.bfloat16, device=torch.device("cpu"), ops=OPS)

    (exact,) = run_sequences(load(tmp_path), [tokens], num_decode=4, chunk=64)
    (found,) = run_sequences(half, [tokens], num_decode=4, chunk=64)

    assert half.dtype == torch.bfloat16
    assert found.dtype == torch.float32
    assert float((found - exact).square().mean().sqrt() / exact.square().mean().sqrt()) <= 0.1
