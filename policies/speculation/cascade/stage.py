"""A cascade as a backend: the draft's answer where that is calibrated to do, else the target's.

A failure of the draft never shows, and each answer says who gave it.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from backends.protocol import Backend, Call, Capabilities, Reply
from policies.speculation.draft import mark, prompt_of
from policies.speculation.outcome import DraftOutcome
from policies.stage import Stage


class DraftAcceptance(Protocol):
    """Gets the draft's answer to calls for which it does."""

    async def open(self) -> None:
        """Check what it goes by. Raises: ConfigurationError."""

    async def answer(self, call: Call, prompt: str) -> Reply | DraftOutcome:
        """The draft's answer, its facts taken over; or why there is none. Never raises but for cancellation."""


class Cascade(Stage):
    """Around the target. `acceptance` asks the draft."""

    def __init__(self, inner: Backend, draft: Backend, acceptance: DraftAcceptance) -> None:
        super().__init__(inner)
        self._draft = draft
        self._acceptance = acceptance

    @property
    def capabilities(self) -> Capabilities:
        """What the target can answer; callers who differ in what either of both reads share no answer."""
        own = self._inner.capabilities
        return msgspec.structs.replace(own, headers=own.headers | self._draft.capabilities.headers)

    async def open(self) -> None:
        """Open the target, and check that the calibration is for what is there. Raises: ConfigurationError."""
        await super().open()
        await self._acceptance.open()

    async def send(self, call: Call) -> Reply:
        """The draft's answer, or the target's. Raises: as the target."""
        prompt = prompt_of(call)
        found = DraftOutcome.UNFIT if prompt is None else await self._acceptance.answer(call, prompt)
        if isinstance(found, Reply):
            return mark(call, found, DraftOutcome.ACCEPTED)
        call.facts.draft = found
        return mark(call, await self._inner.send(call), found)
