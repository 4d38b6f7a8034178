"""Sizing: parameters as their makers publish them, floors as worked out by hand, memory as the engine takes it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from backends.engine import load
from backends.engine.kv.memory import page_bytes
from backends.engine.model.config import ModelConfig
from backends.engine.model.decoder import load_decoder
from backends.engine.sizing import (
    CONTEXT_BYTES,
    FREE_SHARE,
    PAGE_TOKENS,
    PRECISIONS,
    ModelShape,
    Workload,
    estimate,
    prefill_s,
    step_s,
)
from backends.engine.sizing_data import GPUS, MODELS
from kernels.dispatch import select_ops
from kernels.paging import PAGE_SIZE
from tests.support.engine.tiny_models import save_tiny_model, tiny_config

LLAMA = MODELS["llama-3.1-8b"]
H200 = GPUS["h200"]
BF16, INT8, INT4 = (PRECISIONS[name] for name in ("bf16", "int8", "int4"))
PUBLISHED = {
    "llama-3.2-1b": 1.24,
    "llama-3.2-3b": 3.21,
    "llama-3.1-8b": 8.03,
    "llama-3.1-70b": 70.6,
    "llama-3.1-405b": 405.9,
    "qwen2.5-7b": 7.62,
    "qwen2.5-72b": 72.7,
    "qwen3-0.6b": 0.596,
    "qwen3-1.7b": 1.72,
    "qwen3-4b": 4.02,
    "qwen3-8b": 8.19,
    "qwen3-14b": 14.8,
    "qwen3-32b": 32.8,
    "qwen3-30b-a3b": 30.5,
    "mistral-7b": 7.25,
    "mixtral-8x7b": 46.7,
    "gemma-2-9b": 9.24,
    "phi-4": 14.7,
    "granite-3.1-8b": 8.17,
}
"""Billions of parameters, from the models' own pages."""


def tokens_per_s(context: int, batch: int, weights: str = "bf16") -> float:
    """Of Llama 8B on an H200, all sequences added up."""
    demand = Workload(context=context, concurrency=batch)
    return batch / step_s(LLAMA, H200, PRECISIONS[weights], demand, batch=batch)


def test_sizing_known_models_have_their_published_parameters() -> None:
    """Each shape in the table adds up to what its makers say."""
    assert {name: shape.num_parameters / 1e9 for name, shape in MODELS.items()} == {
        name: pytest.approx(billions, rel=0.004) for name, billions in PUBLISHED.items()
    }


def test_sizing_experts_count_for_a_token_as_published() -> None:
    """Of models with experts, few parameters work on one token: 12.9 of 46.7 billion, 3.3 of 30.5."""
    active = {name: (MODELS[name].active_parameters + 2 * MODELS[name].head_parameters) / 1e9 for name in PUBLISHED}

    assert active["mixtral-8x7b"] == pytest.approx(12.9, rel=0.005)
    assert active["qwen3-30b-a3b"] == pytest.approx(3.35, rel=0.01)


def test_sizing_step_bytes_are_those_worked_out_by_hand() -> None:
    """Llama 8B: 6.98 G linear and 0.525 G output parameters; 15.01 GB a step in bf16, 7.50 in int8, 4.12 in int4."""
    assert LLAMA.step_bytes(BF16, 1) / 1e9 == pytest.approx(15.01, abs=0.005)
    assert LLAMA.step_bytes(INT8, 1) / 1e9 == pytest.approx(7.50, abs=0.005)
    assert LLAMA.step_bytes(INT4, 1) / 1e9 == pytest.approx(6.98 * (4 + 16 / 128) / 8 + 0.525, abs=0.005)


@pytest.mark.parametrize(
    ("context", "batch", "weights", "expected"),
    [
        (1, 1, "bf16", 286),
        (4096, 1, "bf16", 277),
        (1, 1, "int8", 573),
        (4096, 1, "int8", 535),
        (1024, 1, "bf16", 284),
        (1024, 8, "bf16", 2_139),
        (1024, 32, "bf16", 7_128),
        (1024, 64, "bf16", 11_661),
        (1024, 256, "bf16", 19_915),
        (1024, 64, "int4", 19_915),
    ],
)
def test_sizing_step_is_the_floor_worked_out_by_hand(context: int, batch: int, weights: str, expected: float) -> None:
    """Tokens a second of Llama 8B at 4.3 TB/s and 790 TFLOP/s; large batches are bound by the multiplications."""
    assert tokens_per_s(context, batch, weights) == pytest.approx(expected, rel=0.003)


def test_sizing_small_model_is_the_floor_worked_out_by_hand() -> None:
    """Qwen3 0.6B gives at most 3,607 tokens a second to one sequence."""
    demand = Workload(context=1, concurrency=1)

    assert 1 / step_s(MODELS["qwen3-0.6b"], H200, BF16, demand, batch=1) == pytest.approx(3607, rel=0.001)


def test_sizing_prefill_is_multiplication_and_a_little_attention() -> None:
    """1,024 tokens of Llama 8B take 18.1 ms in its linear layers; attention adds 4 heads x width x pairs."""
    attention_s = 4 * 32 * 128 * 1024**2 / 2 * 32 / 790e12

    assert prefill_s(LLAMA, H200, BF16, 1024) == pytest.approx(0.01809 + attention_s, rel=0.001)


def test_sizing_prefill_of_few_tokens_is_bound_by_reading() -> None:
    """One token cannot come before the weights are read."""
    assert prefill_s(LLAMA, H200, BF16, 1) == pytest.approx(15.01e9 / 4.3e12, rel=0.001)


def test_sizing_w8a8_multiplies_in_int8() -> None:
    """A long prompt takes half the time where activations are int8 as well."""
    whole, rounded = (prefill_s(MODELS["qwen3-0.6b"], H200, PRECISIONS[name], 512) for name in ("int8", "w8a8"))

    assert 0.5 < rounded / whole < 0.6


def test_sizing_kv_bytes_are_those_worked_out_by_hand() -> None:
    """64 x 4,096 tokens of Llama 8B: 1.074 GB a layer in bf16, 0.545 in int8 with a float16 scale a token and head."""
    num_tokens = 64 * 4096

    assert LLAMA.kv_bytes_per_token("auto") == 131_072
    assert LLAMA.kv_bytes_per_token("auto") * num_tokens / 32 / 1e9 == pytest.approx(1.074, abs=0.001)
    assert LLAMA.kv_bytes_per_token("int8") * num_tokens / 32 / 1e9 == pytest.approx(0.545, abs=0.001)


def test_sizing_kv_bytes_are_those_of_the_cache() -> None:
    """A page takes what the cache takes for it, in every type."""
    dtypes = {"auto": torch.bfloat16, "int8": torch.int8, "fp8": torch.float8_e4m3fn}

    assert {name: LLAMA.kv_bytes_per_token(name) * PAGE_SIZE for name in dtypes} == {
        name: page_bytes(LLAMA, dtype) for name, dtype in dtypes.items()
    }


def test_sizing_windows_are_read_and_stored_differently() -> None:
    """Half of Gemma 2's layers see 4,096 positions, so at 8,192 a step reads three quarters of what is kept."""
    assert MODELS["gemma-2-9b"].seen_share(8192) == pytest.approx(0.75)
    assert MODELS["gemma-2-9b"].seen_share(4000) == pytest.approx(1.0)


def test_sizing_larger_batch_reads_more_experts() -> None:
    """One token reads 2 of 8 experts, many read them all."""
    mixtral = MODELS["mixtral-8x7b"]
    one, many = mixtral.step_bytes(BF16, 1), mixtral.step_bytes(BF16, 10_000)

    assert one == pytest.approx(2 * (mixtral.active_parameters + mixtral.head_parameters))
    assert many == pytest.approx(2 * (mixtral.num_parameters - mixtral.head_parameters), rel=1e-6)


def test_sizing_batch_that_fits_fills_the_memory() -> None:
    """As many contexts as the engine's share of what the weights leave; one more would not go in."""
    found = estimate(LLAMA, H200, BF16, Workload(context=8192, concurrency=64))
    room = (H200.memory_bytes - CONTEXT_BYTES - found.weight_bytes) * FREE_SHARE

    assert found.fits * 2**30 <= room < (found.fits + 1) * 2**30
    assert (found.batch, found.kv_bytes) == (64, 64 * 2**30)
    assert found.total_bytes == found.weight_bytes + found.kv_bytes


def test_sizing_batch_is_cut_to_what_fits() -> None:
    """Where less fits than is asked for, the figures are of what fits."""
    found = estimate(MODELS["llama-3.1-70b"], H200, BF16, Workload(context=8192, concurrency=64))

    assert 0 < found.batch == found.fits < 64


def test_sizing_model_that_does_not_fit_has_no_speed() -> None:
    """Weights beyond the memory leave room for nothing, and there is nothing to be fast."""
    found = estimate(MODELS["llama-3.1-405b"], GPUS["l4"], INT4, Workload(context=1, concurrency=1))

    assert (found.fits, found.ttft_s, found.alone_tokens_per_s, found.together_tokens_per_s) == (0, None, None, None)


def test_sizing_partial_page_counts_whole() -> None:
    """Room is given in pages."""
    one, whole = (estimate(LLAMA, H200, BF16, Workload(context=size, concurrency=1)).kv_bytes for size in (1, 64))

    assert one == whole


@pytest.mark.parametrize("family", ["Llama", "Qwen2", "Qwen3", "Gemma2", "Phi3", "Mixtral"])
@pytest.mark.parametrize("quantization", [None, "int8"])
def test_sizing_weights_are_those_of_the_decoder(family: str, quantization: str | None, tmp_path: Path) -> None:
    """What is worked out from config.json is what a loaded model takes, but for norms, biases and scales."""
    more = {"num_local_experts": 4, "num_experts_per_tok": 2} if family == "Mixtral" else {}
    save_tiny_model(tmp_path, tiny_config(family, hidden_size=256, intermediate_size=384, vocab_size=512, **more))
    decoder = load_decoder(
        tmp_path,
        dtype=torch.bfloat16,
        device=torch.device("cpu"),
        ops=select_ops("cpu"),
        quantization=quantization,
    )
    shape = ModelShape.of(ModelConfig.from_folder(tmp_path), "tiny")

    expected = shape.weight_bytes(PRECISIONS[quantization or "bf16"])
    # On a CPU a tied output layer is laid out a second time, in the model's type.
    if shape.tie_embeddings and quantization is None and decoder.weight_bytes > 1.1 * expected:
        expected += 2 * shape.head_parameters
    assert decoder.weight_bytes == pytest.approx(expected, rel=0.03)


def test_sizing_constants_are_those_of_the_engine() -> None:
    """What is said here without PyTorch is what holds there."""
    assert PAGE_TOKENS == PAGE_SIZE
    assert FREE_SHARE == load._FREE_SHARE
