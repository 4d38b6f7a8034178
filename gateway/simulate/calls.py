"""From a request of a trace to the call that a client would have sent, with a made-up prompt of the same length.

Prompts that share blocks in the trace share their text, so whatever looks at prompts sees the trace's prefixes.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from backends.protocol import Call, Facts, Operation, Priority, Slo, Timeouts
from backends.simulated_answers import CHARACTERS_PER_TOKEN
from gateway.simulate.traces import BLOCK_TOKENS, TraceRequest
from policies.schema import KeyPolicy

PATH = "/chat/completions"
_BLOCK_CHARACTERS = BLOCK_TOKENS * CHARACTERS_PER_TOKEN
_HEADERS = ((b"content-type", b"application/json"),)


class CallMaker:
    """Makes calls of one simulation. `model` is asked for where the trace names none; `keys` are by name of client."""

    def __init__(self, model: str, keys: Mapping[str, KeyPolicy]) -> None:
        self._model = model
        self._keys = keys

    def model_of(self, request: TraceRequest) -> str:
        """The model that the request asks for."""
        return request.model or self._model

    def tenant_of(self, request: TraceRequest) -> str:
        """The tenant of the policy's key of that name, else the client itself."""
        key = self._keys.get(request.client)
        return key.tenant if key is not None else request.client or "default"

    def call(self, request: TraceRequest, *, number: int, route: str, timeouts: Timeouts, slo: Slo, now: float) -> Call:
        """The call, as the endpoint would hand it to the route's stack at `now`."""
        model = self.model_of(request)
        key = self._keys.get(request.client)
        text = prompt_text(request, number)
        name = msgspec.json.encode(model)
        # The text has no character that JSON would write in another way.
        raw = (
            b'{"model":%b,"messages":[{"role":"user","content":"%b"}],"stream":true,"output_tokens":%d,'
            b'"cached_tokens":%d}'
        ) % (name, text.encode("ascii"), request.output_tokens, request.cached_tokens)
        return Call(
            operation=Operation.CHAT,
            path=PATH,
            raw=raw,
            body={
                "model": model,
                "messages": [{"role": "user", "content": text}],
                "stream": True,
                "output_tokens": request.output_tokens,
                "cached_tokens": request.cached_tokens,
            },
            model=model,
            deadline=now + timeouts.total_s,
            facts=Facts(),
            headers=_HEADERS,
            stream=True,
            include_usage=True,
            tenant=self.tenant_of(request),
            key_id=request.client,
            route=route,
            request_id=f"sim-{number}",
            timeouts=timeouts,
            slo=slo,
            priority=Priority[key.priority.upper()] if key is not None else Priority.NORMAL,
        )


def prompt_text(request: TraceRequest, number: int) -> str:
    """A text of so many tokens. What no block id stands for is told apart by the request's `number`."""
    length = request.prompt_tokens * CHARACTERS_PER_TOKEN
    text = "".join([_filled(f"b{block:07x}", _BLOCK_CHARACTERS) for block in request.blocks])
    if len(text) < length:
        # The digits that differ first, for short prompts show no more than these.
        text += _filled(f"{number:08x}"[::-1], length - len(text))
    return text[:length]


def _filled(word: str, length: int) -> str:
    """Eight characters over and over, in two rounds: few copies of many characters are quicker than many of few."""
    return (word * 16 * -(-length // 128))[:length]
