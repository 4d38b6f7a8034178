"""The two networks' shapes, and an attention for training that beats the stock one on short CPU batches."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from transformers.models.qwen3.modeling_qwen3 import Qwen3MLP, Qwen3RMSNorm

from backends.engine.demo_models.tokenizer import CONTEXT_TOKENS

TARGET_SHAPE = {
    "hidden_size": 256,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "intermediate_size": 704,
}
DRAFT_SHAPE = {
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 384,
}
"""Few layers: on a CPU the cost per layer, not the width, decides how fast a draft is."""
ROPE_THETA = 10000.0


def make_network(shape: dict[str, Any], tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    """A Qwen3 network with fresh weights from torch's default generator, float32, tied head."""
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        head_dim=32,
        tie_word_embeddings=True,
        max_position_embeddings=CONTEXT_TOKENS,
        rope_parameters={"rope_type": "default", "rope_theta": ROPE_THETA},
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        **shape,
    )
    return Qwen3ForCausalLM(config)


def quicken(network: Qwen3ForCausalLM, *, compiles: bool) -> None:
    """Switches `network` to the training attention, registered with transformers, and may compile the small parts.

    Compiling needs a C++ compiler and saves a tenth of the time.
    """
    AttentionInterface.register("folded", folded_attention)
    network.set_attn_implementation("folded")
    if compiles:
        for module in network.modules():
            if isinstance(module, (Qwen3RMSNorm, Qwen3MLP)):
                module.compile(dynamic=True)


def folded_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: None, scaling: float, **_: object
) -> tuple[Tensor, None]:
    """Causal attention with the heads of a group folded into rows.

    query: [B, H, T, D]; key, value: [B, KV, T, D]; returns [B, T, H, D]. Rows are padded on the right, so that
    causality alone hides the padding.
    """
    batch, heads, length, width = query.shape
    key_heads = key.shape[1]
    group = heads // key_heads
    rows = query.reshape(batch * key_heads, group * length, width)
    keys = key.reshape(batch * key_heads, length, width)
    scores = torch.bmm(rows, keys.transpose(1, 2)).view(-1, group, length, length)
    future = torch.full((length, length), float("-inf"), dtype=scores.dtype, device=scores.device).triu(1)
    shares = torch.softmax(scores * scaling + future, dim=-1)
    mixed = torch.bmm(shares.view(-1, group * length, length), value.reshape(batch * key_heads, length, width))
    return mixed.view(batch, heads, length, width).transpose(1, 2), None
