"""The programs that we are compared with, each behind one call: prompts of token ids in, tokens a second out."""

from __future__ import annotations

import importlib
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

import torch

from backends.engine.benchmark.figure import PeerMissing
from backends.engine.benchmark.gguf_export import export_q8_0

Generate = Callable[[Sequence[Sequence[int]], int], float]
"""Greedy tokens a second over all prompts at once, the given number for each."""


def transformers_generate(folder: Path) -> Generate:
    """`generate` of transformers in bf16, in this thread. Raises PeerMissing."""
    transformers = _module("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)

    def generate(prompts: Sequence[Sequence[int]], num_tokens: int) -> float:
        began = time.perf_counter()
        ids = torch.tensor(prompts)
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=num_tokens,
            min_new_tokens=num_tokens,
            do_sample=False,
            pad_token_id=0,
        )
        return _rate(int(out.shape[1] - ids.shape[1]), num_tokens, len(prompts), began)

    return generate


def ctranslate2_generate(folder: Path, work: Path, *, threads: int) -> Generate:
    """ctranslate2 in int8. The converted model is written into `work`. Raises PeerMissing."""
    ctranslate2, converters = _module("ctranslate2"), _module("ctranslate2.converters")
    converters.TransformersConverter(str(folder)).convert(str(work), quantization="int8", force=True)
    generator = ctranslate2.Generator(str(work), device="cpu", compute_type="int8", intra_threads=threads)
    vocabulary = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]
    names = {number: name for name, number in vocabulary.items()}

    def generate(prompts: Sequence[Sequence[int]], num_tokens: int) -> float:
        began = time.perf_counter()
        results = generator.generate_batch(
            [[names[token] for token in prompt] for prompt in prompts],
            max_length=num_tokens,
            min_length=num_tokens,
            sampling_topk=1,
            include_prompt_in_result=False,
        )
        return _rate(min(len(result.sequences_ids[0]) for result in results), num_tokens, len(prompts), began)

    return generate


def llama_cpp_generate(folder: Path, work: Path, *, threads: int, most: int) -> Generate:
    """llama.cpp's server in this process, q8_0, `most` prompts at once. The model is written into `work`.

    Raises PeerMissing.
    """
    xllamacpp = _module("xllamacpp")
    path = work / "model-q8_0.gguf"
    export_q8_0(folder, path, _module("gguf"))
    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_parallel, params.n_ctx = most, most * 512
    params.n_gpu_layers = 0
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    params.verbosity = 0
    server = xllamacpp.Server(params)

    def generate(prompts: Sequence[Sequence[int]], num_tokens: int) -> float:
        began = time.perf_counter()
        asked = {"n_predict": num_tokens, "temperature": 0, "ignore_eos": True, "cache_prompt": False}
        answer = server.handle_completions({"prompt": [list(prompt) for prompt in prompts], **asked})
        choices = answer["choices"]
        if len(choices) != len(prompts) or any(choice["finish_reason"] != "length" for choice in choices):
            raise RuntimeError(f"llama.cpp did not answer {len(prompts)} prompts in full; it cannot be compared")
        return _rate(answer["usage"]["completion_tokens"], num_tokens, len(prompts), began)

    return generate


def _module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise PeerMissing(f"{package} is not installed; pip install {package}") from error


def _rate(num_made: int, num_asked: int, num_prompts: int, began: float) -> float:
    seconds = time.perf_counter() - began
    if num_made != num_asked:
        raise RuntimeError(f"a peer made {num_made} tokens where {num_asked} were asked for; it cannot be compared")
    return num_prompts * num_asked / seconds
