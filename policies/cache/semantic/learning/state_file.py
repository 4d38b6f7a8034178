"""What decisions have learned, in one file of this process; it is read at the start and written after changes."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from pathlib import Path

import msgspec

from backends.errors import ConfigurationError
from policies.atomic_file import DamagedFile, read_checked, write_atomically
from policies.cache.semantic.contracts import Decider
from policies.passing import is_passing

_MAGIC = b"slipstream decisions 1\n"
_WRITE_EVERY_S = 2.0
_CONTENT = msgspec.msgpack.Decoder(dict[bytes, bytes])

_LOGGER = logging.getLogger(__name__)


class StateFile:
    """A `StateStore` in a file that no other process writes. A kill loses the last seconds, never the file."""

    def __init__(self, path: Path, *, write_every_s: float = _WRITE_EVERY_S) -> None:
        self._path = path
        self._write_every_s = write_every_s
        self._states: dict[bytes, bytes] = {}
        self._written: dict[bytes, bytes] = {}
        self._is_changed = asyncio.Event()
        self._is_closing = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.num_errors = 0

    async def open(self) -> None:
        """Read the file. One that is damaged is put aside, and learning begins anew.

        Raises: ConfigurationError where there is and can be no such folder.
        """
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
        self._is_closing.clear()
        self._task = asyncio.get_running_loop().create_task(self._write_until_closed())

    async def aclose(self) -> None:
        """Write what is unwritten. Safe to call twice."""
        if self._task is None:
            return
        self._is_closing.set()
        self._is_changed.set()
        await self._task
        self._task = None

    async def load(self, scope: bytes) -> bytes | None:
        """What was last saved for that scope."""
        return self._states.get(scope)

    def save(self, scope: bytes, dumped: bytes) -> None:
        """Keep it; it is in the file a moment later."""
        if self._states.get(scope) != dumped:
            self._states[scope] = dumped
            self._is_changed.set()

    def share(self, scope: bytes, decider: Decider) -> Decider:
        """The decider itself: nobody shares this file."""
        return decider

    async def _write_until_closed(self) -> None:
        is_last = False
        while not is_last:
            await self._is_changed.wait()
            await self._pause()
            self._is_changed.clear()
            is_last = self._is_closing.is_set()
            if self._states != self._written:
                await self._write(self._states.copy())

    async def _write(self, states: dict[bytes, bytes]) -> None:
        try:
            await asyncio.to_thread(lambda: write_atomically(self._path, msgspec.msgpack.encode(states), _MAGIC))
        except OSError as error:
            self.num_errors += 1
            self._is_changed.set()
            _LOGGER.warning("what the semantic cache has learned is not written: %s", error)
        else:
            self._written = states

    async def _pause(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._write_every_s):
                await self._is_closing.wait()

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
