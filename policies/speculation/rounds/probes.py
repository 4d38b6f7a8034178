"""Verdicts of a target that knows no drafts: a completions call with a prompt of token ids for each place of a guess.

    text        -> a token    text + d1 -> a token    text + d1 d2 -> a token ...

Each is drawn by the target itself, as it would draw behind that text. Those whose text has come true count.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import msgspec

from backends.errors import UpstreamError, UpstreamGarbage
from backends.protocol import Backend, Call, Facts, Reply
from backends.sse import EventBuffer, event_data
from policies.beside import tell_charges
from policies.speculation.own_completion import own_completion

_MAX_BYTES = 1024**2


class Malformed(UpstreamGarbage):
    """A verdict that cannot be one."""


class Said(NamedTuple):
    """The tokens that the target says; `ends`: the answer is over with them, the last being the one that ends it, where
    that is told.
    """

    tokens: list[int]
    ends: bool


class _Choice(msgspec.Struct):
    index: int
    token_ids: list[int] | None = None
    finish_reason: str | None = None


class _Answer(msgspec.Struct):
    choices: list[_Choice] = []
    error: object = None


_decode = msgspec.json.Decoder(_Answer).decode


class Probes:
    """Of one answer. `sampling`: fields that say how each token is chosen."""

    def __init__(self, inner: Backend, call: Call, backend: str, sampling: Mapping[str, Any]) -> None:
        self._inner = inner
        self._call = call
        self._backend = backend
        self._sampling = sampling
        self.num_prompt_tokens = 0
        """Of all probes so far."""

    async def verify(self, text: Sequence[int], draft: Sequence[int]) -> Said:
        """What the target says behind `text`, given a guess of it. Raises: UpstreamError, Malformed."""
        prompts = [[*text, *draft[:length]] for length in range(len(draft) + 1)]
        self.num_prompt_tokens += sum(map(len, prompts))
        async with self._asked({"prompt": prompts, "max_tokens": 1}, is_stream=False) as reply:
            body = reply.body if reply.body is not None else b""
        try:
            choices = {choice.index: choice for choice in _decode(body).choices}
        except msgspec.DecodeError:
            raise Malformed("the target's verdict cannot be read") from None
        if choices.keys() != set(range(len(prompts))):
            raise Malformed(f"the target answers {len(prompts)} probes with {len(choices)} choices")
        said: list[int] = []
        for place in range(len(prompts)):
            tokens, ends = _checked(choices[place], most=1)
            said += tokens
            if ends or place == len(draft) or tokens[0] != draft[place]:
                return Said(said, ends)
        raise AssertionError("the last place returns")

    async def rest(self, text: Sequence[int], most: int) -> AsyncGenerator[Said, None]:
        """All that the target says behind `text`, as it comes. Raises: UpstreamError, Malformed."""
        async with self._asked({"prompt": list(text), "max_tokens": most}, is_stream=True) as reply:
            if reply.stream is None:
                raise Malformed("the target does not stream")
            buffer = EventBuffer()
            while piece := await reply.stream.read():
                for event in buffer.feed(piece):
                    data = event_data(event)
                    if data is None or data == b"[DONE]":
                        continue
                    try:
                        answer = _decode(data)
                    except msgspec.DecodeError:
                        raise Malformed("the target's stream cannot be read") from None
                    if answer.error is not None:
                        raise UpstreamError("the target's stream ended with an error")
                    for choice in answer.choices:
                        tokens, ends = _checked(choice, most=None)
                        yield Said(tokens, ends)

    @asynccontextmanager
    async def _asked(self, fields: dict[str, Any], *, is_stream: bool) -> AsyncIterator[Reply]:
        call, facts = self._call, Facts(extra=self._call.facts.extra)
        body = {"model": call.model, **fields, **self._sampling, "stream": is_stream, "return_token_ids": True}
        reply = await self._inner.send(own_completion(call, body, facts, include_usage=False, pinned=self._backend))
        try:
            if reply.status != 200:
                raise UpstreamGarbage(f"the target answered a probe with status {reply.status}")
            yield reply
        finally:
            await reply.aclose()
            tell_charges(facts, facts.extra)


def _checked(choice: _Choice, most: int | None) -> tuple[list[int], bool]:
    """The tokens of a choice, and whether its answer has ended by itself."""
    tokens, ends = choice.token_ids, choice.finish_reason == "stop"
    if tokens is None or choice.finish_reason not in ("stop", "length", None):
        raise Malformed("the target does not tell its token ids: it does not know `return_token_ids`")
    if any(not 0 <= token < 2**31 for token in tokens) or (most is not None and len(tokens) > most):
        raise Malformed("the target tells tokens that none can be")
    if most is not None and not tokens:
        raise Malformed("the target does not tell every token, or not the one that ends an answer")
    return tokens, ends
