"""Fakes for what surrounds a cache: an upstream whose answers the test gives piece by piece, and whole answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from backends.charges.usage import Usage
from backends.clock import Clock
from backends.errors import SlipstreamError
from backends.operations import Operation
from backends.protocol import Call, Capabilities, Headers, Reply, Statistics
from backends.stream import Stream
from policies.cache.exact import ExactCache
from policies.cache.settings import CachePolicy
from policies.cache.store import Store
from policies.cache.store_memory import MemoryEntryStore
from tests.support.clock import settle

JSON: Headers = [(b"content-type", b"application/json")]
SSE: Headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
HEAD: dict[str, Any] = {"id": "chatcmpl-1", "created": 1_700_000_000, "model": "test-model"}
USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}


def chat_answer(text: str = "hello there", **fields: Any) -> bytes:
    """A whole chat answer."""
    message = {"role": "assistant", "content": text, "refusal": None}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
    return msgspec.json.encode({**HEAD, "object": "chat.completion", "choices": [choice], "usage": USAGE, **fields})


def event(value: object) -> bytes:
    """One event with this value as its data."""
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


def chat_chunk(delta: Mapping[str, Any], finish_reason: str | None = None, **choice: Any) -> bytes:
    """One event of a chat stream."""
    part = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason, **choice}
    return event({**HEAD, "object": "chat.completion.chunk", "choices": [part]})


USAGE_EVENT = event({**HEAD, "object": "chat.completion.chunk", "choices": [], "usage": USAGE})
DONE_EVENT = b"data: [DONE]\n\n"


def chat_events(*words: str, finish_reason: str = "stop") -> list[bytes]:
    """The events of a whole chat stream that says `words`, the usage included."""
    return [
        chat_chunk({"role": "assistant", "content": ""}),
        *(chat_chunk({"content": word}) for word in words or ("hello ", "there")),
        chat_chunk({}, finish_reason),
        USAGE_EVENT,
        DONE_EVENT,
    ]


class Exchange:
    """One call that has reached the upstream; also the source of its stream.

    `is_over`: the test has given it its end, good or bad.
    """

    def __init__(self, call: Call) -> None:
        self.call = call
        self.is_over = False
        self.num_read = 0
        self._reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._pieces: asyncio.Queue[bytes | SlipstreamError] = asyncio.Queue()
        self._has_been_closed = False

    @property
    def is_closed(self) -> bool:
        """Nobody wants it any more."""
        return self._has_been_closed or self._reply.cancelled()

    async def reply(self) -> Reply:
        """The reply once the test has given it."""
        return await self._reply

    def answer(self, body: bytes, status: int = 200, headers: Headers = JSON) -> None:
        """Give a whole answer."""
        self.call.facts.backend = "upstream"
        self.call.facts.usage = Usage(3, 2)
        self.is_over = True
        self._reply.set_result(Reply(status, [*headers], body=body))

    def begin(self, status: int = 200, headers: Headers = SSE) -> None:
        """Begin a stream."""
        self.call.facts.backend = "upstream"
        self._reply.set_result(Reply(status, [*headers], stream=Stream(self)))

    def feed(self, *pieces: bytes) -> None:
        """The next pieces of the stream."""
        for piece in pieces:
            self._pieces.put_nowait(piece)

    def end(self) -> None:
        """End the stream cleanly."""
        self.is_over = True
        self.call.facts.usage = Usage(3, 2)
        self._pieces.put_nowait(b"")

    def fail(self, error: SlipstreamError) -> None:
        """Have no answer, or break the stream off."""
        self.is_over = True
        if self._reply.done():
            self._pieces.put_nowait(error)
        else:
            self._reply.set_exception(error)

    async def read(self) -> bytes:
        """The next piece that the test has given."""
        piece = await self._pieces.get()
        if isinstance(piece, SlipstreamError):
            raise piece
        self.num_read += 1
        return piece

    async def aclose(self) -> None:
        """Nobody wants the rest. Closing takes a moment, and has to be let finish."""
        await asyncio.sleep(0)
        self._has_been_closed = True


class Upstream:
    """A backend that the test plays: each call waits as an `Exchange`, unless `respond` answers it at once."""

    name = "upstream"
    capabilities = Capabilities(operations=frozenset(Operation))

    def __init__(self, respond: Callable[[Exchange], None] | None = None) -> None:
        self.exchanges: list[Exchange] = []
        self.is_open = False
        self._respond = respond

    async def open(self) -> None:
        """Remember it."""
        self.is_open = True

    async def aclose(self) -> None:
        """Remember it."""
        self.is_open = False

    def statistics(self) -> Statistics:
        """Calls taken."""
        return Statistics(sent=len(self.exchanges))

    async def send(self, call: Call) -> Reply:
        """Wait for what the test answers."""
        exchange = Exchange(call)
        self.exchanges.append(exchange)
        if self._respond is not None:
            self._respond(exchange)
        return await exchange.reply()


def answer_chat(exchange: Exchange) -> None:
    """Answer a chat call at once, in the form it asks for."""
    if exchange.call.stream:
        exchange.begin()
        exchange.feed(*chat_events())
        exchange.end()
    else:
        exchange.answer(chat_answer())


def make_cache(
    upstream: Upstream, clock: Clock, store: Store | None = None, route: str = "route", **policy: Any
) -> ExactCache:
    """An exact cache before the upstream; `policy` as in a policy file."""
    store = store or MemoryEntryStore(64 * 1024**2, clock)
    return ExactCache(upstream, CachePolicy.model_validate(policy), store, clock, route)


async def start(cache: ExactCache, *calls: Call) -> list[asyncio.Task[Reply]]:
    """Send these calls one after the other, each as far as it gets by itself."""
    tasks = []
    for call in calls:
        tasks.append(asyncio.ensure_future(cache.send(call)))
        await settle()
    return tasks
