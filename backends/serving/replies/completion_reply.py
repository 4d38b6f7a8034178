"""Completions in OpenAI's shape, whole and as the chunks of a stream; with echo, and with vLLM's `prompt_logprobs`."""

from __future__ import annotations

import codecs
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from backends.charges.usage import Usage
from backends.engine.request import Event, TokenLogprob
from backends.serving.replies.parts import Head, UsageTally, Vocabulary, token_text
from backends.sse import DONE_EVENT, encode_event


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionShape:
    """What the client asked of the form of its answer.

    `prompts` are the prompts' tokens by request id, in order, each with `num_choices` choices. `has_output` is False
    where no token was asked for, only what is known of the prompt. `tells_tokens`: the ids of all tokens are wanted,
    as vLLM tells them.
    """

    prompts: Mapping[str, Sequence[int]]
    num_choices: int = 1
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    echo: bool = False
    tells_tokens: bool = False
    has_output: bool = True

    @property
    def size(self) -> int:
        """The number of choices of all prompts."""
        return len(self.prompts) * self.num_choices


class _Choice:
    """One choice, as far as its text has come."""

    __slots__ = ("decoder", "finish_reason", "has_begun", "has_told_prompt", "offset")

    def __init__(self) -> None:
        self.has_told_prompt = False
        self.has_begun = False
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.offset = 0
        self.finish_reason: str | None = None


class _Choices:
    """What both forms share: which choice an event belongs to, and what it adds to it."""

    def __init__(self, shape: CompletionShape, vocabulary: Vocabulary) -> None:
        self._shape = shape
        self._vocabulary = vocabulary
        self._first = {request: number * shape.num_choices for number, request in enumerate(shape.prompts)}
        self._requests = list(shape.prompts)
        self._choices = [_Choice() for _ in range(shape.size)]
        # Choices of one prompt share what is known of it, and the engine says it once.
        self._prompt_logprobs: dict[str, list[TokenLogprob | None]] = {}

    def index(self, event: Event) -> int:
        """The choice's number in the answer."""
        return self._first[event.request_id] + event.index

    def add(self, event: Event) -> tuple[str, dict[str, Any] | None]:
        """The text that an event adds, and its `logprobs` object."""
        shape = self._shape
        choice = self._choices[self.index(event)]
        prompt = shape.prompts[event.request_id]
        text = event.text if shape.has_output else ""
        logprobs: list[TokenLogprob | None] = []
        tokens: list[int] = []
        if event.prompt_logprobs is not None:
            # The first token has nothing before it, so nothing is known of it.
            unknown = [None] * (len(prompt) - len(event.prompt_logprobs))
            self._prompt_logprobs[event.request_id] = [*unknown, *event.prompt_logprobs]
        if shape.echo and not choice.has_begun:
            text = self._vocabulary.decode(prompt) + text
            tokens += prompt
            logprobs += self._prompt_logprobs.get(event.request_id) or [None] * len(prompt)
        choice.has_begun = True
        if shape.has_output and event.logprobs is not None:
            tokens += [each.token for each in event.logprobs]
            logprobs += event.logprobs
        elif event.is_replayed:
            # Where the texts of the tokens behind them begin is counted from here.
            tokens += event.tokens
            logprobs += [None] * len(event.tokens)
        if event.finish_reason is not None:
            choice.finish_reason = event.finish_reason if shape.has_output else "length"
        if shape.logprobs is None:
            return text, None
        return text, self._logprobs(choice, tokens, logprobs)

    def finish_reason(self, index: int) -> str | None:
        """Why a choice ended; None while it goes on."""
        return self._choices[index].finish_reason

    def prompt_fields(self, index: int) -> dict[str, Any]:
        """The choice's `prompt_logprobs`, where they were asked for."""
        num_top = self._shape.prompt_logprobs
        if num_top is None:
            return {}
        known = self._prompt_logprobs.get(self._requests[index // self._shape.num_choices], [])
        return {"prompt_logprobs": [self._ranked(each, num_top) for each in known]}

    def token_fields(self, index: int, tokens: Sequence[int]) -> dict[str, Any]:
        """The ids of tokens of a choice, and the first time those of its prompt, where they were asked for."""
        if not self._shape.tells_tokens:
            return {}
        fields: dict[str, Any] = {"token_ids": list(tokens) if self._shape.has_output else []}
        choice = self._choices[index]
        if not choice.has_told_prompt:
            choice.has_told_prompt = True
            prompt = self._shape.prompts[self._requests[index // self._shape.num_choices]]
            fields["prompt_token_ids"] = list(prompt)
        return fields

    def _ranked(self, logprob: TokenLogprob | None, num_top: int) -> dict[str, Any] | None:
        if logprob is None:
            return None
        ranked: dict[int, tuple[float, int | None]]
        ranked = {token: (value, rank) for rank, (token, value) in enumerate(logprob.top, 1) if rank <= num_top}
        chosen = next((rank for rank, (token, _) in enumerate(logprob.top, 1) if token == logprob.token), None)
        ranked[logprob.token] = (logprob.logprob, chosen)
        return {
            str(token): {"logprob": value, "rank": rank, "decoded_token": token_text(self._vocabulary, token)}
            for token, (value, rank) in ranked.items()
        }

    def _logprobs(
        self, choice: _Choice, tokens: Sequence[int], logprobs: Sequence[TokenLogprob | None]
    ) -> dict[str, Any]:
        offsets = []
        for token in tokens:
            offsets.append(choice.offset)
            # Several tokens may make one character, which the text has once.
            choice.offset += len(choice.decoder.decode(self._vocabulary.token_bytes(token)))
        return {
            "tokens": [token_text(self._vocabulary, token) for token in tokens],
            "token_logprobs": [None if each is None else each.logprob for each in logprobs],
            "top_logprobs": [None if each is None else self._top(each) for each in logprobs],
            "text_offset": offsets,
        }

    def _top(self, logprob: TokenLogprob) -> dict[str, float]:
        top = logprob.top[: self._shape.logprobs]
        return {token_text(self._vocabulary, token): value for token, value in top}


class CompletionAnswer:
    """A whole completion."""

    def __init__(self, head: Head, shape: CompletionShape, vocabulary: Vocabulary) -> None:
        self._head = head
        self._shape = shape
        self._tally = UsageTally()
        self._choices = _Choices(shape, vocabulary)
        self._texts: list[list[str]] = [[] for _ in range(shape.size)]
        self._tokens: list[list[int]] = [[] for _ in range(shape.size)]
        self._logprobs: list[dict[str, Any] | None] = [None] * shape.size

    def take(self, event: Event) -> None:
        """Note what a step brought."""
        self._tally.take(event)
        index = self._choices.index(event)
        text, logprobs = self._choices.add(event)
        self._texts[index].append(text)
        self._tokens[index] += _all_tokens(event)
        known = self._logprobs[index]
        if known is None:
            self._logprobs[index] = logprobs
        elif logprobs is not None:
            for name, values in logprobs.items():
                known[name] += values

    def drain(self) -> bytes:
        """Nothing before the end."""
        return b""

    def finish(self) -> bytes:
        """The body."""
        choices = [
            {
                "index": index,
                "text": "".join(texts),
                "logprobs": self._logprobs[index],
                "finish_reason": self._choices.finish_reason(index),
                **self._choices.prompt_fields(index),
                **self._choices.token_fields(index, self._tokens[index]),
            }
            for index, texts in enumerate(self._texts)
        ]
        body = {**self._head.fields("text_completion"), "choices": choices, "usage": _usage(self._tally, self._shape)}
        return msgspec.json.encode(body)

    def usage(self) -> Usage:
        """Tokens of the whole call."""
        return _shown(self._tally.usage(), self._shape)


class CompletionStream:
    """A streamed completion."""

    def __init__(self, head: Head, shape: CompletionShape, vocabulary: Vocabulary) -> None:
        self._chunk_head = head.fields("text_completion")
        self._shape = shape
        self._tally = UsageTally()
        self._choices = _Choices(shape, vocabulary)
        self._taken: list[Event] = []

    def take(self, event: Event) -> None:
        """Note what a step brought; it is written when somebody reads."""
        self._tally.take(event)
        self._taken.append(event)

    def replay(self, event: Event) -> None:
        """Goes on by what was told elsewhere, and writes nothing of it."""
        self._choices.add(event)

    def drain(self) -> bytes:
        """The chunks of what was taken since the last call."""
        taken, self._taken = self._taken, []
        return b"".join(map(self._chunk, taken))

    def finish(self) -> bytes:
        """The usage and the end of the stream."""
        last = {**self._chunk_head, "choices": [], "usage": _usage(self._tally, self._shape)}
        return self.drain() + encode_event(msgspec.json.encode(last)) + DONE_EVENT

    def usage(self) -> Usage:
        """Tokens of the whole call."""
        return _shown(self._tally.usage(), self._shape)

    def _chunk(self, event: Event) -> bytes:
        index = self._choices.index(event)
        text, logprobs = self._choices.add(event)
        reason = self._choices.finish_reason(index)
        # Half a character, or the beginning of what may be a stop string: there is nothing to show yet.
        tells_tokens = self._shape.tells_tokens and bool(event.tokens)
        if not text and reason is None and not (logprobs and logprobs["tokens"]) and not tells_tokens:
            return b""
        choice = {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}
        if event.prompt_logprobs is not None:
            choice.update(self._choices.prompt_fields(index))
        choice.update(self._choices.token_fields(index, _all_tokens(event)))
        return encode_event(msgspec.json.encode({**self._chunk_head, "choices": [choice]}))


def _all_tokens(event: Event) -> tuple[int, ...]:
    """With the one that ended the answer, as vLLM tells them: who goes on by tokens would not know of it else."""
    return event.tokens if event.end_token is None else (*event.tokens, event.end_token)


def _usage(tally: UsageTally, shape: CompletionShape) -> dict[str, Any]:
    fields = tally.fields()
    if not shape.has_output:
        fields.update(completion_tokens=0, total_tokens=fields["prompt_tokens"])
    return fields


def _shown(usage: Usage, shape: CompletionShape) -> Usage:
    """Usage without the token that the engine chooses where none was asked for."""
    return usage if shape.has_output else Usage(usage.prompt_tokens, 0, usage.cached_tokens)
