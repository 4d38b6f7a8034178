"""From the neighbours of a question to the one candidate that a decision is about, with its features."""

from __future__ import annotations

import math
from collections.abc import Sequence

from policies.cache.semantic.contracts import KnownNeighbour, Proposal
from policies.cache.semantic.decision.features import difference
from policies.cache.semantic.decision.vote import vote


def propose(text: str, candidates: Sequence[KnownNeighbour]) -> Proposal | None:
    """The best candidate by vote of answers, with its features; None where nothing is near enough."""
    chosen = vote(candidates)
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
    )
    return Proposal(winner, features, words.guarded)
