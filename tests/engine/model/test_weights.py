"""Loading a folder: shards, types, tied heads, adapters, and what a damaged folder says."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from backends.engine.errors import ModelError
from backends.engine.model.decoder import Decoder, load_decoder
from backends.engine.model.linear import is_packable
from kernels.dispatch import select_ops
from tests.support.engine.engine_batches import run_sequences
from tests.support.engine.tiny_models import random_tokens, save_tiny_model, tiny_config
from tests.support.kernels.naive_attention import naive_paged_attention

OPS = replace(select_ops("cpu"), paged_attention=naive_paged_attention)
TOKENS = random_tokens(12, 97, seed=1)
QUERY = "model.layers.1.self_attn.q_proj"
DOWN = "model.layers.0.mlp.down_proj"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tiny Llama."""
    save_tiny_model(tmp_path / "model", tiny_config("Llama"))
    return tmp_path / "model"


def load(folder: Path, dtype: torch.dtype | None = None, adapter: Path | None = None) -> Decoder:
    """On the CPU, with the twins."""
    return load_decoder(folder, dtype=dtype, device=torch.device("cpu"), ops=OPS, adapter=adapter)


def logits(decoder: Decoder) -> Tensor:
    """Of one short sequence."""
    (rows,) = run_sequences(decoder, [TOKENS], num_decode=2, chunk=64)
    return rows


def rewrite(folder: Path, **changed: Tensor | None) -> dict[str, Tensor]:
    """The folder's tensors saved again with some replaced or, where None, left out."""
    tensors: dict[str, Tensor | None] = {**load_file(folder / "model.safetensors"), **changed}
    kept = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    save_file(kept, folder / "model.safetensors")
    return kept


def save_adapter(folder: Path, tensors: dict[str, Tensor], **fields: Any) -> Path:
    """A PEFT folder."""
    folder.mkdir()
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 6, "target_modules": ["q_proj", "down_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(config | fields))
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


def random_pair(module: str, out_size: int, in_size: int, rank: int = 4) -> dict[str, Tensor]:
    """lora_A and lora_B as PEFT names them."""
    generator = torch.Generator().manual_seed(out_size)
    return {
        f"base_model.model.{module}.lora_A.weight": torch.randn(rank, in_size, generator=generator),
        f"base_model.model.{module}.lora_B.weight": torch.randn(out_size, rank, generator=generator),
    }


def test_weights_in_shards_give_the_same_logits(folder: Path) -> None:
    """An index file and its shards are one checkpoint."""
    expected = logits(load(folder))
    tensors = load_file(folder / "model.safetensors")
    names = sorted(tensors)
    shards = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for shard, held in shards.items():
        save_file({name: tensors[name] for name in held}, folder / shard)
    weight_map = {name: shard for shard, held in shards.items() for name in held}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (folder / "model.safetensors").unlink()

    assert torch.equal(logits(load(folder)), expected)


def test_weights_take_the_type_of_the_checkpoint_unless_told(folder: Path) -> None:
    """None is the checkpoint's own type."""
    rewrite(folder, **{name: tensor.bfloat16() for name, tensor in load_file(folder / "model.safetensors").items()})

    assert load(folder).dtype == torch.bfloat16
    assert load(folder, torch.float32).dtype == torch.float32


@pytest.mark.parametrize("is_tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bf16"])
def test_weight_bytes_count_what_lies_in_memory(is_tied: bool, dtype: torch.dtype, tmp_path: Path) -> None:
    """Every parameter once, biases too; a tied embedding twice where the head is laid out anew for the processor."""
    save_tiny_model(tmp_path, tiny_config("Qwen2", head_dim=None, tie_word_embeddings=is_tied))

    tensors = {name: tensor.to(dtype) for name, tensor in load_file(tmp_path / "model.safetensors").items()}

    assert ("lm_head.weight" in tensors) is not is_tied
    embedding = tensors["model.embed_tokens.weight"]
    copied = embedding.nbytes if is_tied and is_packable(embedding) else 0
    assert load(tmp_path, dtype).weight_bytes == sum(tensor.nbytes for tensor in tensors.values()) + copied


def test_weights_outlive_their_file(folder: Path) -> None:
    """Nothing stays mapped: a file overwritten under a running model changes nothing."""
    decoder = load(folder)
    expected = logits(decoder)
    path = folder / "model.safetensors"

    with path.open("r+b") as file:
        file.write(bytes(path.stat().st_size))

    assert torch.equal(logits(decoder), expected)


@pytest.mark.parametrize(("rslora", "scale"), [(False, 6 / 4), (True, 6 / 2)], ids=["plain", "rslora"])
def test_adapter_is_merged_into_joined_and_single_layers(
    rslora: bool, scale: float, folder: Path, tmp_path: Path
) -> None:
    """The same as a checkpoint that holds W + scale * B A."""
    pairs = random_pair(QUERY, 64, 48) | random_pair(DOWN, 48, 80)
    adapter = save_adapter(tmp_path / "adapter", pairs, use_rslora=rslora)

    found = logits(load(folder, adapter=adapter))

    before = logits(load(folder))
    tensors = load_file(folder / "model.safetensors")
    for module in (QUERY, DOWN):
        down, up = (pairs[f"base_model.model.{module}.lora_{half}.weight"] for half in "AB")
        tensors[f"{module}.weight"] += scale * up @ down
    rewrite(folder, **tensors)
    torch.testing.assert_close(found, logits(load(folder)))
    assert not torch.allclose(found, before)


def test_adapter_in_float32_is_not_rounded_to_the_type_of_the_checkpoint(folder: Path, tmp_path: Path) -> None:
    """Asked for float32, a bfloat16 checkpoint and its adapter add up in float32: an update smaller than a rounding
    step of the checkpoint counts.
    """
    held = {name: tensor.bfloat16() for name, tensor in load_file(folder / "model.safetensors").items()}
    rewrite(folder, **held)
    pairs = {name: tensor * 1e-3 for name, tensor in random_pair(QUERY, 64, 48).items()}
    adapter = save_adapter(tmp_path / "adapter", pairs)

    found = logits(load(folder, torch.float32, adapter))

    down, up = (pairs[f"base_model.model.{QUERY}.lora_{half}.weight"] for half in "AB")
    exact = {name: tensor.float() for name, tensor in held.items()}
    exact[f"{QUERY}.weight"] += 6 / 4 * up @ down
    rewrite(folder, **exact)
    torch.testing.assert_close(found, logits(load(folder)), rtol=0.0, atol=0.0)


def test_adapter_on_a_tied_head_changes_the_head_alone(tmp_path: Path) -> None:
    """The embedding is what the adapter was trained on, so it stays."""
    save_tiny_model(tmp_path / "model", tiny_config("Qwen3", tie_word_embeddings=True))
    pair = random_pair("lm_head", 97, 48)
    adapter = save_adapter(tmp_path / "adapter", pair)
    base, adapted = load(tmp_path / "model"), load(tmp_path / "model", adapter=adapter)
    hidden = torch.randn(3, 48)

    found = adapted.logits(hidden)

    update = 1.5 * pair["base_model.model.lm_head.lora_B.weight"] @ pair["base_model.model.lm_head.lora_A.weight"]
    torch.testing.assert_close(found, base.logits(hidden) + hidden @ update.T, rtol=1e-4, atol=1e-3)
    assert adapted.weight_bytes == base.weight_bytes + 97 * 48 * 4


def test_adapter_scale_follows_its_alpha_pattern(folder: Path, tmp_path: Path) -> None:
    """An alpha of its own for the modules that a pattern names."""
    pair = random_pair(QUERY, 64, 48)
    plain = save_adapter(tmp_path / "plain", pair, lora_alpha=2)
    patterned = save_adapter(tmp_path / "patterned", pair, alpha_pattern={"q_proj": 2})

    assert torch.equal(logits(load(folder, adapter=patterned)), logits(load(folder, adapter=plain)))


@pytest.mark.parametrize(
    ("tensors", "fields", "message"),
    [
        (
            random_pair("model.layers.9.self_attn.q_proj", 64, 48),
            {},
            "the model has no model.layers.9.self_attn.q_proj",
        ),
        (random_pair(QUERY, 64, 47), {}, "lora_A.weight' has shape [4, 47], expected [4, 48]"),
        ({"base_model.model.lm_head.weight": torch.zeros(97, 48)}, {}, "is no lora_A or lora_B"),
        (random_pair(QUERY, 64, 48), {"use_dora": True}, "'use_dora' is True, expected false"),
        (random_pair(QUERY, 64, 48), {"peft_type": "IA3"}, "'peft_type' is 'IA3', expected 'LORA'"),
        (random_pair(QUERY, 64, 48), {"lora_alpha": None}, "'lora_alpha' is missing"),
        (dict(list(random_pair(QUERY, 64, 48).items())[:1]), {}, "lora_B.weight' is missing"),
    ],
    ids=["other-model", "shape", "full-tensor", "dora", "kind", "alpha", "half"],
)
def test_adapter_that_does_not_fit_is_refused(
    tensors: dict[str, Tensor], fields: dict[str, Any], message: str, folder: Path, tmp_path: Path
) -> None:
    """The error names the adapter's file and what is wrong in it."""
    adapter = save_adapter(tmp_path / "adapter", tensors, **fields)

    with pytest.raises(ModelError) as caught:
        load(folder, adapter=adapter)

    assert str(adapter) in str(caught.value)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({f"{QUERY}.weight": None}, f"tensor '{QUERY}.weight' is missing"),
        ({"model.norm.weight": torch.zeros(47)}, "tensor 'model.norm.weight' has shape [47], expected [48]"),
        ({f"{DOWN}.weight": torch.zeros(48, 80, dtype=torch.int8)}, "is torch.int8, expected a floating type"),
    ],
    ids=["missing", "shape", "type"],
)
def test_weights_with_a_bad_tensor_name_file_and_tensor(
    changed: dict[str, Tensor | None], message: str, folder: Path
) -> None:
    """Which file, which tensor, what was expected."""
    rewrite(folder, **changed)

    with pytest.raises(ModelError) as caught:
        load(folder)

    assert str(folder / "model.safetensors") in str(caught.value)
    assert message in str(caught.value)


@pytest.mark.parametrize("keep", [0, 5, 2000, -1], ids=["empty", "header-cut", "data-cut", "last-byte-cut"])
def test_weights_in_a_torn_file_are_refused(keep: int, folder: Path) -> None:
    """A download that stopped half way is told from a whole one."""
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])

    with pytest.raises(ModelError, match="is torn or no safetensors file") as caught:
        load(folder)

    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (None, "model.safetensors does not exist"),
        ("{}", "'weight_map' is missing"),
        ('{"weight_map": {"model.norm.weight": "gone.safetensors"}}', "gone.safetensors does not exist"),
        ('{"weight_map": {"model.norm.weight": 3}}', "weight_map: 'model.norm.weight' is 3, expected a string"),
    ],
    ids=["nothing", "no-map", "shard-gone", "not-a-name"],
)
def test_weights_that_are_not_there_are_named(index: str | None, message: str, folder: Path) -> None:
    """A missing file, or an index that leads nowhere."""
    (folder / "model.safetensors").unlink()
    if index is not None:
        (folder / "model.safetensors.index.json").write_text(index)

    with pytest.raises(ModelError) as caught:
        load(folder)

    assert message in str(caught.value)
