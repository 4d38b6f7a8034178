"""Accepting before anybody is asked: a learned router says of the prompt whether the draft will do."""

from __future__ import annotations

import asyncio

from backends.clock import Clock
from backends.errors import ConfigurationError
from backends.protocol import Backend, Call, Reply
from policies.cache.semantic.contracts import Encoder, EncoderBusy, Vector
from policies.cache.semantic.time_limit import within
from policies.pool.attempts.hedge import adopt
from policies.speculation.cascade.calibration import Calibration
from policies.speculation.draft import ask_draft
from policies.speculation.outcome import DraftOutcome
from policies.speculation.router.learned_router import PromptScorer
from policies.speculation.router.prompt_vectors import endings

_MAX_ENCODE_S = 2.0
"""An encoder whose process hangs, or starts anew, is not waited for: that may take minutes."""


class PromptScores:
    """How likely the draft is right, by the prompt: the higher, the likelier, on the calibration's scale."""

    def __init__(self, calibration: Calibration, encoder: Encoder) -> None:
        """`encoder` belongs to whoever opened it. Raises: ValueError where the router's arrays do not fit together."""
        assert calibration.router is not None, "read_calibration has looked"
        self._scorer = PromptScorer(calibration.router)
        self._wanted_encoder = calibration.encoder
        self._encoder = encoder

    async def open(self) -> None:
        """Check that the router knows this encoder's vectors. Raises: ConfigurationError."""
        if self._encoder.fingerprint != self._wanted_encoder:
            raise ConfigurationError(
                "the calibration of a cascade was made with another encoder: write it anew with `slipstream calibrate`"
            )

    async def score(self, prompt: str) -> float:
        """Raises: EncoderBusy where nothing of it can be encoded, or not soon."""
        try:
            vector = await within(_MAX_ENCODE_S, self._vector(prompt))
        except TimeoutError:
            raise EncoderBusy(f"the prompt was not encoded within {_MAX_ENCODE_S:g} s") from None
        # A gain of the strong model is what speaks against the draft.
        # Some milliseconds for thousands of prompts that it was learned from: not on the loop.
        return -await asyncio.to_thread(self._scorer.gain, prompt, vector)

    async def _vector(self, prompt: str) -> Vector:
        *longer, shortest = endings(prompt)
        for text in longer:
            try:
                return await self._encoder.encode(text)
            except EncoderBusy:
                continue
        return await self._encoder.encode(shortest)


class ByPrompt:
    """Asks the draft what the router expects it to get right; its streams pass as they come.

    `encoder` belongs to whoever opened it. A prompt that cannot be encoded now goes to the target.
    """

    def __init__(
        self, draft: Backend, calibration: Calibration, *, threshold: float, encoder: Encoder, clock: Clock
    ) -> None:
        """Raises: ValueError where the router's arrays do not fit together."""
        self._draft = draft
        self._scores = PromptScores(calibration, encoder)
        self._threshold = threshold
        self._clock = clock

    async def open(self) -> None:
        """Check that the router knows this encoder's vectors. Raises: ConfigurationError."""
        await self._scores.open()

    async def answer(self, call: Call, prompt: str) -> Reply | DraftOutcome:
        """The draft's answer, its facts taken over; or why there is none."""
        try:
            if not await self._scores.score(prompt) >= self._threshold:
                return DraftOutcome.DECLINED
        except EncoderBusy:
            return DraftOutcome.DECLINED
        given = await ask_draft(self._draft, call, self._clock)
        if given is None:
            return DraftOutcome.FAILED
        adopt(call.facts, given.facts, given.reply)
        return given.reply
