"""What a model looks like, read from the config.json of a Hugging Face folder.

One table says what each family adds to Llama; the decoder sees only the resulting flags.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from backends.engine.errors import ModelError
from backends.engine.model.json_fields import GENERATION_FILE, MODEL_FILE, JsonFields
from backends.engine.model.quantized_formats import CONFIG_FIELD, QuantizationConfig
from backends.engine.model.rope import RopeConfig


@dataclass(frozen=True, slots=True)
class ExpertsConfig:
    """Routed feed-forward blocks: `per_token` of `count` experts, each `size` wide, in the layers of `layers`.

    `is_normalized`: the chosen experts' weights are scaled to sum to one. `names`: how the checkpoint spells them.
    """

    count: int
    per_token: int
    size: int
    is_normalized: bool
    layers: frozenset[int]
    names: Literal["mixtral", "qwen"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """One decoder-only model.

    `windows`: per layer, how many last positions a query sees, 0 for all. `local_rope` is the rotation of windowed
    layers where they have their own. Soft caps of 0 are off. `norm_offset`: norms scale by offset + weight.
    `post_norms`: attention and feed-forward are normed once more before they join the residual.
    `fused_names`: the checkpoint holds qkv_proj and gate_up_proj. `quantization`: the form its weights are stored in.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_positions: int
    eos_token_ids: tuple[int, ...]
    tie_embeddings: bool
    rope: RopeConfig
    local_rope: RopeConfig | None
    windows: tuple[int, ...]
    norm_eps: float
    activation: str
    norm_offset: float = 0.0
    qk_norm: bool = False
    post_norms: bool = False
    fused_names: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    attention_scale: float = 1.0
    attention_softcap: float = 0.0
    logits_softcap: float = 0.0
    embedding_multiplier: float = 1.0
    residual_multiplier: float = 1.0
    logits_divisor: float = 1.0
    experts: ExpertsConfig | None = None
    quantization: QuantizationConfig | None = None

    @classmethod
    def from_folder(cls, folder: Path) -> ModelConfig:
        """Reads config.json and, where there is one, generation_config.json.

        Raises ModelError, which names the file and the field.
        """
        return _model_config(JsonFields.from_file(folder / MODEL_FILE), folder)


def check_divisible(config: ModelConfig, count: int) -> None:
    """Raises ModelError where the model's layers cannot be divided among so many ranks."""
    sizes = {"num_attention_heads": config.num_heads, "intermediate_size": config.intermediate_size}
    if config.experts is not None:
        sizes["the size of an expert"] = config.experts.size
    for name, size in sizes.items():
        if size % count:
            raise ModelError(f"tensor_parallel is {count}, which does not divide {name} ({size})")
    num_kv_heads = config.num_kv_heads
    if num_kv_heads % count and count % num_kv_heads:
        raise ModelError(f"tensor_parallel is {count}, which cannot share out num_key_value_heads ({num_kv_heads})")


@dataclass(frozen=True, slots=True)
class _Family:
    """What a family adds to Llama, beyond what its config.json says."""

    windows: Literal["none", "all", "optional", "alternate", "pattern"] = "none"
    qkv_bias: bool = False
    qk_norm: bool = False
    post_norms: bool = False
    fused_names: bool = False
    is_gemma: bool = False
    experts: Literal["mixtral", "qwen"] | None = None


FAMILIES: Mapping[str, _Family] = MappingProxyType(
    {
        "LlamaForCausalLM": _Family(),
        "MistralForCausalLM": _Family(windows="all"),
        "Qwen2ForCausalLM": _Family(windows="optional", qkv_bias=True),
        "Qwen3ForCausalLM": _Family(windows="optional", qk_norm=True),
        "GemmaForCausalLM": _Family(is_gemma=True),
        "Gemma2ForCausalLM": _Family(windows="alternate", is_gemma=True, post_norms=True),
        "Gemma3ForCausalLM": _Family(windows="pattern", is_gemma=True, post_norms=True, qk_norm=True),
        "Phi3ForCausalLM": _Family(windows="all", fused_names=True),
        "GraniteForCausalLM": _Family(),
        "MixtralForCausalLM": _Family(windows="all", experts="mixtral"),
        "Qwen3MoeForCausalLM": _Family(windows="optional", qk_norm=True, experts="qwen"),
    }
)
"""The architectures we serve, as config.json spells them."""

_ACTIVATIONS: Mapping[str, str] = MappingProxyType(
    {"silu": "silu", "swish": "silu", "gelu": "gelu", "gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh"}
)


def _model_config(fields: JsonFields, folder: Path) -> ModelConfig:
    architecture, family = _family(fields)
    if fields.flag("use_bidirectional_attention"):
        raise fields.invalid("use_bidirectional_attention", "false: only causal models are served")
    hidden_size, num_heads = fields.whole("hidden_size"), fields.whole("num_attention_heads")
    num_kv_heads = fields.whole("num_key_value_heads", num_heads)
    if num_heads % num_kv_heads:
        raise fields.invalid("num_key_value_heads", f"a divisor of 'num_attention_heads' ({num_heads})")
    head_dim = fields.whole("head_dim", hidden_size // num_heads)
    num_layers, max_positions = fields.whole("num_hidden_layers"), fields.whole("max_position_embeddings")
    rope, local_rope = _ropes(fields, head_dim, max_positions)
    has_bias = fields.flag("attention_bias")
    scale = fields.number("query_pre_attn_scalar", head_dim) ** -0.5
    return ModelConfig(
        architecture=architecture,
        vocab_size=fields.whole("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=fields.whole("intermediate_size"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        max_positions=max_positions,
        eos_token_ids=_eos_token_ids(fields, folder),
        tie_embeddings=fields.flag("tie_word_embeddings", family.is_gemma),
        rope=rope,
        local_rope=local_rope,
        windows=_windows(fields, family, num_layers),
        norm_eps=fields.number("rms_norm_eps", 1e-6),
        activation=_activation(fields, family),
        norm_offset=1.0 if family.is_gemma else 0.0,
        qk_norm=family.qk_norm,
        post_norms=family.post_norms,
        fused_names=family.fused_names,
        qkv_bias=has_bias or family.qkv_bias,
        output_bias=has_bias,
        mlp_bias=fields.flag("mlp_bias"),
        attention_scale=fields.number("attention_multiplier", scale),
        attention_softcap=fields.number("attn_logit_softcapping", 0.0),
        logits_softcap=fields.number("final_logit_softcapping", 0.0),
        embedding_multiplier=math.sqrt(hidden_size) if family.is_gemma else fields.number("embedding_multiplier", 1.0),
        residual_multiplier=fields.number("residual_multiplier", 1.0),
        logits_divisor=fields.number("logits_scaling", 1.0),
        experts=_experts(fields, family, num_layers),
        quantization=_quantization(fields),
    )


def _family(fields: JsonFields) -> tuple[str, _Family]:
    names = fields.raw("architectures")
    if not isinstance(names, list) or len(names) != 1:
        raise fields.invalid("architectures", "a list of one name")
    family = FAMILIES.get(names[0])
    if family is None:
        raise ModelError(
            f"{fields.where}: 'architectures' names {names[0]!r}, which is not served; known are {', '.join(FAMILIES)}"
        )
    return names[0], family


def _quantization(fields: JsonFields) -> QuantizationConfig | None:
    stored = fields.nested(CONFIG_FIELD)
    return None if stored is None else QuantizationConfig.from_fields(stored)


def _eos_token_ids(fields: JsonFields, folder: Path) -> tuple[int, ...]:
    """Those of both files: chat models often name the end of a turn only in generation_config.json."""
    ids = set(fields.token_ids("eos_token_id"))
    if (folder / GENERATION_FILE).exists():
        ids.update(JsonFields.from_file(folder / GENERATION_FILE).token_ids("eos_token_id"))
    return tuple(sorted(ids))


def _activation(fields: JsonFields, family: _Family) -> str:
    # Gemma's first checkpoints say "gelu" in `hidden_act` and were trained with the tanh form.
    default = "gelu_pytorch_tanh" if family.is_gemma else fields.text("hidden_act", "silu")
    name = fields.text("hidden_activation", default)
    if name not in _ACTIVATIONS:
        field = "hidden_activation" if "hidden_activation" in fields else "hidden_act"
        raise fields.invalid(field, f"one of {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[name]


def _windows(fields: JsonFields, family: _Family, num_layers: int) -> tuple[int, ...]:
    full = (0,) * num_layers
    if family.windows == "none" or (family.windows == "optional" and not fields.flag("use_sliding_window")):
        return full
    size = fields.whole("sliding_window") if "sliding_window" in fields else 0
    if not size:
        return full
    kinds = fields.raw("layer_types")
    if kinds is not None:
        if not isinstance(kinds, list) or len(kinds) != num_layers:
            raise fields.invalid("layer_types", f"a list of {num_layers} names")
        if set(kinds) - {"full_attention", "sliding_attention"}:
            raise fields.invalid("layer_types", "nothing but 'full_attention' and 'sliding_attention'")
        return tuple(size if kind == "sliding_attention" else 0 for kind in kinds)
    if family.windows in ("alternate", "pattern"):
        period = 2 if family.windows == "alternate" else fields.whole("sliding_window_pattern", 6)
        return tuple(size if (layer + 1) % period else 0 for layer in range(num_layers))
    is_mixed = family.windows == "optional" and family.experts is None
    first = fields.whole("max_window_layers", 0, minimum=0) if is_mixed else 0
    return tuple(size if layer >= first else 0 for layer in range(num_layers))


def _experts(fields: JsonFields, family: _Family, num_layers: int) -> ExpertsConfig | None:
    if family.experts is None:
        return None
    count = fields.whole("num_local_experts" if "num_local_experts" in fields else "num_experts")
    per_token = fields.whole("num_experts_per_tok")
    if per_token > count:
        raise fields.invalid("num_experts_per_tok", f"at most the number of experts ({count})")
    step = fields.whole("decoder_sparse_step", 1)
    dense = fields.raw("mlp_only_layers") or []
    if not isinstance(dense, list):
        raise fields.invalid("mlp_only_layers", "a list of layer numbers")
    is_mixtral = family.experts == "mixtral"
    return ExpertsConfig(
        count=count,
        per_token=per_token,
        size=fields.whole("intermediate_size" if is_mixtral else "moe_intermediate_size"),
        is_normalized=is_mixtral or fields.flag("norm_topk_prob"),
        layers=frozenset(layer for layer in range(num_layers) if layer not in dense and (layer + 1) % step == 0),
        names=family.experts,
    )


def _ropes(fields: JsonFields, head_dim: int, max_positions: int) -> tuple[RopeConfig, RopeConfig | None]:
    """(the rotation of full layers, that of windowed layers where it differs)."""
    shared = fields.nested("rope_parameters") or fields.nested("rope_scaling") or JsonFields({}, fields.where)
    full, local = shared.nested("full_attention"), shared.nested("sliding_attention")
    if full is not None and local is not None:
        return _rope(fields, full, head_dim, max_positions), _rope(fields, local, head_dim, max_positions)
    rope = _rope(fields, shared, head_dim, max_positions)
    if "rope_local_base_freq" in fields:
        return rope, RopeConfig(theta=fields.number("rope_local_base_freq"), rotary_dim=rope.rotary_dim)
    return rope, None


def _rope(fields: JsonFields, scaling: JsonFields, head_dim: int, max_positions: int) -> RopeConfig:
    """One rotation; what the scaling object leaves out stands at the top of config.json, as older files have it."""
    kind = scaling.text("rope_type", scaling.text("type", "default"))
    theta = scaling.number("rope_theta", fields.number("rope_theta", 10_000.0))
    share = scaling.number("partial_rotary_factor", fields.number("partial_rotary_factor", 1.0))
    rotary_dim = int(head_dim * share)
    if not 0 < rotary_dim <= head_dim or rotary_dim % 2:
        raise ModelError(
            f"{scaling.where}: {share:g} of a head of {head_dim} turns ('partial_rotary_factor'), "
            f"which is {rotary_dim} numbers; expected an even number of 2 to {head_dim}"
        )
    trained = fields.whole(
        "original_max_position_embeddings", scaling.whole("original_max_position_embeddings", max_positions)
    )
    match kind:
        case "default" | "dynamic":
            return RopeConfig(theta=theta, rotary_dim=rotary_dim)
        case "linear":
            return RopeConfig(kind="linear", theta=theta, rotary_dim=rotary_dim, factor=scaling.number("factor"))
        case "llama3":
            return RopeConfig(
                kind="llama3",
                theta=theta,
                rotary_dim=rotary_dim,
                factor=scaling.number("factor"),
                trained_positions=trained,
                low_freq_factor=scaling.number("low_freq_factor"),
                high_freq_factor=scaling.number("high_freq_factor"),
            )
        case "yarn":
            factor = scaling.number("factor", max_positions / trained)
            return RopeConfig(
                kind="yarn",
                theta=theta,
                rotary_dim=rotary_dim,
                factor=factor,
                trained_positions=trained,
                beta_fast=scaling.number("beta_fast", 32.0),
                beta_slow=scaling.number("beta_slow", 1.0),
                truncate=scaling.flag("truncate", True),
                attention_factor=scaling.number("attention_factor", _yarn_attention_factor(scaling, factor)),
            )
        case "longrope" | "su":
            return _longrope(scaling, theta, rotary_dim, trained, max_positions)
    raise ModelError(
        f"{scaling.where}: rope type {kind!r} is unknown; known are default, dynamic, linear, llama3, yarn, longrope"
    )


def _yarn_attention_factor(scaling: JsonFields, factor: float) -> float:
    def growth(multiplier: float) -> float:
        return 0.1 * multiplier * math.log(factor) + 1.0 if factor > 1 else 1.0

    if "mscale" in scaling and "mscale_all_dim" in scaling:
        return growth(scaling.number("mscale")) / growth(scaling.number("mscale_all_dim"))
    return growth(1.0)


def _longrope(scaling: JsonFields, theta: float, rotary_dim: int, trained: int, max_positions: int) -> RopeConfig:
    factor = scaling.number("factor", max_positions / trained)
    growth = math.sqrt(1 + math.log(factor) / math.log(trained)) if factor > 1 else 1.0
    factors = {name: scaling.numbers(name) for name in ("short_factor", "long_factor")}
    for name, values in factors.items():
        if len(values) != rotary_dim // 2:
            raise ModelError(f"{scaling.where}: {name!r} has {len(values)} numbers, expected {rotary_dim // 2}")
    return RopeConfig(
        kind="longrope",
        theta=theta,
        rotary_dim=rotary_dim,
        trained_positions=trained,
        attention_factor=scaling.number("attention_factor", growth),
        short_factors=factors["short_factor"],
        long_factors=factors["long_factor"],
    )
