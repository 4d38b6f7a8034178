"""Settings of `type: engine`."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from backends.config import ByteSize, Config

EMBEDDED = ("slipstream-target", "slipstream-draft")
"""Models that come with the package; `model` and `draft` may name them instead of a folder."""


class EngineConfig(Config):
    """Settings of `type: engine`."""

    model: str = Field(
        min_length=1,
        max_length=4096,
        description="A folder in Hugging Face's layout (config.json, safetensors, tokenizer), "
        "or slipstream-target or slipstream-draft, the small test models that come with the package.",
    )
    draft: str | None = Field(
        default=None,
        min_length=1,
        max_length=4096,
        description="A smaller model with the same tokenizer, which proposes tokens for the model to verify.",
    )
    adapter: str | None = Field(
        default=None, min_length=1, max_length=4096, description="A folder with a LoRA adapter, merged into the model."
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        default="auto", description="Where it runs; auto takes the GPU if there is one."
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        default="auto", description="The type to compute in; auto takes the checkpoint's."
    )
    quantization: Literal["int8", "w8a8", "int4", "nf4", "fp8"] | None = Field(
        default=None, description="What weights are turned into while they are loaded."
    )
    kv_dtype: Literal["auto", "int8", "fp8"] = Field(
        default="auto", description="The type of cached keys and values; auto takes the model's."
    )
    max_context: int | None = Field(
        default=None, ge=1, le=10_000_000, description="Tokens of prompt and answer together; none takes the model's."
    )
    max_batch_tokens: int = Field(
        default=2048, ge=1, le=1_000_000, description="Tokens of one step; longer prompts are read over several steps."
    )
    max_sequences: int = Field(default=64, ge=1, le=4096, description="Answers that are worked on at the same time.")
    max_requests: int = Field(
        default=1024, ge=1, le=100_000, description="Answers in hand, waiting ones included; further calls get a 429."
    )
    memory: ByteSize | None = Field(
        default=None,
        ge=1024**2,
        description="Room for cached keys and values; none takes what the device has to spare.",
    )
    host_memory: ByteSize | None = Field(
        default=None, ge=1024**2, description="Room in main memory for keys and values that the device cannot hold."
    )
    speculate: Literal["auto", "draft", "ngram", "off"] = Field(
        default="auto",
        description="Who proposes tokens: the draft, the text itself (ngram), or nobody; auto takes what pays.",
    )
    threads: int | None = Field(
        default=None,
        ge=1,
        le=1024,
        description="Processor threads for the model; none takes the cores that the process may use, but for one, "
        "divided among the workers.",
    )
    tensor_parallel: int = Field(
        default=1,
        ge=1,
        le=64,
        description="GPUs of this machine that share each layer of the model, each in a process of its own.",
    )
    kernels: Literal["auto", "reference"] = Field(
        default="auto",
        description="On a GPU `reference` computes with PyTorch's own operations instead of our kernels; it tells "
        "whether a kernel is at fault.",
    )
    measure_peaks: bool = Field(
        default=False, description="Measure at the start what the device reaches, for the shares that metrics show."
    )
    pooling: Literal["mean", "last"] = Field(
        default="mean", description="What an embedding is made of: all tokens' states, or the last one's."
    )

    @model_validator(mode="after")
    def _draft_is_there_if_it_proposes(self) -> Self:
        if self.speculate == "draft" and self.draft is None:
            raise ValueError("speculate: draft needs a draft model")
        return self
