"""What is known of an answer, and what a draft believes comes next. Tokens and positions only."""

from __future__ import annotations

from collections.abc import Sequence


class Guess:
    """One answer. The draft goes on from where it was last `begun`, perhaps beside what comes true meanwhile.

    known   | a | b | c |               what the target has told
    draft       | b | c | x | y |       begun behind a; x and y are ahead
    """

    def __init__(self) -> None:
        self.known: list[int] = []
        self.is_wrong = False
        """Whether the draft has said something else than the target, so that it has to begin anew."""
        self.num_drafted = 0
        """Tokens that were posted."""
        self.num_accepted = 0
        """Posted tokens that came true."""
        self._start = 0
        self._draft: list[int] = []
        self._posted_to = 0

    @property
    def ahead(self) -> list[int]:
        """What the draft believes comes behind all that is known."""
        return [] if self.is_wrong else self._draft[len(self.known) - self._start :]

    @property
    def lag(self) -> int:
        """Tokens that are known and that the draft has yet to come to."""
        return max(0, len(self.known) - self._start - len(self._draft))

    def begin(self) -> list[int]:
        """The draft is asked anew: the answer's tokens that it is to go on behind, those that it has said included."""
        if self.is_wrong or self.lag:
            self.is_wrong = False
            self._start, self._draft, self._posted_to = len(self.known), [], len(self.known)
        return [*self.known, *self.ahead]

    def say(self, tokens: Sequence[int]) -> None:
        """The draft goes on."""
        known = self.known[self._start + len(self._draft) :]
        self._draft += tokens
        self.is_wrong = self.is_wrong or any(said != true for said, true in zip(tokens, known, strict=False))

    def learn(self, tokens: Sequence[int]) -> None:
        """The target has told the answer's next tokens."""
        for token in tokens:
            place = len(self.known) - self._start
            if not self.is_wrong and place < len(self._draft):
                if self._draft[place] != token:
                    self.is_wrong = True
                elif len(self.known) < self._posted_to:
                    self.num_accepted += 1
            self.known.append(token)

    def news(self) -> tuple[int, list[int]] | None:
        """What to post: where it begins, and all that is ahead; None where all of it was posted before."""
        ahead = self.ahead
        end = len(self.known) + len(ahead)
        if not ahead or end <= self._posted_to:
            return None
        self.num_drafted += end - max(self._posted_to, len(self.known))
        self._posted_to = end
        return len(self.known), ahead
