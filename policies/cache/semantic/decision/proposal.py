"""From the neighbours of a question to the one candidate that a decision is about, with its features."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable, Sequence

from policies.cache.semantic.contracts import KnownNeighbour, Proposal
from policies.cache.semantic.decision.features import Difference, Wording, difference
from policies.cache.semantic.decision.vote import vote

_EQUAL = 0.999
"""Cosine above which two vectors are one, as far as their numbers go."""
_HARDLY_OPPOSED = 0.01
"""A share of the vote that is no more against an answer than none."""
_SAID = re.compile(r"\n[ \t]+(?=\S)|\w+|(?![.,;:!?\u3001\u3002]+(?:\s|$))[^\w\s]")
"""Words, signs other than pauses, and how far a line is indented, which is all that some code differs in."""
_SENTENCE_BEGINS = re.compile(r"(?:^|[.!?])\s*\w+")
_SHORT = 2
"""Words of so many letters are often another word in capitals: options of commands, units, names of countries."""


def propose(
    text: str, candidates: Sequence[KnownNeighbour], against: Callable[[Difference], float] | None = None
) -> Proposal | None:
    """The best candidate by vote of answers, with its features; None where nothing is near enough. Where the very text
    is among them, nobody else has a vote.

    `against`: log odds that the words of an answer's nearest question take from its vote. They are asked for where the
    winner's numbers, negations or names are others: questions of one frame lie nearer to each other than to what means
    the same.
    Texts that say something else and whose vectors are equal have not been read by the encoder, whose vocabulary may
    not have their script or signs, nor capitals: they are no neighbours.
    """
    same = [each for each in candidates if each.text == text]
    chosen = vote(same or [each for each in candidates if each.similarity <= _EQUAL or _said(each.text) == _said(text)])
    if chosen is None:
        return None
    wording = Wording(text)
    words = difference(wording, Wording(chosen.winner.text))
    if against is not None and chosen.others and (words.guarded or words.renamed):
        differences = {chosen.winner.answer_id: words}
        differences |= {each.answer_id: difference(wording, Wording(each.text)) for each in chosen.others}
        chosen = chosen.against({answer: against(words) for answer, words in differences.items()})
        words = differences[chosen.winner.answer_id]
    winner = chosen.winner
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
        float(words.renamed),
        words.length,
        -math.log(1.0 - chosen.share + _HARDLY_OPPOSED),
    )
    return Proposal(winner, features, words.guarded)


def _said(text: str) -> list[str]:
    """What a text says, however an encoder reads it. Case counts in short words that do not begin a sentence."""
    text = unicodedata.normalize("NFKC", text)
    text = text.casefold() if text.isupper() else _SENTENCE_BEGINS.sub(lambda begin: begin[0].casefold(), text)
    return [word if len(word) <= _SHORT and word != "I" else word.casefold() for word in _SAID.findall(text)]
