"""From a request of a trace to the call that a client would have sent, with a made-up prompt of the same length.

Prompts that share blocks in the trace share their text, so whatever looks at prompts sees the trace's prefixes.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from backends.operations import Operation
from backends.protocol import Call, Facts, Priority, Slo, Timeouts
from backends.simulation.answers import CHARACTERS_PER_TOKEN
from gateway.simulate.traces import BLOCK_TOKENS, TraceRequest
from policies.keys.settings import KeyPolicy
from policies.speculation.auto.told import DRAFT_LOSS

PATH = "/chat/completions"
_BLOCK_CHARACTERS = BLOCK_TOKENS * CHARACTERS_PER_TOKEN
_REST_OF_BLOCK = b"=" * (_BLOCK_CHARACTERS - 17)
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
        before = b'{"model":%b,"messages":[{"role":"user","content":"' % msgspec.json.encode(model)
        after = b'"}],"stream":true,"output_tokens":%d,"cached_tokens":%d}' % (
            request.output_tokens,
            request.cached_tokens,
        )
        # The prompt has no character that JSON would write in another way.
        raw = b"".join([before, *prompt_pieces(request, number), after])
        labels = {DRAFT_LOSS: request.labels.draft_loss} if request.labels is not None else {}
        text = str(memoryview(raw)[len(before) : -len(after)], "ascii")
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
                **labels,
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


def prompt_pieces(request: TraceRequest, number: int) -> list[bytes]:
    """A text of so many tokens, in pieces. What no block id stands for is told apart by the request's `number`."""
    length = request.prompt_tokens * CHARACTERS_PER_TOKEN
    blocks = request.blocks[: -(-length // _BLOCK_CHARACTERS)]
    # The digits that differ come first, for what is short shows no more than these.
    pieces = [piece for block in blocks for piece in ((b"%016x#" % block)[::-1], _REST_OF_BLOCK)]
    lacking = length - _BLOCK_CHARACTERS * len(blocks)
    if lacking > 0:
        pieces.append(((b"%08x" % number)[::-1] * -(-lacking // 8))[:lacking])
    elif lacking < 0:
        pieces[-2:] = [b"".join(pieces[-2:])[:lacking]]
    return pieces
