"""The static decision: serves above one cosine, and promises nothing. For people who want a number."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Literal

import msgspec

from policies.cache.sealed import seal, unseal
from policies.cache.semantic.contracts import Decision, KnownNeighbour, PolicyState, Proposal
from policies.cache.semantic.decision.proposal import propose

SHADOW_PROBABILITY = 0.02
"""Served answers that are checked, so that somebody sees what the number costs."""

_VERSION = 1
_MAGIC = b"slipstream static\x00"
_DEVIATIONS_95 = 1.645


class _Counted(msgspec.Struct):
    version: int = _VERSION
    num_labels: int = 0
    num_lookups: int = 0
    num_served: int = 0
    wrong: float = 0.0
    wrong_squared: float = 0.0


class Static:
    """A `Decider` with a fixed threshold: cosine, 0..1. `guard`: whether a difference in numbers, negation or opposites
    is a veto. Raises: ValueError for a threshold that is none."""

    def __init__(self, threshold: float, random: Random, *, guard: Literal["feature", "veto"] = "feature") -> None:
        if not 0.0 < threshold <= 1.0:
            raise ValueError(f"threshold is {threshold}; it must be a cosine above 0, up to 1")
        self._threshold = threshold
        self._random = random
        self._guard_is_veto = guard == "veto"
        self._counted = _Counted()

    def propose(self, text: str, candidates: Sequence[KnownNeighbour]) -> Proposal | None:
        """The best candidate by vote of answers; None where nothing is near enough."""
        return propose(text, candidates)

    def decide(self, proposal: Proposal | None) -> Decision:
        """Once for every look-up: counts it. `score` is the cosine."""
        self._counted.num_lookups += 1
        if proposal is None:
            return Decision(False, False, 1.0, -1.0, self._threshold, "no_candidate")
        score = proposal.candidate.similarity
        if not score >= self._threshold:
            return Decision(False, False, 1.0, score, self._threshold, "below_threshold")
        if proposal.guarded and self._guard_is_veto:
            return Decision(False, False, 1.0, score, self._threshold, "guarded")
        self._counted.num_served += 1
        shadow = self._random.random() < SHADOW_PROBABILITY
        return Decision(True, shadow, SHADOW_PROBABILITY, score, self._threshold, "static")

    def label(
        self, proposal: Proposal, *, rightness: float, weight: float, served_at: float | None, is_explained: bool
    ) -> None:
        """Counted for people; the threshold stays."""
        counted = self._counted
        counted.num_labels += 1
        if served_at is not None:
            wrong = weight * (1.0 - rightness)
            counted.wrong += wrong
            counted.wrong_squared += wrong * wrong

    def gives_up(self, answer_id: str) -> bool:
        """Never."""
        return False

    def state(self) -> PolicyState:
        """What was counted. `spent`: the weights of checked answers, each times how likely it is wrong."""
        counted = self._counted
        lookups = max(1, counted.num_lookups)
        return PolicyState(
            mode="static",
            labels=counted.num_labels,
            lookups=counted.num_lookups,
            served=counted.num_served,
            threshold=self._threshold,
            spent=counted.wrong,
            wrong_hit_rate=counted.wrong / lookups,
            wrong_hit_rate_upper=min(1.0, (counted.wrong + _DEVIATIONS_95 * counted.wrong_squared**0.5) / lookups),
        )

    def dump(self) -> bytes:
        """The counters."""
        return seal(_MAGIC, b"", msgspec.msgpack.encode(self._counted))

    def load(self, dumped: bytes) -> None:
        """Take over what was dumped. Raises: ValueError where it is of another version or damaged."""
        packed = unseal(_MAGIC, b"", dumped)
        if packed is None:
            raise ValueError("this is no dump of a static decision, or it is damaged")
        try:
            counted = msgspec.msgpack.decode(packed, type=_Counted)
        except msgspec.DecodeError as error:
            raise ValueError(f"the dump of a static decision is of another version: {error}") from error
        if counted.version != _VERSION:
            raise ValueError(f"the dump is of version {counted.version}, this is version {_VERSION}")
        self._counted = counted
