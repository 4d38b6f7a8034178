"""What a call's record says of the draft that helped with its answer."""

from __future__ import annotations

import msgspec


class SpeculationFacts(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a draft has done for an answer: tokens that it guessed, and those of them that came to be.

    `ended` says why there were none any more, "" where it helped to the end.
    """

    draft: str
    drafted: int = 0
    accepted: int = 0
    ended: str = ""
