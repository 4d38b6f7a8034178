"""Answers of several facts, put together from wordings of each."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from policies.cache.semantic.sameness.training.pairs import Meanings

_SAME = 3
_CHANGED = 3
_SHUFFLED = 0.4
_MISSING = 0.1
_POINTS = (
    ("First point", "Second point", "Third point", "Last point"),
    ("To begin with", "Also", "Furthermore", "Finally"),
    ("For one thing", "For another", "Besides", "And then"),
    ("One", "Two", "Three", "Four"),
    ("First of all", "Second", "Third", "Fourth"),
    ("A first remark", "Another", "One more", "The last"),
)
"""What counts things that stand in no order."""


def passages(facts: Sequence[Meanings], random: Random) -> Meanings:
    """Three that say all of these, and three of the same words and order in which one fact is changed or missing."""
    same = [[random.choice(meanings[0]) for meanings in facts] for _ in range(_SAME)]
    orders = [random.sample(range(len(facts)), len(facts)) if random.random() < _SHUFFLED else None for _ in same]
    changed = []
    for _ in range(_CHANGED):
        which, at = random.randrange(_SAME), random.randrange(len(facts))
        sentences: list[str | None] = list(same[which])
        others = [text for meaning in facts[at][1:] for text in meaning]
        sentences[at] = random.choice(others) if others and random.random() >= _MISSING else None
        changed.append([_laid_out(_in_order(sentences, orders[which]), random)])
    return [
        [_laid_out(_in_order(said, order), random) for said, order in zip(same, orders, strict=True)],
        *changed,
    ]


def prose(lines: Sequence[str]) -> str:
    """One behind the other, where what is no sentence ends as one."""
    return " ".join(f"{line}." if line[-1].isalnum() or line[-1] in ")%" else line for line in lines)


def _in_order(sentences: Sequence[str | None], order: Sequence[int] | None) -> list[str]:
    ordered = sentences if order is None else [sentences[at] for at in order]
    return [sentence for sentence in ordered if sentence is not None]


def _laid_out(sentences: Sequence[str], random: Random) -> str:
    layout = random.choices(("prose", "lines", "items", "points"), (6, 2, 2, 1))[0]
    if layout == "points":
        points = random.choice(_POINTS)
        return prose([f"{points[min(at, len(points) - 1)]}: {sentence}" for at, sentence in enumerate(sentences)])
    if layout == "prose":
        return prose(sentences)
    mark = "- " if layout == "items" else ""
    return "\n".join(f"{mark}{sentence}" for sentence in sentences)
