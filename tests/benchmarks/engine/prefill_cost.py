"""What reading a long prompt costs the engine on a CPU, beside PyTorch's own products of the same shapes, in turns.

    python -m tests.benchmarks.engine.prefill_cost [--tokens 900] [--rounds 5] [--dtype auto]

CPU time on one thread, of the benchmark's model with 77 million weights. The products are those of its layers, each
in the type in which PyTorch is quickest; attention, norms and the rest come on top in the engine.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from torch import Tensor
from torch.nn import functional

from backends.engine.benchmark.made_model import make_model, random_prompts
from backends.engine.benchmark.own import own_engine
from backends.engine.options import EngineOptions
from tests.support.faults import at_most, report

_ASKED = 1.5


def _shapes(folder: Path) -> list[tuple[int, int]]:
    """Outputs and inputs of a layer's products, joined as the engine joins them."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    hidden, inner, width = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * width, config["num_key_value_heads"] * width
    return [(queries + 2 * keys, hidden), (hidden, queries), (2 * inner, hidden), (hidden, inner)]


def _cpu_s(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def _products_s(shapes: list[tuple[int, int]], num_tokens: int, num_layers: int) -> float:
    """CPU seconds of all layers' products, each in its quickest type."""
    total = 0.0
    for num_out, num_in in shapes:
        times = []
        for dtype in (torch.float32, torch.bfloat16):
            weight, x = torch.randn(num_out, num_in).to(dtype), torch.randn(num_tokens, num_in).to(dtype)
            times.append(_cpu_s(lambda weight=weight, x=x: _multiply(x, weight)))  # type: ignore[misc]  # bound at once
        total += min(times)
    return total * num_layers


def _multiply(x: Tensor, weight: Tensor) -> Tensor:
    return functional.linear(x, weight)


def main() -> int:
    """Measure and print."""
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--tokens", type=int, default=900, help="of the prompt (default 900)")
    options.add_argument("--rounds", type=int, default=5, help="prompts, and products, in turn (default 5)")
    options.add_argument("--dtype", default="auto", help="the type that the model computes in (default auto: bfloat16)")
    given = options.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="slipstream-bench-") as scratch, torch.inference_mode():
        folder = Path(scratch)
        make_model(folder)
        num_layers = json.loads((folder / "config.json").read_text(encoding="utf-8"))["num_hidden_layers"]
        engine = EngineOptions(model=folder, device="cpu", threads=1, speculate="off", dtype=given.dtype)
        ratios = []
        with own_engine(engine) as own:
            for number in range(given.rounds + 1):
                prompts = random_prompts(1, given.tokens, number)
                prompt_s = _cpu_s(lambda prompts=prompts: own.generate(prompts, 1))  # type: ignore[misc]  # bound at once
                products_s = _products_s(_shapes(folder), given.tokens, num_layers)
                # the first round warms up
                if number:
                    ratios.append(prompt_s / products_s)
                    print(
                        f"round {number}: prompt {prompt_s * 1e3:.0f} ms, products {products_s * 1e3:.0f} ms",
                        flush=True,
                    )
    return report([at_most(f"{given.tokens} tokens over PyTorch's products", _ASKED, median(ratios), "x")])


if __name__ == "__main__":
    sys.exit(main())
