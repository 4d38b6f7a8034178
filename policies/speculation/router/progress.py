"""One line on stderr that tells how far a piece of work is; nothing where nobody looks."""

from __future__ import annotations

import sys
from collections.abc import Callable


def progress(label: str) -> Callable[[int, int], None]:
    """What is to be told so many of how many are done."""

    def note(done: int, of: int) -> None:
        if sys.stderr.isatty():
            sys.stderr.write(f"\r{label} {done}/{of}\x1b[K" + ("\n" if done == of else ""))

    return note
