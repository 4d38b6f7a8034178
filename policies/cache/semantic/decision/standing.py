"""Which stored answers no longer hold: evidence against each, from labels in the order in which they come.

A stored answer may have been right for long, and be wrong from one question on, because the backend's has changed or
because something else is asked now. For each answer a cumulative sum (Page, 1954) weighs labels: how likely they are if
it no longer holds, against how likely the decision's model has them. One label against an answer that was thought right
makes it suspect: it is not served until one for it has come. Two in a row end it. No clock is asked.
"""

from __future__ import annotations

import math

SUSPECT = 2.0
"""From so much evidence on, in log odds, an answer is not served."""
_GONE = 5.0
"""More counts no further, so that two labels for it bring an answer back that holds again."""
_MAX_SCORE = 4.0
"""However likely an answer was thought right, one label for it outweighs one against it so far that it is served."""
_RIGHT_AFTER = 0.1
"""How often an answer that no longer holds is found right all the same: it may do so for part of its questions."""
_MAX_ANSWERS = 1000


class Standing:
    """The evidence against each answer, where there is any; of more than 1,000 the longest untouched is forgotten."""

    def __init__(self, against: dict[str, float] | None = None) -> None:
        self.against = against if against is not None else {}

    def is_suspect(self, answer_id: str) -> bool:
        """Whether it is to be asked of the backend, and not served."""
        return self.against.get(answer_id, 0.0) >= SUSPECT

    def is_gone(self, answer_id: str) -> bool:
        """Whether its entries are to be deleted."""
        return self.against.get(answer_id, 0.0) >= _GONE

    def note(self, answer_id: str, score: float, evidence: float) -> None:
        """A label on an answer: the log odds of its being right by the model, and those of the comparison."""
        right = 1.0 / (1.0 + math.exp(-max(-30.0, min(_MAX_SCORE, score))))
        said = 1.0 / (1.0 + math.exp(-max(-30.0, min(30.0, evidence))))
        if_gone = _RIGHT_AFTER * said + (1.0 - _RIGHT_AFTER) * (1.0 - said)
        expected = right * said + (1.0 - right) * (1.0 - said)
        against = self.against.pop(answer_id, 0.0) + math.log(if_gone / expected)
        if against > 0.0:
            self.against[answer_id] = min(against, _GONE)
            if len(self.against) > _MAX_ANSWERS:
                del self.against[next(iter(self.against))]
