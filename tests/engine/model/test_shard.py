"""Decoders that share a model's layers between them: in threads, with a sum of their own, against the whole model."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from backends.engine.errors import ModelError
from backends.engine.model.calibrate import collect_input_peaks
from backends.engine.model.config import ModelConfig
from backends.engine.model.decoder import Decoder, load_decoder
from backends.engine.model.quantize import quantize_folder
from backends.engine.model.shard import Shard, WeightShare, kv_shape, pieces_of
from kernels.dispatch import select_ops
from kernels.paging import PAGE_SIZE, allocate_kv
from tests.support.engine.engine_batches import Part, build_batch
from tests.support.engine.tiny_models import random_tokens, save_tiny_model, tiny_config

CPU = torch.device("cpu")
TOKENS = random_tokens(PAGE_SIZE + 9, 97, seed=1)
MOE = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama-all-biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-one-kv-head": ("Llama", {"num_key_value_heads": 1}),
    "qwen2": ("Qwen2", {"head_dim": None, "tie_word_embeddings": True}),
    "qwen3": ("Qwen3", {"head_dim": 32}),
    "gemma2": ("Gemma2", {"sliding_window": 40, "attn_logit_softcapping": 5.0}),
    "phi3-fused": ("Phi3", {"sliding_window": 50}),
    "granite": ("Granite", {"residual_multiplier": 0.22}),
    "mixtral": ("Mixtral", {"num_local_experts": 5, "num_experts_per_tok": 2}),
    "qwen3-moe": ("Qwen3Moe", MOE | {"norm_topk_prob": True, "mlp_only_layers": [1]}),
}


class Meeting:
    """Adds up the tensors of `count` threads, each of which waits for the others."""

    def __init__(self, count: int) -> None:
        self._barrier = threading.Barrier(count, timeout=30)
        self._brought: list[Tensor | None] = [None] * count
        self.num_sums = 0

    def add_up(self, rank: int, tensor: Tensor) -> Tensor:
        """The sum, to each thread."""
        self._brought[rank] = tensor
        self._barrier.wait()
        total = sum(brought for brought in self._brought if brought is not None)
        assert isinstance(total, Tensor)
        self.num_sums += rank == 0
        self._barrier.wait()
        return total


def step(decoder: Decoder, shard: Shard) -> Tensor:
    """Logits [tokens, vocab] of one prompt, in two chunks."""
    shape = kv_shape(decoder.config, shard)
    kv = [
        allocate_kv(2, shape.num_kv_heads, shape.head_dim, dtype=decoder.dtype, device=CPU)
        for _ in range(shape.num_layers)
    ]
    chunks = (Part(TOKENS[:20], 0, [1, 0]), Part(TOKENS[20:], 20, [1, 0]))
    return torch.cat([decoder.logits(decoder.forward(build_batch([part], all_rows=True), kv)) for part in chunks])


def shared_logits(folder: Path, count: int, **options: Any) -> tuple[list[Tensor], int]:
    """(each rank's logits, how many sums it took)."""
    meeting = Meeting(count)

    def run(rank: int) -> Tensor:
        def add_up(tensor: Tensor) -> Tensor:
            return meeting.add_up(rank, tensor)

        shard = Shard(rank, count, add_up)
        return step(load(folder, shard=shard, **options), shard)

    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(run, range(count))), meeting.num_sums


def load(folder: Path, **options: Any) -> Decoder:
    """In float32, with the twins."""
    return load_decoder(folder, dtype=torch.float32, device=CPU, ops=select_ops("cpu"), **options)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("count", [2, 4])
def test_shared_model_gives_the_logits_of_the_whole(family: str, count: int, tmp_path: Path) -> None:
    """Every rank has them all, after two sums a layer and chunk; four ranks share two KV heads, or one."""
    name, fields = FAMILIES[family]
    save_tiny_model(tmp_path, tiny_config(name, **fields))

    found, num_sums = shared_logits(tmp_path, count)

    expected = step(load(tmp_path), Shard())
    for logits in found:
        assert torch.equal(logits, found[0])
        torch.testing.assert_close(logits, expected, atol=1e-3, rtol=1e-3)
    assert num_sums == 2 * 2 * 3


@pytest.mark.parametrize("count", [2, 4])
def test_shared_model_holds_its_share_of_the_weights(count: int, tmp_path: Path) -> None:
    """Layers are divided, and embedding, norms and head are not."""
    save_tiny_model(tmp_path, tiny_config("Llama", num_key_value_heads=4))
    config = ModelConfig.from_folder(tmp_path)

    kept = [load(tmp_path, shard=Shard(rank, count)).weight_bytes for rank in range(count)]

    norms = (2 * config.num_layers + 1) * config.hidden_size
    whole = (norms + 2 * config.vocab_size * config.hidden_size) * 4
    assert kept == [whole + (load(tmp_path).weight_bytes - whole) // count] * count


Quantize = Callable[[Path, Path], None]


def _calibrated(source: Path, target: Path) -> None:
    peaks = collect_input_peaks(source, [TOKENS], progress=lambda *_: None)
    quantize_folder(source, target, "w8a8", input_peaks=peaks, progress=lambda *_: None)


def _nf4_in_wide_groups(source: Path, target: Path) -> None:
    # Groups of 16 and 24 inputs are cut in two, and in four.
    quantize_folder(source, target, "nf4", group_size=80, progress=lambda *_: None)


@pytest.mark.parametrize(
    ("quantize", "worst"), [(_calibrated, 0.06), (_nf4_in_wide_groups, 0.02)], ids=["calibrated", "nf4"]
)
@pytest.mark.parametrize("count", [2, 4])
def test_shared_quantized_checkpoint_gives_the_logits_of_the_whole(
    quantize: Quantize, worst: float, count: int, tmp_path: Path
) -> None:
    """Scales, groups and smoothing are cut where the weights are."""
    save_tiny_model(tmp_path / "plain", tiny_config("Phi3", num_key_value_heads=4))
    quantize(tmp_path / "plain", tmp_path / "small")

    found, _ = shared_logits(tmp_path / "small", count)

    expected = step(load(tmp_path / "small"), Shard())
    assert (found[0] - expected).norm() <= worst * expected.norm()


@pytest.mark.parametrize(
    ("fields", "count", "message"),
    [
        ({}, 3, r"tensor_parallel is 3, which does not divide num_attention_heads \(4\)"),
        ({"intermediate_size": 81}, 2, r"tensor_parallel is 2, which does not divide intermediate_size \(81\)"),
        (
            {"num_attention_heads": 6, "num_key_value_heads": 3, "intermediate_size": 84},
            2,
            r"num_key_value_heads \(3\)",
        ),
    ],
    ids=["heads", "feed-forward", "kv-heads"],
)
def test_model_that_cannot_be_divided_is_refused(
    fields: dict[str, Any], count: int, message: str, tmp_path: Path
) -> None:
    """The message says which size, and how large it is."""
    save_tiny_model(tmp_path, tiny_config("Llama", **fields))

    with pytest.raises(ModelError, match=message):
        load(tmp_path, shard=Shard(0, count))


def test_parts_of_all_ranks_cover_everything_once_or_evenly() -> None:
    """Without a unit each number is somewhere once; fewer units than ranks are each with as many ranks."""
    for size, unit, count in ((12, 1, 4), (64, 16, 4), (32, 16, 4), (16, 16, 4), (7, 7, 1)):
        held = [number for rank in range(count) for number in range(size)[Shard(rank, count).part(size, unit)]]

        times = max(count * unit // size, 1)
        assert sorted(held) == sorted(list(range(size)) * times)


def test_pieces_of_a_joined_module_take_a_share_of_each_part() -> None:
    """Gate and up, or queries, keys and values in one tensor: neighbours in memory belong to different parts."""
    (piece,) = pieces_of(["gate_up"], [8, 8], 3, Shard(1, 2), split="outputs")
    tensor = torch.arange(48).view(16, 3)

    assert piece.cut(tensor)[:, 0].tolist() == [12, 15, 18, 21, 36, 39, 42, 45]
    assert pieces_of(["gate_up"], [8, 8], 3, Shard(), split="outputs") == [WeightShare.whole("gate_up", 16, 3)]
