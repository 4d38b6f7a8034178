"""Shapes of known models and peaks of known GPUs, as data for `sizing`."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from backends.engine.sizing import Gpu, ModelShape

_MIB = 2**20

GPUS: Mapping[str, Gpu] = MappingProxyType(
    {
        # Memory as nvidia-smi reports it, in MiB; the rest from NVIDIA's data sheets, without sparsity.
        # "H100 Tensor Core GPU", SXM5.
        "h100": Gpu("H100 SXM", 81_559 * _MIB, bytes_per_s=3.35e12, flops=989e12, int8_ops=1979e12),
        # "H200 Tensor Core GPU", SXM5.
        "h200": Gpu("H200 SXM", 143_771 * _MIB, bytes_per_s=4.8e12, flops=989e12, int8_ops=1979e12),
        # "A100 Tensor Core GPU", SXM4 80 GB.
        "a100-80": Gpu("A100 SXM 80 GB", 81_920 * _MIB, bytes_per_s=2.039e12, flops=312e12, int8_ops=624e12),
        # "L4 Tensor Core GPU", whose sheet has the figures with sparsity, which are twice these.
        "l4": Gpu("L4", 23_034 * _MIB, bytes_per_s=0.3e12, flops=121e12, int8_ops=242.5e12),
        # "L40S GPU".
        "l40s": Gpu("L40S", 46_068 * _MIB, bytes_per_s=0.864e12, flops=362e12, int8_ops=733e12),
        # "Ada GPU architecture" (white paper), appendix A: bf16 with sums in float32.
        "rtx-4090": Gpu("GeForce RTX 4090", 24_564 * _MIB, bytes_per_s=1.008e12, flops=165.2e12, int8_ops=660.6e12),
    }
)


def _shape(
    name: str,
    sizes: str,
    *,
    tied: bool = False,
    experts: tuple[int, int, int] = (0, 0, 0),
    windows: tuple[int, ...] | None = None,
) -> ModelShape:
    """`sizes`: hidden, feed-forward, layers, heads, key-value heads, numbers in a head, vocabulary, context.

    `experts`: how many, for one token, and how wide; in every layer.
    """
    hidden, inner, layers, heads, kv_heads, head_dim, vocabulary, context = map(int, sizes.split())
    count, per_token, width = experts
    return ModelShape(
        name=name,
        hidden_size=hidden,
        intermediate_size=inner,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=vocabulary,
        max_positions=context,
        tie_embeddings=tied,
        windows=(0,) * layers if windows is None else windows,
        num_experts=count,
        experts_per_token=per_token,
        expert_size=width,
        num_expert_layers=layers if count else 0,
    )


_ROWS = (
    # From each model's config.json.
    _shape("llama-3.2-1b", "2048 8192 16 32 8 64 128256 131072", tied=True),
    _shape("llama-3.2-3b", "3072 8192 28 24 8 128 128256 131072", tied=True),
    _shape("llama-3.1-8b", "4096 14336 32 32 8 128 128256 131072"),
    _shape("llama-3.1-70b", "8192 28672 80 64 8 128 128256 131072"),
    _shape("llama-3.1-405b", "16384 53248 126 128 8 128 128256 131072"),
    _shape("qwen2.5-7b", "3584 18944 28 28 4 128 152064 32768"),
    _shape("qwen2.5-72b", "8192 29568 80 64 8 128 152064 32768"),
    _shape("qwen3-0.6b", "1024 3072 28 16 8 128 151936 40960", tied=True),
    _shape("qwen3-1.7b", "2048 6144 28 16 8 128 151936 40960", tied=True),
    _shape("qwen3-4b", "2560 9728 36 32 8 128 151936 40960", tied=True),
    _shape("qwen3-8b", "4096 12288 36 32 8 128 151936 40960"),
    _shape("qwen3-14b", "5120 17408 40 40 8 128 151936 40960"),
    _shape("qwen3-32b", "5120 25600 64 64 8 128 151936 40960"),
    _shape("qwen3-30b-a3b", "2048 6144 48 32 4 128 151936 40960", experts=(128, 8, 768)),
    _shape("mistral-7b", "4096 14336 32 32 8 128 32768 32768"),
    _shape("mixtral-8x7b", "4096 14336 32 32 8 128 32000 32768", experts=(8, 2, 14336)),
    _shape("gemma-2-9b", "3584 14336 42 16 8 256 256000 8192", tied=True, windows=(4096, 0) * 21),
    _shape("phi-4", "5120 17920 40 40 10 128 100352 16384"),
    _shape("granite-3.1-8b", "4096 12800 40 32 8 128 49155 131072", tied=True),
)

MODELS: Mapping[str, ModelShape] = MappingProxyType({shape.name: shape for shape in _ROWS})
