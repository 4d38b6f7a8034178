"""The `priority` of a body: a number by which a server of models orders calls. A caller may put its own behind others',
not before them, unless the operator lets it.
"""

from __future__ import annotations

from typing import Any, Literal

from backends.protocol import Priority

FirstPriority = Literal["lowest", "highest"]
"""Which number goes first at a server: the lowest as at vLLM and in the engine, or the highest as at SGLang."""


def is_ahead(asked: Any, first: FirstPriority) -> bool:
    """Whether a value of `priority` asks to go before calls that name none, which count as 0.

    Servers read numbers in texts too.
    """
    if not isinstance(asked, int | float | str):
        return False
    try:
        number = asked if isinstance(asked, int) else float(asked)
    except ValueError:
        return False
    return number < 0 if first == "lowest" else number > 0


def bounded(asked: int, allowed: Priority) -> int:
    """What a call's own number counts, the lowest first: below 0 only where its key goes before others anyway."""
    return asked if allowed is Priority.HIGH else max(asked, 0)
