"""What is lost where the draft answers a call, as a learned router and its calibration say."""

from __future__ import annotations

from backends.protocol import Call
from policies.cache.semantic.contracts import Encoder, EncoderBusy
from policies.speculation.cascade.by_prompt import PromptScores
from policies.speculation.cascade.calibration import Calibration
from policies.speculation.draft import prompt_of


class RouterLoss:
    """By the prompt. `encoder` belongs to whoever opened it; a prompt that cannot be encoded now is the target's."""

    def __init__(self, calibration: Calibration, *, quality: float, encoder: Encoder) -> None:
        """Raises: ValueError where the router's arrays do not fit together."""
        self._scores = PromptScores(calibration, encoder)
        self._loss = calibration.loss_of(quality)

    async def open(self) -> None:
        """Check that the router knows this encoder's vectors. Raises: ConfigurationError."""
        await self._scores.open()

    async def loss(self, call: Call) -> float | None:
        """None where no calibration on prompts speaks of such a call."""
        prompt = prompt_of(call)
        if prompt is None:
            return None
        try:
            return self._loss(await self._scores.score(prompt))
        except EncoderBusy:
            return None
