"""Two things and what relates them in one direction: who does what to whom, what comes before what.

A sentence that is read wrongly does no harm: only where the other one relates the same two the other way round is
anything made of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Relation(NamedTuple):
    """Words of the one thing, by what it is related, and words of the other."""

    one: frozenset[str]
    by: str
    other: frozenset[str]


def are_exchanged(ones: Sequence[Relation], others: Sequence[Relation]) -> bool:
    """Whether one of two sentences relates what the other does the other way round, and neither tells both."""
    return any(
        _is_told(_turned(relation), others) and not _is_told(relation, others) and not _is_told(_turned(relation), ones)
        for relation in ones
        if not _may_be_one(relation.one, relation.other)
    )


def _is_told(relation: Relation, told: Sequence[Relation]) -> bool:
    return any(
        relation.by == each.by and _may_be_one(relation.one, each.one) and _may_be_one(relation.other, each.other)
        for each in told
    )


def _turned(relation: Relation) -> Relation:
    return Relation(relation.other, relation.by, relation.one)


def _may_be_one(ones: frozenset[str], others: frozenset[str]) -> bool:
    """ "The red dog" is the dog."""
    return ones <= others or others <= ones
