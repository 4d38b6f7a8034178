"""Reading config.json: both spellings, defaults, and what a wrong field says."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from backends.engine.errors import ModelError
from backends.engine.model.config import FAMILIES, ModelConfig
from backends.engine.model.rope import RopeConfig, rope_table

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 1024,
}


def read(folder: Path, *, generation: dict[str, Any] | None = None, **fields: Any) -> ModelConfig:
    """LLAMA with these fields over it, through the files."""
    (folder / "config.json").write_text(json.dumps(LLAMA | fields))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return ModelConfig.from_folder(folder)


def test_config_with_required_fields_only_takes_the_defaults(tmp_path: Path) -> None:
    """What older files leave out is what transformers would take."""
    config = read(tmp_path)

    assert (config.num_kv_heads, config.head_dim) == (4, 16)
    assert config.rope == RopeConfig(theta=10_000.0, rotary_dim=16)
    assert config.attention_scale == pytest.approx(0.25)
    assert config.windows == (0, 0, 0, 0)
    assert (config.tie_embeddings, config.activation, config.eos_token_ids) == (False, "silu", ())


def test_config_of_both_rope_spellings_is_the_same(tmp_path: Path) -> None:
    """rope_theta with rope_scaling, and rope_parameters, say the same thing."""
    scaling = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}

    old = read(tmp_path, rope_theta=5e5, rope_scaling=scaling | {"type": "llama3"})
    new = read(tmp_path, rope_parameters=scaling | {"rope_type": "llama3", "rope_theta": 5e5})

    assert old == new
    assert (new.rope.kind, new.rope.theta, new.rope.trained_positions) == ("llama3", 5e5, 64)


def test_config_of_gemma3_in_both_spellings_gives_windowed_layers_their_own_rotation(tmp_path: Path) -> None:
    """Five local layers, then a global one, each kind with its theta."""
    gemma: dict[str, Any] = {"architectures": ["Gemma3ForCausalLM"], "num_hidden_layers": 7, "sliding_window": 32}
    nested = {
        "full_attention": {"rope_type": "default", "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }

    old = read(tmp_path, **gemma, rope_theta=1e6, rope_local_base_freq=1e4)
    new = read(tmp_path, **gemma, rope_parameters=nested)

    assert old == new
    assert new.windows == (32, 32, 32, 32, 32, 0, 32)
    assert new.rope.theta == 1e6
    assert new.local_rope == RopeConfig(theta=1e4, rotary_dim=16)
    assert (new.norm_offset, new.tie_embeddings, new.activation) == (1.0, True, "gelu_tanh")


@pytest.mark.parametrize(
    ("architecture", "fields", "windows"),
    [
        ("LlamaForCausalLM", {"sliding_window": 8}, (0, 0, 0, 0)),
        ("MistralForCausalLM", {"sliding_window": 8}, (8, 8, 8, 8)),
        ("MistralForCausalLM", {"sliding_window": None}, (0, 0, 0, 0)),
        ("Qwen2ForCausalLM", {"sliding_window": 8, "use_sliding_window": False}, (0, 0, 0, 0)),
        ("Qwen2ForCausalLM", {"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 3}, (0, 0, 0, 8)),
        ("Gemma2ForCausalLM", {"sliding_window": 8}, (8, 0, 8, 0)),
        ("Gemma3ForCausalLM", {"sliding_window": 8, "sliding_window_pattern": 3}, (8, 8, 0, 8)),
        (
            "Qwen3ForCausalLM",
            {
                "sliding_window": 8,
                "use_sliding_window": True,
                "layer_types": ["sliding_attention", "full_attention", "full_attention", "sliding_attention"],
            },
            (8, 0, 0, 8),
        ),
    ],
)
def test_config_reads_windows_per_layer(
    architecture: str, fields: dict[str, Any], windows: tuple[int, ...], tmp_path: Path
) -> None:
    """Each family says in its own way which layers look back only so far."""
    assert read(tmp_path, architectures=[architecture], **fields).windows == windows


def test_config_unites_the_end_tokens_of_both_files(tmp_path: Path) -> None:
    """The end of a turn often stands in generation_config.json alone."""
    config = read(tmp_path, eos_token_id=7, generation={"eos_token_id": [9, 7]})

    assert config.eos_token_ids == (7, 9)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"architectures": ["MambaForCausalLM"]},
            "'MambaForCausalLM', which is not served; known are LlamaForCausalLM",
        ),
        ({"architectures": None}, "'architectures' is None, expected a list of one name"),
        ({"hidden_size": None}, "'hidden_size' is missing"),
        ({"hidden_size": "64"}, "'hidden_size' is '64', expected an integer"),
        ({"num_hidden_layers": 0}, "'num_hidden_layers' is 0, expected an integer of at least 1"),
        ({"num_key_value_heads": 3}, "'num_key_value_heads' is 3, expected a divisor of 'num_attention_heads' (4)"),
        ({"rms_norm_eps": -1}, "'rms_norm_eps' is -1, expected a finite number above zero"),
        ({"tie_word_embeddings": "yes"}, "'tie_word_embeddings' is 'yes', expected true or false"),
        ({"hidden_act": "relu"}, "'hidden_act' is 'relu', expected one of silu"),
        ({"eos_token_id": "</s>"}, "'eos_token_id' is '</s>', expected a token id"),
        ({"rope_scaling": {"type": "spiral"}}, "rope_scaling: rope type 'spiral' is unknown"),
        ({"rope_scaling": {"type": "linear"}}, "rope_scaling: 'factor' is missing"),
        ({"rope_scaling": [1]}, "'rope_scaling' is [1], expected a JSON object"),
        ({"partial_rotary_factor": 0.2}, "'partial_rotary_factor'"),
        ({"num_hidden_layers": 10**12}, "'num_hidden_layers' is 1000000000000, expected an integer of at most"),
        ({"max_position_embeddings": 10**30}, "'max_position_embeddings'"),
        (
            {"quantization_config": {"quant_method": "bitsandbytes"}},
            "quantization_config: 'quant_method' is 'bitsandbytes', expected one of slipstream, gptq, awq",
        ),
        (
            {
                "architectures": ["Phi3ForCausalLM"],
                "rope_scaling": {"type": "su", "short_factor": [1], "long_factor": [1]},
            },
            "'short_factor' has 1 numbers, expected 8",
        ),
        (
            {
                "architectures": ["Qwen2ForCausalLM"],
                "use_sliding_window": True,
                "sliding_window": 4,
                "layer_types": ["x"],
            },
            "'layer_types' is ['x'], expected a list of 4 names",
        ),
        (
            {"architectures": ["MixtralForCausalLM"], "num_local_experts": 2, "num_experts_per_tok": 3},
            "'num_experts_per_tok' is 3, expected at most the number of experts (2)",
        ),
    ],
    ids=lambda value: None if isinstance(value, str) else "-".join(value),
)
def test_config_with_a_bad_field_names_file_and_field(fields: dict[str, Any], message: str, tmp_path: Path) -> None:
    """The error says which file, which field, what it holds and what was expected."""
    with pytest.raises(ModelError) as caught:
        read(tmp_path, **fields)

    assert str(caught.value).startswith(str(tmp_path / "config.json"))
    assert message in str(caught.value)


def test_config_of_an_unknown_architecture_lists_all_known_ones(tmp_path: Path) -> None:
    """Nobody has to look into the source for what is served."""
    with pytest.raises(ModelError) as caught:
        read(tmp_path, architectures=["GPT2LMHeadModel"])

    assert all(name in str(caught.value) for name in FAMILIES)


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "does not exist"), ("{", "is not JSON"), ("[" * 100_000, "is not JSON"), ("[]", "holds a list")],
    ids=["missing", "torn", "deep", "list"],
)
def test_config_file_that_cannot_be_read_is_named(content: str | None, message: str, tmp_path: Path) -> None:
    """Missing, torn, or another thing altogether."""
    if content is not None:
        (tmp_path / "config.json").write_text(content)

    with pytest.raises(ModelError, match=message) as caught:
        ModelConfig.from_folder(tmp_path)

    assert str(tmp_path / "config.json") in str(caught.value)


def test_rope_table_without_scaling_holds_cosines_then_sines() -> None:
    """Position p turns pair i by p * theta^(-2i / rotary_dim)."""
    table = rope_table(RopeConfig(theta=100.0, rotary_dim=4), 8, torch.device("cpu"))

    angles = [5.0, 5.0 * 100.0 ** (-2 / 4)]
    expected = [math.cos(angles[0]), math.cos(angles[1]), math.sin(angles[0]), math.sin(angles[1])]
    assert (table.shape, table.dtype) == ((8, 4), torch.float32)
    torch.testing.assert_close(table[5], torch.tensor(expected))


def test_config_of_phi_reads_partial_rotation_at_the_top_and_inside(tmp_path: Path) -> None:
    """Phi-4-mini turns three quarters of a head; the share stands in either place."""
    outside = read(tmp_path, architectures=["Phi3ForCausalLM"], partial_rotary_factor=0.75)
    inside = read(tmp_path, architectures=["Phi3ForCausalLM"], rope_parameters={"partial_rotary_factor": 0.75})

    assert outside.rope.rotary_dim == inside.rope.rotary_dim == 12
    assert outside.fused_names
