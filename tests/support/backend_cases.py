"""What the contract suite needs of a backend under test: the backend, and ways to make its upstream behave.

A new backend joins the suite with one line in `CASES`. One that talks HTTP wraps a server; see `openai_case`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from typing import Protocol

import msgspec
import pytest

from backends.clock import SystemClock
from backends.protocol import Backend
from backends.registry import Registry
from backends.scripted.script import Scripted, ScriptedConfig, ScriptStep
from backends.serving.meter import Meter
from backends.serving.served_engine import EngineBackend, StartedEngine
from policies.batching.embeddings import EmbeddingBatches
from policies.batching.settings import BatchingPolicy
from tests.support.clock import settle
from tests.support.engine.fake_engine import FakeEngine, make_model
from tests.support.servers.anthropic_server import (
    KEY,
    Answer,
    AnthropicServer,
    Request,
    make_error,
    make_event,
    make_message,
    message_events,
    text_block,
)
from tests.support.servers.openai_server import Behaviour, OpenAIServer, error

_SOON_S = 0.1
_NUM_SIGNS_OF_LIFE = 20


class BackendCase(Protocol):
    """A backend that is open, and its upstream's strings; each setting holds for every call from then on."""

    @property
    def backend(self) -> Backend:
        """What is tested."""

    def answer(self, text: str | None = None, delay_s: float = 0.0) -> None:
        """Answer with `text`, or else repeat the question; wait `delay_s` before each event."""

    def cut(self, after_events: int) -> None:
        """Break off."""

    def stall(self, after_events: int) -> None:
        """Go silent for ever."""

    def keep_alive(self, every_s: float) -> None:
        """Show signs of life, but no event of an answer."""

    def fail(self, status: int, retry_after_s: int) -> None:
        """Answer with an error."""

    async def refuse(self) -> None:
        """Take no connections."""

    async def wait_asked(self) -> None:
        """Until the upstream has a call in hand. Raises: TimeoutError."""

    async def wait_left(self) -> None:
        """Until the upstream has seen that the caller left, 100 ms at most. Raises: TimeoutError."""


class ScriptedCase:
    """The scripted backend is its own upstream; `backend` may be a stage around it."""

    def __init__(self, leaf: Scripted, backend: Backend | None = None) -> None:
        self.backend: Backend = backend or leaf
        self._leaf = leaf

    def answer(self, text: str | None = None, delay_s: float = 0.0) -> None:
        delay = f"{delay_s:.3f}s"
        self._play({"delay": delay} if text is None else {"delay": delay, "reply": text})

    def cut(self, after_events: int) -> None:
        self._play({"cut_after": after_events})

    def stall(self, after_events: int) -> None:
        self._play({"stall_after": after_events})

    def keep_alive(self, every_s: float) -> None:
        # Without a connection there is nothing to keep alive: it is silent.
        self.stall(0)

    def fail(self, status: int, retry_after_s: int) -> None:
        self._play({"status": status, "retry_after": f"{retry_after_s}s"})

    async def refuse(self) -> None:
        self._play({"unreachable": True})

    async def wait_asked(self) -> None:
        await settle()
        assert self.backend.statistics().in_flight

    async def wait_left(self) -> None:
        async with asyncio.timeout(_SOON_S):
            while self.backend.statistics().in_flight:
                await asyncio.sleep(0.001)

    def _play(self, step: dict[str, object]) -> None:
        self._leaf.play(ScriptStep.model_validate(step))


class ServerCase:
    """A backend whose upstream is the OpenAI-compatible test server."""

    def __init__(self, backend: Backend, server: OpenAIServer) -> None:
        self.backend = backend
        self._server = server

    def answer(self, text: str | None = None, delay_s: float = 0.0) -> None:
        self._server.default = Behaviour(text=text, event_delay_s=delay_s)

    def cut(self, after_events: int) -> None:
        self._server.default = Behaviour(cut_after_events=after_events)

    def stall(self, after_events: int) -> None:
        self._server.default = Behaviour(stall_after_events=after_events)

    def keep_alive(self, every_s: float) -> None:
        self._server.default = Behaviour(events=(b": ping\n\n",) * _NUM_SIGNS_OF_LIFE, event_delay_s=every_s)

    def fail(self, status: int, retry_after_s: int) -> None:
        self._server.default = error(status, retry_after=str(retry_after_s))

    async def refuse(self) -> None:
        await self._server.refuse()

    async def wait_asked(self) -> None:
        await self._server.wait_request(0)

    async def wait_left(self) -> None:
        await self._server.wait_disconnected(-1, _SOON_S)


class AnthropicCase:
    """A backend whose upstream is the Messages test server."""

    def __init__(self, backend: Backend, server: AnthropicServer) -> None:
        self.backend = backend
        self._server = server
        self.answer()

    def answer(self, text: str | None = None, delay_s: float = 0.0) -> None:
        def choose(request: Request) -> Answer:
            message = make_message(text_block(request.question if text is None else text))
            if request.body.get("stream"):
                return Answer(events=message_events(message), delay_s=delay_s)
            return Answer(body=msgspec.json.encode(message), delay_s=delay_s)

        self._choose = self._server.answer = choose

    def cut(self, after_events: int) -> None:
        self._break_off(after_events, cut=True)

    def stall(self, after_events: int) -> None:
        self._break_off(after_events, hold=True)

    def keep_alive(self, every_s: float) -> None:
        self._server.answer = Answer(events=[make_event("ping")] * _NUM_SIGNS_OF_LIFE, delay_s=every_s)

    def fail(self, status: int, retry_after_s: int) -> None:
        body = msgspec.json.encode(make_error("api_error", "upstream says no"))
        self._server.answer = Answer(status=status, body=body, headers={"retry-after": str(retry_after_s)})

    async def refuse(self) -> None:
        await self._server.refuse()

    async def wait_asked(self) -> None:
        async with asyncio.timeout(10):
            while not self._server.requests:
                await asyncio.sleep(0.001)

    async def wait_left(self) -> None:
        async with asyncio.timeout(_SOON_S):
            await self._server.client_left.wait()

    def _break_off(self, after_events: int, *, cut: bool = False, hold: bool = False) -> None:
        def choose(request: Request) -> Answer:
            answer = self._choose(request)
            events = answer.events[:after_events] if answer.events is not None else None
            return replace(answer, events=events, cut=cut, hold=hold)

        self._server.answer = choose


class EngineCase:
    """The engine's backend, with an engine that does as it is told."""

    def __init__(self, backend: Backend, engine: FakeEngine) -> None:
        self.backend = backend
        self._engine = engine

    def answer(self, text: str | None = None, delay_s: float = 0.0) -> None:
        self._engine.reply, self._engine.delay_s = text, delay_s

    def cut(self, after_events: int) -> None:
        self._engine.cut_after = after_events

    def stall(self, after_events: int) -> None:
        self._engine.stall_after = after_events

    def keep_alive(self, every_s: float) -> None:
        # There is no connection to keep alive: it is silent.
        self.stall(0)

    def fail(self, status: int, retry_after_s: int) -> None:
        pytest.skip("the engine has no HTTP statuses; what it refuses is tested with its backend")

    async def refuse(self) -> None:
        self._engine.is_stopped = True

    async def wait_asked(self) -> None:
        async with asyncio.timeout(10):
            while not self._engine.requests:
                await asyncio.sleep(0.001)

    async def wait_left(self) -> None:
        async with asyncio.timeout(_SOON_S):
            while self._engine.num_active:
                await asyncio.sleep(0.001)


@asynccontextmanager
async def scripted_case() -> AsyncIterator[BackendCase]:
    """`type: scripted`."""
    backend = Scripted("under-test", ScriptedConfig(), SystemClock())
    await backend.open()
    yield ScriptedCase(backend)
    await backend.aclose()


@asynccontextmanager
async def batched_case() -> AsyncIterator[BackendCase]:
    """`type: scripted` behind batching windows."""
    leaf = Scripted("under-test", ScriptedConfig(), SystemClock())
    backend = EmbeddingBatches(leaf, BatchingPolicy(), SystemClock(), max_in_flight=1)
    await backend.open()
    yield ScriptedCase(leaf, backend)
    await backend.aclose()


@asynccontextmanager
async def openai_case() -> AsyncIterator[BackendCase]:
    """`type: openai`, over a real socket."""
    kind = Registry().kind("openai")
    async with OpenAIServer() as server:
        backend = kind.build("under-test", kind.config.model_validate({"base_url": server.base_url}), SystemClock())
        await backend.open()
        yield ServerCase(backend, server)
        await backend.aclose()


@asynccontextmanager
async def anthropic_case() -> AsyncIterator[BackendCase]:
    """`type: anthropic`, over a real socket."""
    kind = Registry().kind("anthropic")
    async with AnthropicServer() as server:
        settings = {"base_url": server.base_url, "api_key": "env:KEY"}
        config = kind.config.model_validate(settings, context={"environ": {"KEY": KEY}})
        backend = kind.build("under-test", config, SystemClock())
        await backend.open()
        yield AnthropicCase(backend, server)
        await backend.aclose()


@asynccontextmanager
async def engine_case() -> AsyncIterator[BackendCase]:
    """`type: engine`, on an engine without a model."""
    engine = FakeEngine()
    served = StartedEngine(engine, make_model(), "fp_test")
    backend = EngineBackend("under-test", SystemClock(), lambda: served, meter=Meter("model", 8), max_requests=100)
    await backend.open()
    yield EngineCase(backend, engine)
    await backend.aclose()


CASES: dict[str, Callable[[], AbstractAsyncContextManager[BackendCase]]] = {
    "scripted": scripted_case,
    "batched": batched_case,
    "openai": openai_case,
    "anthropic": anthropic_case,
    "engine": engine_case,
}
