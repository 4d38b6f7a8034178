"""`slipstream`, which writes down into which folders of the tree it goes while it is told to.

Run as a program: FILE, then what `slipstream` takes. SIGUSR1 begins, which empties FILE; another one ends, which writes
the folders there as a JSON list, in the order in which they were first entered.
"""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from types import FrameType

from gateway.cli.main import cli

_ROOT = Path(__file__).resolve().parents[2]
_LAYERS = tuple(f"{_ROOT / layer}/" for layer in ("gateway", "policies", "backends", "kernels"))


class FoldersEntered:
    """Functions of the main thread are looked at while it is on."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._is_on = False
        self._folders: dict[str, None] = {}

    def turn(self, number: int, frame: FrameType | None) -> None:
        """On, or off again: a handler of a signal."""
        self._is_on = not self._is_on
        if self._is_on:
            self._file.write_text("")
            sys.setprofile(self._look)
        else:
            sys.setprofile(None)
            self._file.write_text(json.dumps(list(self._folders)))

    def _look(self, frame: FrameType, event: str, argument: object) -> None:
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(_LAYERS):
            self._folders[str(Path(name).parent.relative_to(_ROOT))] = None


if __name__ == "__main__":
    _, _file, *sys.argv[1:] = sys.argv
    signal.signal(signal.SIGUSR1, FoldersEntered(Path(_file)).turn)
    cli()
