"""How fast the engine is on a GPU: a model of Llama-3.1-8B's shape with random weights, beside the least a GPU needs.

    python -m tests.benchmarks.engine.gpu_speed [--layers 32] [--only bf16]... [--json FILE]

For each kind of weights: seconds from the start to the first request, seconds to the first token of a lone prompt of
4,096 tokens, and tokens a second of 1, 16 and 64 answers at once (128 tokens each, behind prompts of 512) once their
prompts are read. Beside them the share of what `slipstream size` computes for the GPU that is found here. No peer is
run: where one is installed, `slipstream bench` asks both by HTTP.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import tempfile
import time
from pathlib import Path

import torch

from backends.engine.benchmark.made_model import make_model, random_prompts
from backends.engine.benchmark.own import OwnEngine, own_engine
from backends.engine.model.config import ModelConfig
from backends.engine.options import EngineOptions
from backends.engine.sizing import PRECISIONS, Gpu, ModelShape, Precision, Workload, prefill_s, step_s
from backends.engine.sizing_data import GPUS

_CONFIG: dict[str, object] = {
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 8192,
}
_KINDS: dict[str, dict[str, str]] = {
    "bf16": {},
    "int8": {"quantization": "int8"},
    "fp8": {"quantization": "fp8"},
    "w8a8": {"quantization": "w8a8"},
    "int4": {"quantization": "int4"},
    "bf16, kv fp8": {"kv_dtype": "fp8"},
}
_PROMPT, _LONG_PROMPT, _ANSWER = 512, 4096, 128
_BATCHES = (1, 16, 64)


def _measured(engine: OwnEngine, seed: int) -> dict[str, float]:
    """Seconds to a long prompt's first token, and tokens a second by batch."""
    found: dict[str, float] = {}
    long_prompts = random_prompts(2, _LONG_PROMPT, seed)
    # The first time, memory is still being asked for.
    found["ttft"] = min(1 / engine.generate([prompt], 1) for prompt in long_prompts)
    for batch in _BATCHES:
        prompts = random_prompts(batch, _PROMPT, seed + batch)
        engine.generate(prompts, 8)
        alone_s = batch / engine.generate(prompts, 1)
        whole_s = batch * (_ANSWER + 1) / engine.generate(prompts, _ANSWER + 1)
        found[f"{batch}"] = batch * _ANSWER / (whole_s - alone_s)
    return found


def _gpu() -> Gpu | None:
    """The GPU that is here, as `slipstream size` knows it."""
    name = torch.cuda.get_device_name()
    return next((gpu for gpu in GPUS.values() if gpu.name.split()[0] in name.split()), None)


def _bounds(shape: ModelShape, gpu: Gpu, precision: Precision, kv_dtype: str) -> dict[str, float]:
    """The same figures at best."""
    context = _PROMPT + _ANSWER // 2
    steps = {
        f"{batch}": batch
        / step_s(shape, gpu, precision, Workload(context=context, concurrency=batch, kv_dtype=kv_dtype), batch=batch)
        for batch in _BATCHES
    }
    return {"ttft": prefill_s(shape, gpu, precision, _LONG_PROMPT), **steps}


def _line(kind: str, ready_s: float, found: dict[str, float], bounds: dict[str, float] | None) -> str:
    told = f"{kind:14} {ready_s:7.1f} s {found['ttft'] * 1e3:8.1f} ms"
    if bounds is not None:
        told += f" {bounds['ttft'] / found['ttft']:5.0%}"
    for batch in _BATCHES:
        told += f" {found[f'{batch}']:10.0f}"
        if bounds is not None:
            told += f" {found[f'{batch}'] / bounds[f'{batch}']:5.0%}"
    return told


def main() -> int:
    """Prints a line for each kind of weights; 2 where there is no GPU."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=_KINDS, help="measure this; may be repeated")
    parser.add_argument("--layers", type=int, default=32, help="of the model (default 32)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there as well")
    asked = parser.parse_args()
    if not torch.cuda.is_available():
        sys.stderr.write("There is no CUDA GPU here.\n")
        return 2
    gpu, figures = _gpu(), {}
    with tempfile.TemporaryDirectory(prefix="slipstream-gpu-") as path:
        folder = Path(path)
        sys.stderr.write("making a model of random weights\n")
        make_model(folder, config={**_CONFIG, "num_hidden_layers": asked.layers}, device="cuda")
        torch.cuda.empty_cache()
        shape = ModelShape.of(ModelConfig.from_folder(folder), "made")
        print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {asked.layers} layers; % of the least time")
        batches = "".join(f"{f'{batch} at once':>17}" for batch in _BATCHES)
        print(f"{'':14} {'ready':>9} {'first of 4,096':>17}{batches} tokens/s", flush=True)
        for kind in asked.only or _KINDS:
            settings = _KINDS[kind]
            began = time.perf_counter()
            with own_engine(EngineOptions(model=folder, device="cuda", speculate="off", **settings)) as engine:
                ready_s = time.perf_counter() - began
                found = _measured(engine, seed=1)
            # The next one takes what is free then.
            del engine
            gc.collect()
            precision = PRECISIONS[settings.get("quantization", "bf16")]
            bounds = None if gpu is None else _bounds(shape, gpu, precision, settings.get("kv_dtype", "auto"))
            figures[kind] = {"ready": ready_s, **found}
            print(_line(kind, ready_s, found, bounds), flush=True)
            torch.cuda.empty_cache()
    if asked.json is not None:
        asked.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
