"""For batching windows: an upstream that computes one batch after the other, and calls for embeddings.

Its vectors follow from the text alone. A text that begins with "poison" makes it refuse a whole call.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

import msgspec

from backends.charges.usage import Usage
from backends.clock import Clock
from backends.errors import UpstreamError, error_body
from backends.operations import Operation
from backends.protocol import Backend, Call, Capabilities, Reply, Statistics
from gateway.simulate.virtual_loop import VirtualClock, VirtualLoop
from policies.batching.embeddings import EmbeddingBatches
from policies.batching.settings import BatchingPolicy
from tests.support.calls import make_call

FIXED_S = 0.006
EACH_S = 0.00035
_Result = TypeVar("_Result")


def vector(text: object) -> list[float]:
    """Four numbers that no other text has."""
    return [byte / 8 for byte in hashlib.sha256(str(text).encode()).digest()[:4]]


def tokens(text: object) -> int:
    """What the upstream counts: not in proportion to anything that could be guessed."""
    return 2 + len(str(text)) // 3


class SerialEmbedder:
    """A backend that takes `fixed_s` and `each_s` an input, one call at a time. Everything it was asked is kept."""

    def __init__(self, clock: Clock, *, fixed_s: float = FIXED_S, each_s: float = EACH_S) -> None:
        self.name = "embedder"
        self.capabilities = Capabilities(operations=frozenset(Operation))
        self.calls: list[Call] = []
        self.sent_at: list[float] = []
        self.in_flight: list[Call] = []
        self.num_cancelled = 0
        self.outcomes: list[Callable[[Call], Reply] | UpstreamError] = []
        """What the next calls meet instead of an answer."""
        self._clock = clock
        self._fixed_s = fixed_s
        self._each_s = each_s
        self._turn = asyncio.Lock()

    async def open(self) -> None:
        """Nothing to do."""

    async def aclose(self) -> None:
        """Nothing to do."""

    def statistics(self) -> Statistics:
        """Calls."""
        return Statistics(in_flight=len(self.in_flight), sent=len(self.calls))

    async def send(self, call: Call) -> Reply:
        """Vectors, or a refusal."""
        assert call.body is not None
        assert msgspec.json.decode(call.raw) == call.body
        self.calls.append(call)
        self.sent_at.append(self._clock.now())
        self.in_flight.append(call)
        call.facts.attempts += 1
        call.facts.backend = self.name
        call.facts.sent_at = self._clock.now()
        texts = texts_of(call)
        outcome = self.outcomes.pop(0) if self.outcomes else answer
        try:
            async with self._turn:
                await self._clock.sleep(self._fixed_s + self._each_s * len(texts))
        except asyncio.CancelledError:
            self.num_cancelled += 1
            raise
        finally:
            self.in_flight = [each for each in self.in_flight if each is not call]
        if isinstance(outcome, UpstreamError):
            raise outcome
        return outcome(call)


def texts_of(call: Call) -> list[Any]:
    """A call's inputs, one by one."""
    assert call.body is not None
    value = call.body["input"]
    return [value] if isinstance(value, str) or isinstance(value[0], int) else list(value)


def answer(call: Call) -> Reply:
    """An OpenAI-compatible server's answer."""
    texts = texts_of(call)
    bad = [text for text in texts if str(text).startswith("poison")]
    if bad:
        return Reply(400, [], body=error_body(f"cannot read {bad[0]}", type="invalid_request_error"))
    total = sum(map(tokens, texts))
    call.facts.usage = Usage(total)
    # The last one first: only the index says whose it is.
    data = [{"object": "embedding", "index": at, "embedding": vector(text)} for at, text in enumerate(texts)][::-1]
    usage = {"prompt_tokens": total, "total_tokens": total}
    body = {"object": "list", "data": data, "model": call.model, "usage": usage}
    return Reply(200, [(b"content-type", b"application/json")], body=msgspec.json.encode(body))


def embed(value: object, extra: dict[str, Any] | None = None, **fields: Any) -> Call:
    """A call for embeddings; its deadline is far off."""
    return make_call(
        operation=Operation.EMBEDDING, extra={"input": value, **(extra or {})}, **{"deadline": 1e6, **fields}
    )


def make_stage(
    inner: Backend, clock: Clock, *, max_in_flight: int = 1, policy: dict[str, Any] | None = None
) -> EmbeddingBatches:
    """The stage with a policy as in a file."""
    return EmbeddingBatches(inner, BatchingPolicy.model_validate(policy or {}), clock, max_in_flight=max_in_flight)


def vectors_of(reply: Reply) -> list[list[float]]:
    """A whole answer's vectors in the order of their index, which counts from 0."""
    assert reply.status == 200, reply.body
    data = sorted(msgspec.json.decode(reply.body or b"")["data"], key=lambda item: item["index"])
    assert [item["index"] for item in data] == list(range(len(data)))
    return [item["embedding"] for item in data]


def in_virtual_time(scene: Callable[[VirtualClock], Coroutine[Any, Any, _Result]]) -> _Result:
    """Run it on a loop of its own, where waiting takes no time."""
    loop = VirtualLoop()  # type: ignore[abstract]  # what the world is needed for is left out
    return loop.run_until_complete(scene(VirtualClock(loop)))


async def settled(tasks: Sequence[asyncio.Task[Reply]]) -> list[Reply | BaseException]:
    """What became of each."""
    return await asyncio.gather(*tasks, return_exceptions=True)
