"""From the neighbours of a question to the one candidate that a decision is about, with its features."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Sequence

from policies.cache.semantic.contracts import KnownNeighbour, Proposal
from policies.cache.semantic.decision.features import difference
from policies.cache.semantic.decision.vote import vote

_EQUAL = 0.999
"""Cosine above which two vectors are one, as far as their numbers go."""
_HARDLY_OPPOSED = 0.01
"""A share of the vote that is no more against an answer than none."""
_WORD = re.compile(r"\w+")


def propose(text: str, candidates: Sequence[KnownNeighbour]) -> Proposal | None:
    """The best candidate by vote of answers, with its features; None where nothing is near enough.

    Texts of other words whose vectors are equal have not been read by the encoder, whose vocabulary may not have their
    script: they are no neighbours.
    """
    chosen = vote([each for each in candidates if each.similarity <= _EQUAL or _words(each.text) == _words(text)])
    if chosen is None:
        return None
    winner = chosen.winner
    words = difference(text, winner.text)
    features = (
        winner.similarity,
        max(0.0, winner.similarity - 0.8) * 5.0,
        chosen.share,
        chosen.margin,
        math.log1p(winner.history.good),
        math.log1p(winner.history.bad),
        float(words.guarded),
        words.overlap,
        float(words.swapped),
        float(words.reordered),
        words.length,
        -math.log(1.0 - chosen.share + _HARDLY_OPPOSED),
    )
    return Proposal(winner, features, words.guarded)


def _words(text: str) -> list[str]:
    return _WORD.findall(unicodedata.normalize("NFKC", text).casefold())
