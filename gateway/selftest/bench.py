"""The test bench of a check: the copied policy with its lying upstreams, and a gateway that runs it.

A check with a scenario of its own calls `upstreams(n)` and `gateway(policy)`, which do not depend on the copied policy.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Self

from gateway.selftest.client import Address, Fields, ReceivedAnswer
from gateway.selftest.run import CHAT, Child, Policy, ask, child_gateway
from gateway.selftest.subject import ChatRoute, Key, Subject
from gateway.selftest.upstream import LyingUpstream

Start = Callable[..., AbstractAsyncContextManager[Child]]
"""Starts a gateway, as `child_gateway` does."""


class Bench:
    """Entered before checks run, and used by one check at a time. `start` is for gateways of other projects."""

    def __init__(
        self, subject: Subject, folder: Path, *, is_quick: bool, seed: int = 1, start: Start = child_gateway
    ) -> None:
        self._start = start
        self.subject = subject
        self.folder = folder
        self.is_quick = is_quick
        self.random = Random(seed)
        self.own: dict[str, LyingUpstream] = {}
        """The upstreams of the copied policy, by the name of their backend."""
        self._stack = AsyncExitStack()
        self._shared: Child | None = None
        self._shared_stack = AsyncExitStack()
        self._stores: object = None
        self._num_reloads = 0

    async def __aenter__(self) -> Self:
        for name in self.subject.backends:
            self.own[name] = await self._stack.enter_async_context(LyingUpstream())
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._shared_stack.aclose()
        await self._stack.aclose()

    def count(self, quick: int, full: int) -> int:
        """How often a check repeats something: less often in a quick run."""
        return quick if self.is_quick else full

    async def sleep(self, seconds: float) -> None:
        """Wait, while the gateway goes on."""
        await asyncio.sleep(seconds)

    async def clear(self) -> None:
        """Prepare for the next check: the upstreams are honest again and forget all requests."""
        for upstream in self.own.values():
            upstream.forget()

    def all_of(self, way: ChatRoute) -> list[LyingUpstream]:
        """The lying upstreams of a route."""
        return [self.own[name] for name in dict.fromkeys(way.backends)]

    def num_requests(self) -> int:
        """How many requests the upstreams of the copied policy have received in this check."""
        return sum(upstream.num_requests for upstream in self.own.values())

    def policy(self, way: ChatRoute | None = None, **sections: Any) -> dict[str, Any]:
        """The copied policy with its upstreams' addresses; `sections` replace those of one route, None removes one."""
        return self.subject.at({name: upstream.url for name, upstream in self.own.items()}, way, **sections)

    @asynccontextmanager
    async def gateway(
        self,
        policy: Policy | None = None,
        *,
        environ: Mapping[str, str] | None = None,
        args: Sequence[str] = (),
        first: str = "",
        is_alone: bool = False,
    ) -> AsyncIterator[Child]:
        """A gateway that runs a policy, by default the copied one, with closed circuit breakers.

        To save time, the process of the previous check is reused and reloads the policy, unless the gateway needs an
        environment of its own or the check stops it (`is_alone`). Raises: DidNotStart.
        """
        made = dict(policy) if policy is not None else self.policy()
        if is_alone or environ or args or first:
            async with self._start(made, self.folder, environ=environ, args=args, first=first) as child:
                yield child
            return
        yield await self._shared_over(made)

    @asynccontextmanager
    async def upstreams(self, count: int = 1) -> AsyncIterator[list[LyingUpstream]]:
        """Lying upstreams besides those of the copied policy."""
        async with AsyncExitStack() as stack:
            yield [await stack.enter_async_context(LyingUpstream()) for _ in range(count)]

    def new_folder(self, name: str) -> Path:
        """An empty folder."""
        self._num_reloads += 1
        folder = self.folder / f"{name}-{self._num_reloads}"
        folder.mkdir()
        return folder

    async def _shared_over(self, policy: dict[str, Any]) -> Child:
        # The comment changes the policy's revision, so that a reload rebuilds everything.
        self._num_reloads += 1
        text = f"# {self._num_reloads}\n{json.dumps(policy)}"
        stores = policy.get("stores")
        child = self._shared
        if child is not None and child.process.poll() is None and self._stores == stores and await child.reload(text):
            return child
        await self._shared_stack.aclose()
        self._shared_stack = AsyncExitStack()
        self._shared = await self._shared_stack.enter_async_context(self._start(text, self.folder))
        self._stores = stores
        return self._shared


@dataclass(frozen=True, slots=True)
class GatewayTarget:
    """A gateway as its clients see it. `child` is None for one that this process has not started."""

    address: Address
    model: str
    key: str
    headers: tuple[tuple[str, str], ...] = ()
    child: Child | None = None
    is_quick: bool = True

    async def ask(
        self, path: str, body: object = None, *, headers: Fields = (), timeout_s: float = 30.0
    ) -> ReceivedAnswer:
        """One request with its key. Raises: OSError, TimeoutError."""
        fields = (*self.headers, *headers)
        return await ask(self.address, path, body, key=self.key, headers=fields, timeout_s=timeout_s)

    async def chat(self, text: str, *, stream: bool = False, **more: object) -> ReceivedAnswer:
        """One chat. Raises: OSError, TimeoutError."""
        return await self.ask(CHAT, chat(text, self.model, stream=stream, **more))


def target_of(child: Child, way: ChatRoute, *, is_quick: bool) -> GatewayTarget:
    """A gateway that this process has started, as its clients see it."""
    return GatewayTarget(child.address, way.model, way.secret, way.headers, child, is_quick)


def chat(text: str, model: str, *, stream: bool = False, **more: object) -> dict[str, object]:
    """A chat request."""
    return {"model": model, "messages": [{"role": "user", "content": text}], "stream": stream, **more}


async def ask_way(
    child: Child,
    way: ChatRoute,
    text: str,
    *,
    stream: bool = False,
    key: Key | None = None,
    headers: Fields = (),
    timeout_s: float = 40.0,
    **more: object,
) -> ReceivedAnswer:
    """Send one chat that takes the route. Raises: OSError, TimeoutError."""
    secret = key.secret if key is not None else way.secret
    body = chat(text, way.model, stream=stream, **more)
    return await ask(child.address, CHAT, body, key=secret, headers=(*way.headers, *headers), timeout_s=timeout_s)


def quantile(values: Iterable[float], share: float) -> float:
    """The value below which that share of all lies; 0 of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0


async def at_once(count: int, works: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Run coroutines, at most `count` at once; the first that fails cancels the others."""
    gate = asyncio.Semaphore(count)

    async def one(work: Coroutine[Any, Any, None]) -> None:
        async with gate:
            await work

    try:
        async with asyncio.TaskGroup() as group:
            for work in works:
                group.create_task(one(work))
    finally:
        for work in works:
            work.close()
