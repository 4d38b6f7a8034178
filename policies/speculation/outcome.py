"""What became of a smaller backend that may answer in place of a larger one, and how clients are told who has."""

from __future__ import annotations

from enum import StrEnum

STAGE_HEADER = b"x-slipstream-stage"
"""Of answers on routes where a smaller backend may have given them: `draft` or `target`."""


class DraftOutcome(StrEnum):
    """What became of a smaller backend's part in a call, where a route has one that may answer."""

    ACCEPTED = "accepted"
    """It has answered."""
    DECLINED = "declined"
    """It was not asked: the prompt says that it would not do."""
    REJECTED = "rejected"
    """Its answer was not good enough."""
    ABORTED = "aborted"
    """Its answer could not become good enough any more, and was given up in the middle."""
    FAILED = "failed"
    """It could not answer, or nobody could say how well."""
    LATE = "late"
    """The others were there before it."""
    UNUSED = "unused"
    """It was not needed, or there was nothing to pay for it."""
    UNFIT = "unfit"
    """The call is of a kind that only the target answers."""

    @property
    def stage(self) -> bytes:
        """Who has answered, as the header says it."""
        return b"draft" if self is DraftOutcome.ACCEPTED else b"target"
