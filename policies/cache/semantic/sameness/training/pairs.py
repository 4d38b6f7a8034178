"""A made-up pair of answers."""

from __future__ import annotations

from typing import NamedTuple


class MadePair(NamedTuple):
    """Two answers, whether they say the same, the kinds of their facts, and how they were made."""

    left: str
    right: str
    is_same: bool
    kinds: frozenset[str]
    recipe: str
