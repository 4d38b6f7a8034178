"""Made traffic for a semantic decision: one candidate for each question, right with a chance that its cosine sets."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from policies.cache.semantic.contracts import Decider, Decision, History, KnownNeighbour

Chance = Callable[[float], float]
"""From a cosine to the probability that the candidate is right."""


def steep(cosine: float) -> float:
    """Almost surely right from 0.9 on."""
    return 1.0 / (1.0 + math.exp(-30.0 * (cosine - 0.72)))


def never_sure(cosine: float) -> float:
    """Wrong in one of twelve however near: no threshold keeps 1 % while serving a fifth."""
    return 0.92 * steep(cosine)


def misleading(cosine: float) -> float:
    """What is nearest of all is wrong, as where a number makes the difference."""
    return 0.2 if cosine > 0.97 else steep(cosine)


@dataclass
class Seen:
    """What came of some look-ups."""

    asked: int = 0
    hits: int = 0
    wrong: int = 0
    shadows: int = 0


def candidate(cosine: float, *, text: str = "how do I pay", answer: str = "a", id: str = "1") -> KnownNeighbour:
    """A neighbour without a history."""
    return KnownNeighbour(id, cosine, text, answer, History())


def drive(
    decider: Decider,
    chance: Chance,
    asked: int,
    random: Random,
    *,
    text: str = "how can I pay",
    num_answers: int = 1,
) -> Seen:
    """Look up so many questions; misses and checked hits are labelled, rightly. Any of so many answers is candidate."""
    seen = Seen()
    for number in range(asked):
        step(decider, chance, random, seen, text=text, answer=str(number % num_answers))
    return seen


def step(
    decider: Decider,
    chance: Chance,
    random: Random,
    seen: Seen,
    *,
    text: str = "how can I pay",
    answer: str = "0",
) -> Decision:
    """Look up one."""
    cosine = 1.0 - 0.6 * random.random() ** 1.5
    is_right = random.random() < chance(cosine)
    proposal = decider.propose(text, [candidate(cosine, answer=answer)])
    decision = decider.decide(proposal)
    seen.asked += 1
    seen.hits += decision.serve
    seen.wrong += decision.serve and not is_right
    seen.shadows += decision.shadow
    if proposal is not None and (not decision.serve or decision.shadow):
        weight = 1.0 / decision.shadow_probability
        served_at = decision.score if decision.serve else None
        decider.label(proposal, rightness=float(is_right), weight=weight, served_at=served_at, is_explained=False)
    return decision
