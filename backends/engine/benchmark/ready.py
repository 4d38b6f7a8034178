"""How long a fresh process takes until the embedded pair has given its first token."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from statistics import median

from backends.engine.benchmark.figure import BenchmarkFigure, MeasurementSetting, skipped, take_turns
from backends.engine.benchmark.own import own_engine
from backends.engine.options import EngineOptions

_NAME, _ASKED_S = "ready: from a new process to the first token", 15.0


def measure(setting: MeasurementSetting) -> list[BenchmarkFigure]:
    """Seconds with PyTorch's import and the models' loading, without the web server."""
    if setting.pair is None:
        return [skipped(_NAME, f"<= {_ASKED_S:g} s", "the embedded models are not there; see docs/demo-models.md")]
    command = [sys.executable, "-c", f"from {__name__} import first_token; first_token()"]
    command += [str(setting.pair), str(setting.threads)]

    def start() -> float:
        began = time.perf_counter()
        subprocess.run(command, check=True)
        return time.perf_counter() - began

    found = median(take_turns(setting, {"seconds": start}, say="ready")["seconds"])
    return [
        BenchmarkFigure(
            name=_NAME, asked=f"<= {_ASKED_S:g} s", measured=f"{found:.1f} s", holds=found <= _ASKED_S, value=found
        )
    ]


def first_token() -> None:
    """What the fresh process does, with the pair's folder and a number of threads as its arguments."""
    pair, threads = Path(sys.argv[1]), int(sys.argv[2])
    options = EngineOptions(model=pair / "target", draft=pair / "draft", device="cpu", threads=threads)
    with own_engine(options) as own:
        own.answer(own.engine.tokenizer.encode("Hello"), num_tokens=1, salt=b"")
