"""Compiles a grammar in a process of its own, which can be ended: run as a script, with the grammar as its input.

The library looks for texts that several patterns have in common without a bound, before it looks at the tokens; bytes
as tokens show that as well as a model's own. Nothing of the project is imported, so that it is there soon.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import threading
from math import ceil


def ends_in(grammar: str, limit_s: float) -> bool:
    """Whether the grammar is compiled, or refused, within so many seconds of the clock. Ends the process by then."""
    try:
        subprocess.run(
            [sys.executable, "-I", __file__, str(ceil(limit_s) + 1)],
            input=grammar.encode(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False
    return True


def _compile() -> None:
    from llguidance import LLMatcher, LLTokenizer

    matcher = LLMatcher(LLTokenizer("byte"), sys.stdin.buffer.read().decode(), log_level=0)
    if not matcher.is_error():
        matcher.compute_bitmask()


if __name__ == "__main__":
    # Should whoever waits for it be killed, it ends by itself.
    resource.setrlimit(resource.RLIMIT_CPU, (int(sys.argv[1]), int(sys.argv[1])))
    threading.stack_size(2**28)
    thread = threading.Thread(target=_compile)
    thread.start()
    thread.join()
