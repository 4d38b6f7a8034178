"""What the contract suite needs of a backend under test: the backend, and ways to make its upstream behave.

A new backend joins the suite with one line in `CASES`. One that talks HTTP wraps a server; see `openai_case`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

from backends.clock import SystemClock
from backends.protocol import Backend
from backends.registry import Registry
from backends.scripted import Scripted, ScriptedConfig, Step
from tests.support.clock import settle
from tests.support.openai_server import Behaviour, OpenAIServer, error

_SOON_S = 0.1


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

    def fail(self, status: int, retry_after_s: int) -> None:
        """Answer with an error."""

    async def refuse(self) -> None:
        """Take no connections."""

    async def wait_asked(self) -> None:
        """Until the upstream has a call in hand. Raises: TimeoutError."""

    async def wait_left(self) -> None:
        """Until the upstream has seen that the caller left, 100 ms at most. Raises: TimeoutError."""


class ScriptedCase:
    """The scripted backend is its own upstream."""

    def __init__(self, backend: Scripted) -> None:
        self.backend = backend

    def answer(self, text: str | None = None, delay_s: float = 0.0) -> None:
        delay = f"{delay_s:.3f}s"
        self._play({"delay": delay} if text is None else {"delay": delay, "reply": text})

    def cut(self, after_events: int) -> None:
        self._play({"cut_after": after_events})

    def stall(self, after_events: int) -> None:
        self._play({"stall_after": after_events})

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
        self.backend.play(Step.model_validate(step))


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

    def fail(self, status: int, retry_after_s: int) -> None:
        self._server.default = error(status, retry_after=str(retry_after_s))

    async def refuse(self) -> None:
        await self._server.refuse()

    async def wait_asked(self) -> None:
        await self._server.wait_request(0)

    async def wait_left(self) -> None:
        await self._server.wait_disconnected(-1, _SOON_S)


@asynccontextmanager
async def scripted_case() -> AsyncIterator[BackendCase]:
    """`type: scripted`."""
    backend = Scripted("under-test", ScriptedConfig(), SystemClock())
    await backend.open()
    yield ScriptedCase(backend)
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


CASES: dict[str, Callable[[], AbstractAsyncContextManager[BackendCase]]] = {
    "scripted": scripted_case,
    "openai": openai_case,
}
