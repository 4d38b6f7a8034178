"""Keeps the garbage collector from passing over what is in use, where much is built at once."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_NEVER = 1_000_000
"""Collections of the youngest generation before one of an older generation."""


@contextmanager
def without_full_collections() -> Iterator[None]:
    """Meanwhile the garbage collector passes over the youngest generation only.

    A pass over the older ones takes a time that grows with their objects, and would find nothing: what is being built
    is in use.
    """
    thresholds = gc.get_threshold()
    gc.set_threshold(thresholds[0], _NEVER, _NEVER)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
