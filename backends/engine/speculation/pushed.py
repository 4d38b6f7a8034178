"""Draft tokens that somebody elsewhere has pushed for one answer, as long as the answer's own text agrees with them."""

from __future__ import annotations

from collections.abc import Sequence


class PushedTokens:
    """Those kept for one text, `most` at once. Positions count from the text's first token.

    Guesses may come late, in any order, for a text that has gone another way, or be made up: what does not agree with
    the text is dropped and counted, and never an error.
    """

    __slots__ = ("_most", "_start", "_tokens", "num_dropped")

    def __init__(self, most: int) -> None:
        self._most = most
        self._start = 0
        self._tokens: list[int] = []
        self.num_dropped = 0

    def push(self, text: Sequence[int], start: int, tokens: Sequence[int]) -> None:
        """Keeps what `tokens`, which stand from `start` on, guess of what comes behind `text`."""
        num_known = len(text) - start
        if not 0 <= num_known <= len(tokens) or list(text[start:]) != list(tokens[:num_known]):
            self.num_dropped += len(tokens)
            return
        guess = tokens[num_known:]
        # A post that was overtaken by a later one knows less.
        if len(guess) > len(self.behind(text)):
            self._start, self._tokens = len(text), list(guess[: self._most])
            self.num_dropped += max(0, len(guess) - self._most)

    def behind(self, text: Sequence[int]) -> list[int]:
        """The guess of what comes behind `text`, perhaps nothing."""
        num_known = len(text) - self._start
        if num_known and self._tokens:
            if list(text[self._start :]) != self._tokens[:num_known]:
                self.num_dropped += max(0, len(self._tokens) - num_known)
                self._tokens = []
            else:
                self._start, self._tokens = len(text), self._tokens[num_known:]
        return self._tokens
