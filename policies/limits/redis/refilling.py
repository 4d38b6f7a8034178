"""A Redis that has lost what was spent under budgets is told what somebody else knows of it, before it is counted with.

It has where it is empty, and where it is another than the one that was told before: restarted from an older file, or
a replica after a failover, which may lack the newest. Its name for its run tells them apart.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TypeAlias

from backends.clock import Clock
from policies.limits.counters import SpentBefore
from policies.limits.redis.address import raise_refusal
from policies.limits.redis.packing import pack_spent
from policies.limits.redis.run import NAMELESS, RedisRun
from policies.limits.redis.scripts import Scripts, pack_command
from policies.limits.redis.wire import RedisWire
from policies.loop import Loop

ReadSpentBefore: TypeAlias = Callable[[], Awaitable[Sequence[SpentBefore]]]
"""Reads what was spent in windows that are open, which may fail in any way."""

_MOST_WAIT_S = 2.0
_MAX_AT_ONCE = 200
"""Budgets in one command, which takes Redis about a millisecond."""

_LOGGER = logging.getLogger(__name__)


class Refilling:
    """Of one process; others may do the same at the same time. Without a reader it does nothing."""

    def __init__(self, scripts: Scripts, read: ReadSpentBefore | None, clock: Clock) -> None:
        self._scripts = scripts
        self._read = read
        self._run = NAMELESS
        self._wire: RedisWire | None = None
        self._ahead_s = b"0"
        self._is_asked = asyncio.Event()
        self._is_over = asyncio.Event()
        self._is_over.set()
        self._is_told = True
        self._is_started = False
        self._loop = Loop("refilling budgets in redis", clock, of_service=True)

    async def aclose(self) -> None:
        """End it. Safe to call twice."""
        await self._loop.aclose()

    async def refill(self, wire: RedisWire, run: RedisRun, refilled: bytes | None, ahead_s: bytes) -> None:
        """Have that Redis told, unless it was: `refilled` is the run that it says was. Waits for it, but not for long:
        a ledger that is slow or away keeps no call back, and is asked again with the next renewal.
        """
        if self._read is None or refilled == run.name:
            return
        self._wire, self._run, self._ahead_s = wire, run, ahead_s
        if not self._is_started:
            self._is_started = True
            self._loop.start(self._keep)
        if not self._is_over.is_set():
            return
        self._is_over.clear()
        self._is_asked.set()
        was_told, self._is_told = self._is_told, False
        with suppress(TimeoutError):
            async with asyncio.timeout(_MOST_WAIT_S):
                await self._is_over.wait()
        if was_told and not self._is_told:
            _LOGGER.warning("redis lacks what was spent of budgets before, until the ledger says it")

    async def _keep(self) -> None:
        while True:
            await self._is_asked.wait()
            self._is_asked.clear()
            try:
                await self._tell()
            finally:
                self._is_over.set()

    async def _tell(self) -> None:
        """Raises whatever the ledger's store and the connection come to; the loop goes on."""
        assert self._read is not None, "nobody asks otherwise"
        known = await self._read()
        wire, run = self._wire, self._run
        assert wire is not None, "who has asked has one"
        for first in range(0, len(known), _MAX_AT_ONCE):
            packed = pack_spent(known[first : first + _MAX_AT_ONCE])
            raise_refusal(await wire.ask(self._scripts.command("refill", self._ahead_s, packed)))
        raise_refusal(await wire.ask(pack_command(b"SET", self._scripts.key + b":refilled", run.name)))
        self._is_told = True
        _LOGGER.info("redis was told what the ledger knows of %d budgets", len(known))
