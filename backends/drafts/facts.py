"""What a call's record says of the draft that helped with its answer."""

from __future__ import annotations

import msgspec
from msgspec import structs

OWN_DRAFT = "own"
"""Stands for what an engine of this process has drafted by itself."""


class SpeculationFacts(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a draft has done for an answer: tokens that it guessed, and those of them that came to be.

    `rounds` were asked of the target, where it is checked by rounds; `ahead` of the guessed tokens were said while a
    round before was checked, so that nothing waited for them; `probe_tokens` are those of the prompts that this took
    beside the answer's own. `ended` says why there were no more guesses, "" where it helped to the end. `speed_up`
    is how many times as fast tokens of the backend come with drafts as without, as measured by then over its latest
    answers, None where that is not known.
    """

    draft: str
    drafted: int = 0
    accepted: int = 0
    rounds: int = 0
    ahead: int = 0
    probe_tokens: int = 0
    ended: str = ""
    speed_up: float | None = None

    def with_round(self, drafted: int, accepted: int, ahead: int) -> SpeculationFacts:
        """The same after one round more, of so many guessed tokens."""
        return structs.replace(
            self,
            drafted=self.drafted + drafted,
            accepted=self.accepted + accepted,
            rounds=self.rounds + 1,
            ahead=self.ahead + ahead,
        )
