"""From chosen tokens to what a client sees of one answer: text, and why it ended."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from backends.engine.choosing.sampling import Choice
from backends.engine.request import FinishReason, TokenLogprob
from backends.engine.sequence import Sequence
from backends.engine.text.detokenizer import Detokenizer
from backends.engine.text.stops import StopChecker
from backends.engine.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class AnswerProgress:
    """What a step brought. `kept` are the tokens that count: those behind the end of the answer are dropped.

    `tokens` and `logprobs` are what the client is told of: without the token that ended the answer, unless the stop is
    to be included.
    """

    kept: list[int]
    tokens: tuple[int, ...]
    text: str
    logprobs: tuple[TokenLogprob, ...] | None
    finish_reason: FinishReason | None
    stop_reason: str | int | None


class Answer:
    """The text of one answer so far. `eos_token_ids` end it unless they are to be ignored, `max_context` always does.

    A stop token of the request's own is told as the `stop_reason`, the model's own is not.
    """

    def __init__(
        self, sequence: Sequence, tokenizer: Tokenizer, *, eos_token_ids: frozenset[int], max_context: int
    ) -> None:
        self.sequence = sequence
        self.num_tokens = 0
        self.logprob_sum = 0.0
        params = sequence.request.params
        room = max_context - sequence.num_prompt
        self._most = room if params.max_tokens is None else min(params.max_tokens, room)
        self._params = params
        self._eos = frozenset[int]() if params.ignore_eos else eos_token_ids
        self._stop_ids = frozenset(params.stop_token_ids)
        self._detokenizer = Detokenizer(tokenizer, continues=sequence.request.continues_text)
        self._stops = StopChecker(params.stop, include_stop=params.include_stop) if params.stop else None

    def replay(self) -> Iterator[tuple[int, str]]:
        """Goes on by the tokens that were told elsewhere; each with the text that it completed there."""
        for token in self.sequence.request.emitted:
            self.num_tokens += 1
            can_stop = self.num_tokens >= self._params.min_tokens
            yield token, self._checked(self._detokenizer.push([token]), can_stop)[0]

    def take(self, choice: Choice) -> AnswerProgress:
        """Goes on by the chosen tokens, up to the end of the answer if they reach it."""
        kept: list[int] = []
        text, is_hidden = "", False
        finish: FinishReason | None = None
        stop: str | int | None = None
        for token in choice.tokens:
            kept.append(token)
            self.num_tokens += 1
            can_stop = self.num_tokens >= self._params.min_tokens
            if can_stop and (token in self._eos or token in self._stop_ids):
                finish, stop = "stop", token if token in self._stop_ids else None
                is_hidden = not self._params.include_stop
                if is_hidden:
                    break
            piece, found = self._checked(self._detokenizer.push([token]), can_stop)
            text += piece
            if found is not None:
                finish, stop = "stop", found
            elif finish is None and self.num_tokens >= self._most:
                finish = "length"
            if finish is not None:
                break
        if finish is not None and not isinstance(stop, str):
            text, finish, stop = self._flushed(text, finish, stop)
        shown = len(kept) - is_hidden
        logprobs = None
        if choice.logprobs is not None:
            logprobs = tuple(choice.logprobs[:shown])
            self.logprob_sum += sum(logprob.logprob for logprob in choice.logprobs[: len(kept)])
        return AnswerProgress(kept, tuple(kept[:shown]), text, logprobs, finish, stop)

    def _checked(self, text: str, can_stop: bool) -> tuple[str, str | None]:
        if self._stops is None or not can_stop:
            return text, None
        return self._stops.push(text)

    def _flushed(
        self, text: str, finish: FinishReason, stop: str | int | None
    ) -> tuple[str, FinishReason, str | int | None]:
        """With the text that was held back, in which a stop string may still be found."""
        rest, found = self._checked(self._detokenizer.flush(), True)
        if found is not None:
            return text + rest, "stop", found
        return text + rest + (self._stops.flush() if self._stops else ""), finish, stop
