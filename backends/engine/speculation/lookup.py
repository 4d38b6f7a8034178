"""What is at hand for an answer: what followed its last tokens before, in its text or in its prediction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from backends.engine.speculation.ngram import SHORTEST_MATCH, NgramMatch, PairIndex, continuation

Source = Literal["draft", "ngram", "prediction", "remote"]
Kind = tuple[Source, bool]
"""Who proposes, and whether it was a match of many tokens: those are accepted far more often."""
_LONG_MATCH = 4


@dataclass(frozen=True, slots=True)
class TokensAtHand:
    """Tokens at hand: of which kind, the text they stand in, and where."""

    kind: Kind
    text: list[int]
    position: int

    def take(self, number: int) -> list[int]:
        """The next `number` tokens."""
        return continuation(self.text, self.position, number)


class PromptLookup:
    """For one answer, which may have a prediction of it."""

    def __init__(self, prediction: Sequence[int]) -> None:
        self._prediction = list(prediction)
        self._pairs = PairIndex()
        self._predicted_pairs = PairIndex()

    @property
    def has_prediction(self) -> bool:
        """Whether there is text of which nobody knows yet whether it comes true."""
        return bool(self._prediction)

    def find(self, tokens: list[int], num_output: int) -> TokensAtHand | None:
        """What follows the better match of the end of `tokens`, of which the last `num_output` are the answer's."""
        self._pairs.extend(tokens)
        own = self._pairs.find(tokens, tokens)
        prediction = self._prediction
        if prediction:
            self._predicted_pairs.extend(prediction)
            predicted = self._predicted_pairs.find(prediction, tokens)
            if num_output == 1 and prediction[0] == tokens[-1] and len(prediction) > 1:
                # Its beginning, of which no pair is there yet.
                predicted = NgramMatch(1, SHORTEST_MATCH)
            if predicted is not None and (own is None or predicted.length >= own.length):
                return TokensAtHand(("prediction", predicted.length >= _LONG_MATCH), prediction, predicted.position)
        return None if own is None else TokensAtHand(("ngram", own.length >= _LONG_MATCH), tokens, own.position)
