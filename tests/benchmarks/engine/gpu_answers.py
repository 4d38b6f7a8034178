"""Does the engine say on a GPU what it says on a CPU?

    python -m tests.benchmarks.engine.gpu_answers [--only NAME]...

Tiny random models of every family, and one of them with each setting that brings other kernels or memory into play:
24 prompts at once, greedy and drawn from seeds, in float32. Where nothing is rounded to fewer bits on the way, all
answers have to be the same. Quantized weights are computed otherwise on a CPU, so these answers are compared with those
of the torch twins on the GPU; where activations or pages are rounded, a number just between two may go to either, and
most answers have to be the same. Then requests at random, and the embedded model in bfloat16, 64 prompts at once: as
many right answers as on a CPU.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from backends.engine.benchmark.own import own_engine
from backends.engine.demo_models.score import held_out_set
from backends.engine.options import EngineOptions
from backends.engine.request import Request, SamplingParams
from tests.support.engine.engine_load import run_load
from tests.support.engine.tiny_models import LLAMA3_ROPE, save_tiny_model, tiny_config
from tests.support.engine.tiny_pair import Listener, make_pair, save_byte_tokenizer

_LENGTHS = (1, 5, 63, 64, 65, 130, 200, 300)
_PARAMS = (
    SamplingParams(temperature=0.0, max_tokens=32, ignore_eos=True),
    SamplingParams(temperature=0.8, top_p=0.95, max_tokens=32, seed=7, ignore_eos=True),
    SamplingParams(temperature=1.0, top_k=20, presence_penalty=0.5, max_tokens=32, seed=8, ignore_eos=True),
)
_PAIR = Path(__file__).parents[3] / "backends/engine/demo_models"
_SCORED = 300
_SCORE_SLACK = 0.02
"""Between bfloat16 and float32, of a share of 300."""
_PAGE_BYTES = 2**15
_NUM_RANDOM = 1000


@dataclass(frozen=True, slots=True)
class _Comparison:
    """One model and setting; `asked` is the share of answers that have to be the same, `with_twins` those of the twins
    on the GPU and not of a CPU.
    """

    name: str
    make: Callable[[Path], None]
    changes: Mapping[str, Any] = field(default_factory=dict)
    asked: float = 1.0
    with_twins: bool = False


def _family(name: str, **fields: Any) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        config = tiny_config(name, **{"vocab_size": 258, "eos_token_id": 256, **fields})
        save_tiny_model(folder / "target", config)
        save_byte_tokenizer(folder / "target")

    return make


def _pair(folder: Path) -> None:
    make_pair(folder)


_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
_COMPARISONS = [
    _Comparison("Llama", _family("Llama", rope_parameters=LLAMA3_ROPE)),
    _Comparison("Mistral, window", _family("Mistral", sliding_window=20)),
    _Comparison("Qwen2", _family("Qwen2", head_dim=None)),
    _Comparison("Qwen3", _family("Qwen3")),
    _Comparison("Gemma", _family("Gemma")),
    _Comparison("Gemma2, window and softcap", _family("Gemma2", sliding_window=20, attn_logit_softcapping=5.0)),
    _Comparison("Gemma3", _family("Gemma3Text", sliding_window=20)),
    _Comparison("Phi3, partial rotation", _family("Phi3", head_dim=None, partial_rotary_factor=0.5)),
    _Comparison("Granite", _family("Granite", head_dim=None)),
    _Comparison("Mixtral", _family("Mixtral", num_local_experts=4, num_experts_per_tok=2)),
    _Comparison("Qwen3Moe", _family("Qwen3Moe", **_EXPERTS)),
    _Comparison("draft", _pair, {"speculate": "draft"}),
    _Comparison("ngram", _pair, {"speculate": "ngram"}),
    _Comparison("few pages and a host tier", _pair, {"kv_bytes": 10 * _PAGE_BYTES, "host_bytes": 48 * _PAGE_BYTES}),
    _Comparison("twins", _pair, {"reference_kernels": True}),
    _Comparison("int8", _pair, {"quantization": "int8"}, 1.0, with_twins=True),
    _Comparison("int4", _pair, {"quantization": "int4"}, 1.0, with_twins=True),
    # Its kernel takes half precision alone.
    _Comparison("nf4", _pair, {"quantization": "nf4", "dtype": "float16"}, 0.8, with_twins=True),
    _Comparison("fp8", _pair, {"quantization": "fp8"}, 1.0, with_twins=True),
    _Comparison("w8a8", _pair, {"quantization": "w8a8"}, 0.8, with_twins=True),
    _Comparison("kv int8", _pair, {"kv_dtype": "int8"}, 0.8),
    _Comparison("kv fp8", _pair, {"kv_dtype": "fp8"}, 0.8),
]


def _answers(options: EngineOptions, requests: list[Request]) -> list[list[int]]:
    """Twice, so that the second time prefixes are met again; the second is what counts where both agree."""
    found = []
    with own_engine(options) as own:
        engine = own.engine
        for lap in range(2):
            listener = Listener()
            for request in requests:
                engine.submit(_renamed(request, lap), listener)
            answered = [listener.wait(f"{lap}-{request.id}") for request in requests]
            failed = [one.last.error for one in answered if one.last.error is not None]
            if failed:
                raise failed[0]
            found.append([one.tokens() for one in answered])
        statistics = engine.statistics()
        given_up = dict(statistics.kernel_fallbacks)
        if given_up or statistics.steps.num_failed:
            raise AssertionError(f"given up {given_up}, failed steps {statistics.steps.num_failed}")
    if found[0] != found[1]:
        differ = sum(first != second for first, second in zip(*found, strict=True))
        raise AssertionError(f"{differ} answers differ between the first time and the second")
    return found[0]


def _renamed(request: Request, lap: int) -> Request:
    return Request(id=f"{lap}-{request.id}", prompt=request.prompt, params=request.params)


def _requests() -> list[Request]:
    rng = random.Random(3)
    found = []
    for length in _LENGTHS:
        half = [rng.randrange(256) for _ in range((length + 1) // 2)]
        for number, params in enumerate(_PARAMS):
            found.append(Request(id=f"{length}-{number}", prompt=tuple((half + half)[:length]), params=params))
    return found


def _compare(comparison: _Comparison) -> tuple[bool, str]:
    """Whether as many answers are the same as have to be, and what was found."""
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        comparison.make(folder)
        settings: dict[str, Any] = {
            "model": folder / "target",
            "dtype": "float32",
            "max_sequences": 16,
            "max_batch_tokens": 256,
            "max_context": 512,
            "speculate": "off",
            "kv_bytes": 2**26,
            **comparison.changes,
        }
        if settings["speculate"] == "draft":
            settings["draft"] = folder / "draft"
        if comparison.with_twins:
            other = EngineOptions(**settings, device="cuda", reference_kernels=True)
        else:
            other = EngineOptions(**{**settings, "reference_kernels": False}, device="cpu", threads=1)
        expected = _answers(other, _requests())
        began = time.perf_counter()
        on_gpu = _answers(EngineOptions(**settings, device="cuda"), _requests())
        seconds = time.perf_counter() - began
    same = [one == other for one, other in zip(expected, on_gpu, strict=True)]
    told = f"{sum(same)} of {len(same)} the same, {seconds:.0f} s on the GPU"
    parted = [_first_other(one, other) for one, other in zip(expected, on_gpu, strict=True) if one != other]
    if parted:
        told += f", others from token {parted} on"
    return sum(same) >= comparison.asked * len(same), told


def _first_other(one: list[int], other: list[int]) -> int:
    return next(number for number, (a, b) in enumerate(zip(one, other, strict=True)) if a != b)


def _embedded() -> tuple[bool, str]:
    """Whether the embedded pair gives as many right answers to held-out prompts, 64 at once, as on a CPU."""
    asked = held_out_set(_SCORED)
    found = {}
    for device, dtype in (("cpu", "float32"), ("cuda", "bfloat16")):
        options = EngineOptions(
            model=_PAIR / "target", draft=_PAIR / "draft", device=device, dtype=dtype, max_sequences=64, kv_bytes=2**29
        )
        params = SamplingParams(temperature=0.0, max_tokens=320)
        with own_engine(options) as own:
            engine = own.engine
            began = time.perf_counter()
            listener = Listener()
            for number, conversation in enumerate(asked):
                prompt = engine.tokenizer.apply_chat_template(conversation.messages())
                engine.submit(Request(id=str(number), prompt=tuple(prompt), params=params), listener)
            texts = [listener.wait(str(number)).text().strip() for number in range(len(asked))]
            seconds = time.perf_counter() - began
        right = sum(text == one.turns[-1].answer for text, one in zip(texts, asked, strict=True))
        found[device] = right / len(asked)
        told = f"{seconds:.1f} s"
    return found["cuda"] >= found[
        "cpu"
    ] - _SCORE_SLACK, f"right {found['cuda']:.3f}, on a CPU {found['cpu']:.3f}, {told}"


def _random_requests() -> tuple[bool, str]:
    """Whether requests at random, some given up, on too few pages, all end, and nothing stays behind."""
    with tempfile.TemporaryDirectory() as path:
        pair = make_pair(Path(path))
        options = EngineOptions(
            model=pair.target,
            draft=pair.draft,
            device="cuda",
            dtype="bfloat16",
            kv_bytes=8 * _PAGE_BYTES,
            host_bytes=24 * _PAGE_BYTES,
            max_context=256,
            max_sequences=6,
            max_batch_tokens=256,
        )
        with own_engine(options) as own:
            endings = run_load(own.engine, _NUM_RANDOM, seed=1)
            statistics = own.engine.statistics()
    left, failed = statistics.scheduler.pool.num_used, statistics.steps.num_failed
    return not left and not failed, f"{dict(endings)}, pages left {left}, failed steps {failed}"


def main() -> int:
    """Prints a line for each; 1 where one falls short, 2 where there is no GPU."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    checks: dict[str, Callable[[], tuple[bool, str]]] = {
        **{comparison.name: partial(_compare, comparison) for comparison in _COMPARISONS},
        "requests at random": _random_requests,
        "embedded": _embedded,
    }
    parser.add_argument("--only", action="append", choices=checks, help="compare this; may be repeated")
    only = parser.parse_args().only
    if not torch.cuda.is_available():
        sys.stderr.write("There is no CUDA GPU here.\n")
        return 2
    all_met = True
    for name in only or checks:
        try:
            is_met, told = checks[name]()
        # What one setting cannot do must not end the whole run.
        except Exception as error:
            traceback.print_exc()
            is_met, told = False, f"{type(error).__name__}: {error}"[:300]
        all_met &= is_met
        print(f"{name:28} {'met' if is_met else 'MISSED':7} {told}", flush=True)
    return int(not all_met)


if __name__ == "__main__":
    sys.exit(main())
