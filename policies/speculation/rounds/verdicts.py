"""What a target that knows no drafts says of a guess, and what every such verdict is asked by: completions."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, Protocol

import msgspec

from backends.errors import UpstreamError, UpstreamGarbage
from backends.protocol import Backend, Call, Facts, Reply
from backends.sse import EventBuffer, event_data
from policies.beside import tell_charges
from policies.speculation.own_completion import own_completion

_LAST_TOKEN = 2**31
_NOT_KNOWN = frozenset({400, 404, 405, 422, 501})
"""With which a server says that it does not understand what it is asked."""


class Malformed(UpstreamGarbage):
    """A verdict that cannot be one."""


class Said(NamedTuple):
    """The tokens that the target says; `ends`: the answer is over with them, the last being the one that ends it, where
    that is told.
    """

    tokens: list[int]
    ends: bool


class ToldChoice(msgspec.Struct):
    """What is read of a completion's choice."""

    index: int = 0
    token_ids: list[int] | None = None
    finish_reason: str | None = None


class Completion(msgspec.Struct):
    """What is read of a completion, or of a piece of one."""

    choices: list[ToldChoice] = []
    error: object = None


_decode = msgspec.json.Decoder(Completion).decode


class Verdicts(Protocol):
    """Of one answer."""

    @property
    def num_prompt_tokens(self) -> int:
        """Of all that was asked for them so far."""

    async def verify(self, text: Sequence[int], draft: Sequence[int]) -> Said:
        """What the target says behind `text`, given a guess of it. Raises: UpstreamError, Malformed."""

    def rest(self, text: Sequence[int], most: int) -> AsyncGenerator[Said, None]:
        """All that the target says behind `text`, as it comes. Raises: UpstreamError, Malformed."""


class Completions:
    """Asks the backend of an answer for completions behind tokens. `sampling`: fields that say how each is chosen."""

    def __init__(self, inner: Backend, call: Call, backend: str, sampling: Mapping[str, Any]) -> None:
        self._inner = inner
        self._call = call
        self._backend = backend
        self._sampling = sampling
        self.num_prompt_tokens = 0
        """Of all verdicts so far."""

    async def rest(self, text: Sequence[int], most: int) -> AsyncGenerator[Said, None]:
        """See `Verdicts.rest`."""
        body = {"prompt": list(text), "max_tokens": most, **self._sampling, "return_token_ids": True}
        async with self._asked({**body, "stream": True}) as reply:
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
                        tokens, ends = checked(choice, most=None)
                        yield Said(tokens, ends)

    @asynccontextmanager
    async def _asked(self, fields: dict[str, Any], path: str = "/completions") -> AsyncIterator[Reply]:
        call, facts = self._call, Facts(extra=self._call.facts.extra)
        own = own_completion(
            call, {"model": call.model, **fields}, facts, include_usage=False, pinned=self._backend, path=path
        )
        reply = await self._inner.send(own)
        try:
            if reply.status in _NOT_KNOWN:
                raise Malformed(f"the target answered with status {reply.status} what verifies a guess")
            if reply.status != 200:
                raise UpstreamGarbage(f"the target answered with status {reply.status} what verifies a guess")
            yield reply
        finally:
            await reply.aclose()
            tell_charges(facts, facts.extra)


def checked(choice: ToldChoice, most: int | None) -> tuple[list[int], bool]:
    """The tokens of a choice, `most` at most, and whether its answer has ended by itself. Raises: Malformed."""
    tokens, ends = choice.token_ids, choice.finish_reason == "stop"
    if tokens is None or choice.finish_reason not in ("stop", "length", None):
        raise Malformed("the target does not tell its token ids: it does not know `return_token_ids`")
    if any(not is_token(token) for token in tokens) or (most is not None and len(tokens) > most):
        raise Malformed("the target tells tokens that none can be")
    if most is not None and not tokens:
        raise Malformed("the target does not tell every token, or not the one that ends an answer")
    return tokens, ends


def is_token(token: int) -> bool:
    """Whether a vocabulary could have it."""
    return 0 <= token < _LAST_TOKEN
