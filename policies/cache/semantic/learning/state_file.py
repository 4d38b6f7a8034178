"""What decisions have learned, in one file of this process; it is read at the start and written after changes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

import msgspec

from backends.clock import Clock
from backends.errors import ConfigurationError
from policies.atomic_file import DamagedFile, read_checked, write_atomically
from policies.cache.semantic.contracts import Decider
from policies.loop import Loop
from policies.passing import is_passing

_MAGIC = b"slipstream decisions 1\n"
_WRITE_EVERY_S = 2.0
_CONTENT = msgspec.msgpack.Decoder(dict[bytes, bytes])

_LOGGER = logging.getLogger(__name__)


class StateFile:
    """A `StateStore` in a file that no other process writes: `is_ours` says whether none has it. Where one has, nothing
    is read and nothing written. A kill loses the last seconds, never the file.
    """

    def __init__(
        self,
        path: Path,
        clock: Clock,
        *,
        is_ours: Callable[[], bool] = lambda: True,
        write_every_s: float = _WRITE_EVERY_S,
    ) -> None:
        self._path = path
        self._clock = clock
        self._is_ours = is_ours
        self._write_every_s = write_every_s
        self._states: dict[bytes, bytes] = {}
        self._written: dict[bytes, bytes] = {}
        self._loop = Loop("semantic_decisions", clock)
        self._is_open = False
        self._writing = asyncio.Lock()
        self.num_errors = 0

    async def open(self) -> None:
        """Read the file. One that is damaged is put aside, and learning begins anew.

        Raises: ConfigurationError where there is and can be no such folder.
        """
        if not self._is_ours():
            return
        try:
            self._states = await asyncio.to_thread(self._read)
        except OSError as error:
            if not is_passing(error):
                raise ConfigurationError(
                    f"the semantic cache cannot keep its state in {self._path}: {error}"
                ) from error
            self.num_errors += 1
            _LOGGER.error("the semantic cache learns anew, %s cannot be used for now: %s", self._path, error)
        self._written = self._states.copy()
        self._loop.start(self._write_until_cancelled)
        self._is_open = True

    async def aclose(self) -> None:
        """Write what is unwritten. Safe to call twice."""
        if not self._is_open:
            return
        self._is_open = False
        await self._loop.aclose()
        await self._write()

    async def load(self, scope: bytes) -> bytes | None:
        """What was last saved for that scope."""
        return self._states.get(scope)

    def save(self, scope: bytes, dumped: bytes) -> None:
        """Keep it; it is in the file a moment later."""
        self._states[scope] = dumped

    def share(self, scope: bytes, decider: Decider) -> Decider:
        """The decider itself: nobody shares this file."""
        return decider

    async def _write_until_cancelled(self) -> None:
        while True:
            await self._clock.sleep(self._write_every_s)
            # Shielded: the thread would go on writing, beside whoever writes last.
            await asyncio.shield(self._write())

    async def _write(self) -> None:
        async with self._writing:
            states = self._states.copy()
            if states == self._written or not self._is_ours():
                return
            try:
                await asyncio.to_thread(lambda: write_atomically(self._path, msgspec.msgpack.encode(states), _MAGIC))
            except OSError as error:
                self.num_errors += 1
                _LOGGER.warning("what the semantic cache has learned is not written: %s", error)
            else:
                self._written = states

    def _read(self) -> dict[bytes, bytes]:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            content = read_checked(self._path, _MAGIC)
            states = {} if content is None else _CONTENT.decode(content)
        except (DamagedFile, msgspec.MsgspecError) as error:
            aside = self._path.with_name(self._path.name + ".damaged")
            self._path.replace(aside)
            _LOGGER.warning("the semantic cache learns anew; the file is kept as %s: %s", aside, error)
            return {}
        return states
