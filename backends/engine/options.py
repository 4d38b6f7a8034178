"""What an engine is started with. Plain values: the serving adapter fills them in from a policy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Device = Literal["auto", "cpu", "cuda"]
DType = Literal["auto", "float32", "bfloat16", "float16"]
KVDType = Literal["auto", "int8", "fp8"]
Quantization = Literal["int8", "w8a8", "int4", "nf4", "fp8"]
Speculate = Literal["auto", "draft", "ngram", "off"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """How to run one model.

    `model`, `draft`, `adapter`: folders as Hugging Face and PEFT write them. `device` "auto" is CUDA where there is
    one; `dtype` and `kv_dtype` "auto" are the checkpoint's and the model's. `quantization` is of the target's weights.
    `max_context` None is what the model was made for, or as much of it as the cache holds. `kv_bytes` is the memory
    for keys and values of both models (None: what the device can spare, 1 GiB on a CPU), `host_bytes` that of the
    tier behind it. `max_requests` in flight, waiting ones included; more are refused. `threads` of the CPU (None
    leaves torch's number). `max_draft` tokens are proposed at once at most, and none in steps of more than
    `speculate_below` answers. `measure_peaks` takes half a second at the start to find what the device reaches, which
    the statistics' work is a share of. `reference_kernels` runs the torch twins on CUDA too. `tensor_parallel` devices
    share each layer of the target between them, all on this machine. Raises ValueError.
    """

    model: Path
    draft: Path | None = None
    adapter: Path | None = None
    device: Device = "auto"
    dtype: DType = "auto"
    kv_dtype: KVDType = "auto"
    quantization: Quantization | None = None
    max_context: int | None = None
    max_batch_tokens: int = 2048
    max_sequences: int = 64
    max_requests: int = 1024
    kv_bytes: int | None = None
    host_bytes: int = 0
    speculate: Speculate = "auto"
    max_draft: int = 6
    speculate_below: int = 32
    threads: int | None = None
    measure_peaks: bool = False
    reference_kernels: bool = False
    tensor_parallel: int = 1

    def __post_init__(self) -> None:
        least = dict.fromkeys(("max_batch_tokens", "max_sequences", "max_requests", "max_draft", "tensor_parallel"), 1)
        least |= {"host_bytes": 0, "speculate_below": 0}
        least |= {name: 1 for name in ("max_context", "kv_bytes", "threads") if getattr(self, name) is not None}
        for name, minimum in least.items():
            if getattr(self, name) < minimum:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least {minimum}")
        if self.speculate == "draft" and self.draft is None:
            raise ValueError("speculate is 'draft', which needs a draft model")
