"""The tokens that a draft says behind a text of tokens: a streamed completion that tells its token ids."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

import msgspec

from backends.clock import Clock
from backends.errors import UpstreamError, UpstreamGarbage
from backends.json_errors import NOT_JSON
from backends.protocol import Backend, Call, Facts, Timeouts
from backends.sse import EventBuffer, event_data
from policies.beside import tell_charges
from policies.speculation.own_completion import own_completion

_TIMEOUTS = Timeouts(connect_s=2.0, first_token_s=5.0, stream_idle_s=5.0, total_s=60.0)
"""A draft that takes longer helps nobody."""
_LAST_TOKEN = 2**31


class _Choice(msgspec.Struct):
    token_ids: list[int] | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    error: object = None


_decode = msgspec.json.Decoder(_Chunk).decode


class Drafter:
    """A backend that guesses, asked under a model's name; empty: that of the call which it is to help with."""

    def __init__(self, backend: Backend, model: str, clock: Clock) -> None:
        self._backend = backend
        self._model = model
        self._clock = clock
        self.num_running = 0
        """Drafts that are being said."""

    async def tokens(self, call: Call, text: Sequence[int], most: int) -> AsyncGenerator[list[int], None]:
        """The likeliest tokens behind `text`, `most` at once, as they come; for a call, which bears what they cost.

        Raises: UpstreamError where it does not answer, or not so.
        """
        facts = Facts(extra=call.facts.extra)
        self.num_running += 1
        try:
            reply = await self._backend.send(self._asked(call, text, most, facts))
            try:
                if reply.status != 200 or reply.stream is None:
                    raise UpstreamGarbage(f"the draft answered with status {reply.status}")
                buffer = EventBuffer()
                while piece := await reply.stream.read():
                    said = [token for event in buffer.feed(piece) for token in _tokens_of(event)]
                    if said:
                        yield said
            finally:
                await reply.aclose()
                tell_charges(facts, facts.extra)
        finally:
            self.num_running -= 1

    def _asked(self, call: Call, text: Sequence[int], most: int, facts: Facts) -> Call:
        model = self._model or call.model
        body = {
            "model": model,
            "prompt": list(text),
            "max_tokens": most,
            "temperature": 0,
            "stream": True,
            "return_token_ids": True,
        }
        return own_completion(
            call,
            body,
            facts,
            model=model,
            query="",
            headers=(),
            include_usage=False,
            timeouts=_TIMEOUTS,
            deadline=min(call.deadline, self._clock.now() + _TIMEOUTS.total_s),
            prompt_cache_key="",
        )


def _tokens_of(event: bytes) -> list[int]:
    """The tokens that an event tells. Raises: UpstreamError where it tells an error, or no tokens beside its text."""
    data = event_data(event)
    if data is None or data == b"[DONE]":
        return []
    try:
        chunk = _decode(data)
    except NOT_JSON:
        raise UpstreamGarbage("the draft's stream cannot be read") from None
    if chunk.error is not None:
        raise UpstreamError("the draft's stream ended with an error")
    if not chunk.choices:
        return []
    tokens = chunk.choices[0].token_ids
    if tokens is None:
        raise UpstreamGarbage("the draft does not tell its token ids: it does not know `return_token_ids`")
    if any(not 0 <= token < _LAST_TOKEN for token in tokens):
        raise UpstreamGarbage("the draft tells a token that none can be")
    return tokens
