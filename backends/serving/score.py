"""Scoring: what the model would have said at each position of a text. What speculation across backends asks for."""

from __future__ import annotations

from collections.abc import Sequence

from backends.charges.usage import Usage
from backends.engine.request import Event, Request, SamplingParams
from backends.serving.replies.parts import UsageTally
from backends.serving.requests import Job


class ScoreAnswer:
    """The model's greedy choice at each position of a continuation, and the one behind it."""

    def __init__(self, num_prefix: int) -> None:
        self.choices: list[int] = []
        self._num_prefix = num_prefix
        self._tally = UsageTally()

    def take(self, event: Event) -> None:
        """Note what a step brought."""
        self._tally.take(event)
        if event.prompt_logprobs is not None:
            self.choices += [each.top[0][0] for each in event.prompt_logprobs[self._num_prefix :] if each is not None]
        self.choices += event.tokens

    def drain(self) -> bytes:
        """A score is not streamed."""
        return b""

    def finish(self) -> bytes:
        """A score has no body."""
        return b""

    def usage(self) -> Usage:
        """Tokens of the request."""
        return self._tally.usage()


def score_job(request_id: str, prefix: Sequence[int], continuation: Sequence[int]) -> tuple[Job, ScoreAnswer]:
    """The job that scores `continuation` behind `prefix`, which is not empty, and the answer that it fills in."""
    answer = ScoreAnswer(len(prefix))
    request = Request(
        id=request_id,
        prompt=(*prefix, *continuation),
        params=SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True),
        prompt_logprobs=1 if continuation else None,
        prompt_logprobs_from=len(prefix),
    )
    return Job([request], answer), answer
