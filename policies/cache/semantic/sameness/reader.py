"""Compares two answers for a gateway, in a process beside it: by their tokens where there are any, and by their words.

A long pair takes several rounds, so that a client's question never waits longer for the encoder than one of them takes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import msgspec
import numpy as np
from numpy.typing import NDArray

from policies.cache.semantic.sameness.alignment import EncodedPart, TokenVocabulary, meet
from policies.cache.semantic.sameness.forms import SURE, Unreadable, for_sure
from policies.cache.semantic.sameness.head import AnswerHead, ReadPart, TokenHead, WordHead, load_weights
from policies.cache.semantic.sameness.matching import (
    Outline,
    bounded,
    candidates,
    match_features,
    match_table,
    most_odds,
    outline_of,
    relative,
)
from policies.cache.semantic.sameness.parts import AnswerParts, parts_of
from policies.cache.semantic.sameness.signs import differ_in_code
from policies.cache.semantic.sameness.words import FEATURES, ReadWords, features_between, read_part, word_features

_PARTS_A_ROUND = 8
_MATCHES_A_ROUND = 16
_MAX_KEPT_MATCHES = 8192
_MAX_KEPT_ANSWERS = 256
"""In their parts; of up to 4,800 characters each."""
_LEAST_MATTER = 0.02
"""A part that says less of the matter, as `relative`, is held against no others: it would change next to nothing."""
_WORDS_SURE = 2.2
"""Log odds of nine in ten."""
_MAX_KEPT_PARTS = 2048
"""About 30 kB each."""


@runtime_checkable
class TokenModel(Protocol):
    """An encoder that tells tokens' vectors."""

    fingerprint: str

    def embed_parts(self, texts: Sequence[str]) -> list[EncodedPart]:
        """Each text's tokens."""

    def vocabulary(self) -> TokenVocabulary:
        """Of the tokens."""


class Compared(msgspec.Struct, frozen=True, tag=True):
    """What has become of a pair. `is_done`: else the same has to be asked again. `log_odds`: of saying the same,
    calibrated for pairs of which as many do as do not; None where it cannot be looked at.
    """

    is_done: bool
    log_odds: float | None = None


class _KnownPart(NamedTuple):
    """What can be said of a part by itself."""

    read: ReadPart
    outline: Outline
    words: ReadWords


class _Match(NamedTuple):
    """How the parts of two answers match: `match_features`, `most_odds`."""

    features: NDArray[np.float32]
    most: float


class Reader:
    """Keeps the parts that it has encoded lately: stored answers are compared again and again."""

    def __init__(self, model: TokenModel | None) -> None:
        """`model`: its tokens are read if the head was trained with it; without, or with another, only words are."""
        weights = load_weights()
        self._model = model if model is not None and model.fingerprint == weights.card.fingerprint else None
        self._vocabulary = self._model.vocabulary() if self._model is not None else None
        self._sentences, self._answers, self._words = TokenHead(weights), AnswerHead(weights), WordHead(weights)
        self._parts: OrderedDict[str, AnswerParts | None] = OrderedDict()
        self._kept: OrderedDict[str, _KnownPart] = OrderedDict()
        self._matched: OrderedDict[tuple[str, str], float] = OrderedDict()

    def compare(self, left: str, right: str) -> Compared:
        """A round of it."""
        try:
            sure = for_sure(left, right)
        except Unreadable:
            return Compared(is_done=True)
        if sure is not None:
            return Compared(is_done=True, log_odds=sure)
        ones, others = self._parts_of(left), self._parts_of(right)
        if ones is None or others is None:
            return Compared(is_done=True)
        features = word_features(ones.texts, others.texts)
        if self._model is None or self._vocabulary is None:
            by_words = self._words.log_odds(features)
            # Words that it has not met make it take one thing for another half of the time: of doubts it says nothing.
            return _told(by_words, features) if abs(by_words) >= _WORDS_SURE else Compared(is_done=True)
        missing = [part for part in dict.fromkeys((*ones.texts, *others.texts)) if not self._is_kept(part)]
        self._encode(self._model, missing[:_PARTS_A_ROUND])
        if len(missing) > _PARTS_A_ROUND:
            return Compared(is_done=False)
        match = self._match(ones, others, self._vocabulary)
        if match is None:
            return Compared(is_done=False)
        log_odds = min(self._answers.log_odds(match.features, features), match.most)
        return _told(min(log_odds, 0.0) if differ_in_code(left, right) else log_odds, features)

    def _parts_of(self, answer: str) -> AnswerParts | None:
        """As `parts_of`: a new answer is held against several, in several rounds."""
        if answer not in self._parts:
            self._parts[answer] = parts_of(answer)
            if len(self._parts) > _MAX_KEPT_ANSWERS:
                self._parts.popitem(last=False)
        self._parts.move_to_end(answer)
        return self._parts[answer]

    def _match(self, left: AnswerParts, right: AnswerParts, vocabulary: TokenVocabulary) -> _Match | None:
        """None where sentences are left to be held against each other in another round."""
        ones, others = left.texts, right.texts
        outlines = [self._kept[part].outline for part in ones], [self._kept[part].outline for part in others]
        matters = [relative(self._sentences.matters(np.stack([part.vector for part in side]))) for side in outlines]
        is_read = [side >= _LEAST_MATTER for side in matters]
        pairs = {
            match: (ones[match.one], others[match.other])
            for match in candidates(*outlines)
            if ones[match.one] == others[match.other] or (is_read[0][match.one] and is_read[1][match.other])
        }
        new = [pair for pair in dict.fromkeys(pairs.values()) if pair not in self._matched]
        self._hold_against(new[:_MATCHES_A_ROUND], vocabulary)
        if len(new) > _MATCHES_A_ROUND:
            return None
        for pair in pairs.values():
            self._matched.move_to_end(pair)
        odds = {match: self._matched[pair] for match, pair in pairs.items()}
        while len(self._matched) > _MAX_KEPT_MATCHES:
            self._matched.popitem(last=False)
        known = match_table(odds, (left, right)), (matters[0], matters[1]), (left, right)
        return _Match(match_features(*known), most_odds(*known))

    def _hold_against(self, pairs: list[tuple[str, str]], vocabulary: TokenVocabulary) -> None:
        """Each part against the other of its pair."""
        self._matched |= dict.fromkeys(pairs, SURE)
        differing = [pair for pair in pairs if pair[0] != pair[1]]
        if not differing:
            return
        known = [(self._kept[one], self._kept[other]) for one, other in differing]
        meeting = meet([(one.read.joined, other.read.joined) for one, other in known], vocabulary)
        words = np.stack([features_between(one.words, other.words) for one, other in known])
        told = self._sentences.told([(one.read, other.read) for one, other in known], meeting, words)
        self._matched |= {pair: bounded(*pair, odds) for pair, odds in zip(differing, told.tolist(), strict=True)}

    def _encode(self, model: TokenModel, parts: list[str]) -> None:
        if parts:
            for part, encoded in zip(parts, model.embed_parts(parts), strict=True):
                self._kept[part] = _KnownPart(self._sentences.read(encoded), outline_of(encoded), read_part(part))
            while len(self._kept) > _MAX_KEPT_PARTS:
                self._kept.popitem(last=False)

    def _is_kept(self, part: str) -> bool:
        """And it will be while this pair is read."""
        if part not in self._kept:
            return False
        self._kept.move_to_end(part)
        return True


def _told(log_odds: float, features: NDArray[np.float32]) -> Compared:
    """Never more likely the same than not where one names an address that the other does not: that may be planted."""
    has_other_links = features[FEATURES.index("links_differ")] > 0
    return Compared(is_done=True, log_odds=min(log_odds, 0.0) if has_other_links else log_odds)
