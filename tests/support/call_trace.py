"""`slipstream`, which writes down which functions of the tree it calls while it is told to.

Run as a program: FILE, then what `slipstream` takes. SIGUSR1 begins, which empties FILE; another one ends, which writes
the calls there as a JSON list of `path:function`, in their order. A coroutine that goes on counts as called again.
"""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from types import FrameType

import gateway
from gateway.cli.main import cli

_ROOT = Path(gateway.__file__).resolve().parents[1]
_LAYERS = tuple(f"{_ROOT / layer}/" for layer in ("gateway", "policies", "backends", "kernels"))


class CallTrace:
    """Functions of the main thread are looked at while it is on."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._is_on = False
        self._calls: list[str] = []

    def turn(self, number: int, frame: FrameType | None) -> None:
        """On, or off again: a handler of a signal."""
        self._is_on = not self._is_on
        if self._is_on:
            self._file.write_text("")
            sys.setprofile(self._look)
        else:
            sys.setprofile(None)
            self._file.write_text(json.dumps(self._calls))

    def _look(self, frame: FrameType, event: str, argument: object) -> None:
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(_LAYERS):
            self._calls.append(f"{Path(name).relative_to(_ROOT)}:{frame.f_code.co_qualname}")


if __name__ == "__main__":
    _, _file, *sys.argv[1:] = sys.argv
    signal.signal(signal.SIGUSR1, CallTrace(Path(_file)).turn)
    cli()
