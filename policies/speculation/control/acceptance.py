"""How many tokens of a draft come true: learned by their place in it, from rounds and from answers that were scored."""

from __future__ import annotations

from collections.abc import Sequence

MAX_PLACES = 32
"""Places that are told apart; nobody drafts further ahead in one round."""
_FORGETTING = 0.97
_FIRST_SHARE, _FIRST_SEEN = 0.6, 2.0
"""What is believed before anything was seen, and for how many tokens that counts."""
_DOUBTED = 0.3
"""What is left of what was seen when that may not hold any more."""
_ENOUGH_SEEN = 16.0
_DRAWN_TO_MEAN = 6.0
"""Tokens that the mean of all places counts at each: places that were hardly seen share what the others know."""


class PlaceAcceptance:
    """Of one draft and target. A place is only seen where all before it have come true."""

    __slots__ = ("_all_seen", "_all_true", "_seen", "_true")

    def __init__(self) -> None:
        self._true = [0.0] * MAX_PLACES
        self._seen = [0.0] * MAX_PLACES
        self._all_true = _FIRST_SHARE * _FIRST_SEEN
        self._all_seen = _FIRST_SEEN

    @property
    def share(self) -> float:
        """Of the tokens that were compared, those that came true; lately."""
        return self._all_true / self._all_seen

    @property
    def is_known(self) -> bool:
        """Whether some thirty tokens were compared, about as many as are remembered."""
        return self._all_seen >= _ENOUGH_SEEN

    def doubt(self) -> None:
        """It may be another one now: what was seen counts less."""
        for seen in (self._true, self._seen):
            seen[:] = [_DOUBTED * each for each in seen]
        self._all_true *= _DOUBTED
        self._all_seen *= _DOUBTED

    def add(self, num_accepted: int, num_drafted: int) -> None:
        """Of a draft of so many tokens, so many have come true."""
        for place in range(min(num_accepted + 1, num_drafted, MAX_PLACES)):
            came_true = place < num_accepted
            self._true[place] = _FORGETTING * self._true[place] + came_true
            self._seen[place] = _FORGETTING * self._seen[place] + 1
            self._all_true = _FORGETTING * self._all_true + came_true
            self._all_seen = _FORGETTING * self._all_seen + 1

    def tokens_a_round(self, most: int) -> Sequence[float]:
        """[most + 1]: tokens that a round brings, by the length of its draft, the target's own token included."""
        share, reached, expected = self.share, 1.0, [1.0]
        for place in range(min(most, MAX_PLACES)):
            reached *= (self._true[place] + _DRAWN_TO_MEAN * share) / (self._seen[place] + _DRAWN_TO_MEAN)
            expected.append(expected[-1] + reached)
        return expected
