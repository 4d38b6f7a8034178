"""Prints what Triton's generator gives in its interpreter, as JSON; run as a program with TRITON_INTERPRET=1."""

from __future__ import annotations

import json
import sys

import torch
import triton
import triton.language as tl


def _words(words, uniforms, seed, position, stream, N: tl.constexpr, ROUNDS: tl.constexpr):  # type: ignore[no-untyped-def]
    index = tl.arange(0, N)
    zero = index * 0
    a, b, c, d = tl.philox(seed, index, zero + position, zero + stream, zero, n_rounds=ROUNDS)
    tl.store(words + index, a.to(tl.int32, bitcast=True))
    tl.store(words + N + index, b.to(tl.int32, bitcast=True))
    tl.store(words + 2 * N + index, c.to(tl.int32, bitcast=True))
    tl.store(words + 3 * N + index, d.to(tl.int32, bitcast=True))
    tl.store(uniforms + index, tl.rand(seed, index, n_rounds=ROUNDS))


_words_kernel = triton.jit(_words)


def main() -> None:
    """Arguments: the cases as JSON, a list of [seed, position, stream, counters, rounds]."""
    results = []
    for seed, position, stream, counters, rounds in json.loads(sys.argv[1]):
        words = torch.zeros((4, counters), dtype=torch.int32)
        uniforms = torch.zeros(counters)
        _words_kernel[(1,)](words, uniforms, seed, position, stream, counters, rounds)
        results.append([words.tolist(), uniforms.tolist()])
    print(json.dumps(results))


if __name__ == "__main__":
    main()
