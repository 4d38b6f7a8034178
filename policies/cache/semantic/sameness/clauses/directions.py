"""Whether one sentence tells the other way round what the other tells: by deeds and by orders."""

from __future__ import annotations

from functools import lru_cache

from policies.cache.semantic.sameness.clauses.deeds import deeds_of
from policies.cache.semantic.sameness.clauses.orders import orders_of
from policies.cache.semantic.sameness.clauses.relations import Relation, are_exchanged

_MAX_CHARS = 600
_MAX_KEPT = 2048
"""Sentences, about 3 kB each."""


def are_turned(one: str, other: str) -> bool:
    """Whether who does something of the one, or comes first, has it done or comes behind in the other."""
    return are_exchanged(relations_of(one), relations_of(other))


@lru_cache(maxsize=_MAX_KEPT)
def relations_of(sentence: str) -> tuple[Relation, ...]:
    """All that its first 600 characters tell. Stored answers are compared again and again."""
    sentence = sentence[:_MAX_CHARS]
    return *deeds_of(sentence), *orders_of(sentence)
