"""vLLM as `prefill_vllm` asks it: a program of vLLM's own environment, without anything of this project.

    python prefill_vllm_peer.py MODEL_FOLDER DTYPE

A line of JSON with a prompt's tokens comes in, one with [CPU seconds, the token that follows] goes out.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time

_MAX_CONTEXT = 4096
_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    # In this process, whose CPU time is read.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
}


def main(folder: str, dtype: str) -> None:
    """Serves until its input ends."""
    # vLLM prints, also from libraries: answers go to what standard output was.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    os.environ.update(_ENVIRONMENT)
    from vllm import LLM, SamplingParams  # type: ignore[import-not-found, unused-ignore]

    model = LLM(
        model=folder, dtype=dtype, max_model_len=_MAX_CONTEXT, enforce_eager=True, max_num_seqs=4, block_size=32,
        enable_prefix_caching=False,
    )  # fmt: skip
    greedy = SamplingParams(max_tokens=1, temperature=0, ignore_eos=True)
    for line in sys.stdin:
        prompt = {"prompt_token_ids": json.loads(line)}
        began = time.process_time()
        (made,) = model.generate([prompt], greedy, use_tqdm=False)
        spent = time.process_time() - began
        print(json.dumps([spent, made.outputs[0].token_ids[0]]), file=answers, flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", metavar="MODEL_FOLDER")
    parser.add_argument("dtype", metavar="DTYPE")
    main(**vars(parser.parse_args()))
