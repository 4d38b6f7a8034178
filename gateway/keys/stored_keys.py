"""The stored keys of one process and raises of budgets, kept up to date: each two seconds it reads what has changed.

While the store is away the keys that are known go on, and of others it cannot be told whether they are valid.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import TypeVar

import msgspec

from backends.clock import Clock
from backends.errors import ConfigurationError, StoreUnavailable
from gateway.http.auth import Principal
from gateway.keys.asking_thread import AskingThread
from gateway.keys.key_store import Changes, KeyStore, Mark
from gateway.keys.known_keys import KnownKey, KnownKeys, RowReader
from gateway.keys.stored_key import may_be_stored
from gateway.process.garbage import without_full_collections
from gateway.process.slices import Slices
from policies.failures import Failures
from policies.limits.raises import Raise, Raises
from policies.loop import Loop

_logger = logging.getLogger(__name__)
_EVERY_S = 2.0
_LEAST_PAUSE_S = 0.05
"""Between two looks at the store, however many unknown keys are presented."""
_PATIENCE_S = 5.0
"""A store that has not answered for so long is away."""
_RETRY_AFTER_S = 2.0
_T = TypeVar("_T")


class KeysStatistics(msgspec.Struct, frozen=True):
    """What there is now, and totals since the start."""

    known: int
    is_up: bool
    age_s: float
    """How long ago what is known was the store's state."""
    changes: int
    unreadable: int
    refused: dict[str, int]


class StoredKeys:
    """Open between `open` and `aclose`; looked at on the event loop alone, while one thread asks the store.

    `make` makes the store's tables where there are none; `store` never makes a file, so that one that was taken away
    is missed and not begun anew; `copy`: where there is one, it follows the store.
    """

    def __init__(
        self,
        make: Callable[[], None],
        store: KeyStore,
        copy: KeyStore | None,
        clock: Clock,
        *,
        reader: RowReader,
        raises: Raises,
    ) -> None:
        """`raises` of budgets are kept up to date with the keys."""
        self._make = make
        self._store = store
        self._copy = copy
        self._clock = clock
        self._known = KnownKeys()
        self._reader = reader
        self.can_count = reader.can_count
        """Whether limits and budgets of keys are counted once, and not by each worker for itself."""
        self._raises = raises
        self._last_raise: tuple[int, float] | None = None
        self._mark: Mark | None = None
        self._is_made = self._is_copied = False
        self._is_up = False
        self._read_at = clock.now()
        self._num_changes = 0
        self._refused = {"unknown": 0, "unavailable": 0}
        self._thread = AskingThread("slipstream-keys")
        self._loop = Loop("keys", clock)
        self._wanted = asyncio.Event()
        self._next_look: asyncio.Future[None] | None = None
        self.find = self._known.find
        """The caller behind the digest of a secret, or None."""
        self.named = self._known.named
        """The caller with a key of that name and tenant, or None."""
        self.names = self._known.names
        """Those of all keys that are not revoked."""

    @property
    def failures(self) -> Failures:
        """Of what goes on behind the calls."""
        return self._loop.failures

    async def open(self) -> None:
        """Read all that there is. Where the store is away, what the copy has; it is waited for.

        Raises: ConfigurationError where the store can never be used.
        """
        with without_full_collections():
            try:
                await self._asked(self._made)
            except StoreUnavailable as error:
                _logger.error("%s; keys that are not known are told to come back", error.message)
            else:
                await self._look()
            if not self._is_up and self._copy is not None:
                await self._read_copy(self._copy)
        self._loop.start(self._follow)

    async def aclose(self) -> None:
        """Look no more. Safe to call twice, and where it was never open."""
        await self._loop.aclose()
        if self._next_look is not None:
            self._next_look.cancel()
        self._thread.close(self._close_stores)

    async def ask(self, question: Callable[[KeyStore], _T]) -> _T:
        """What the store says, in its thread. Raises: StoreUnavailable, and as the question does."""
        try:
            return await self._asked(lambda: question(self._store))
        except ConfigurationError as error:
            raise StoreUnavailable(error.message) from error

    async def refresh(self) -> None:
        """Wait until what is known is what the store had now or later, or until it is found to be away."""
        if self._next_look is None:
            self._next_look = asyncio.get_running_loop().create_future()
        self._wanted.set()
        await asyncio.wait([self._next_look], timeout=_PATIENCE_S)

    async def look_for(self, secret: bytes, digest: bytes) -> Principal | None:
        """The caller behind a secret that is not known here: it may have been made a moment ago, elsewhere.

        Raises: StoreUnavailable where that cannot be told.
        """
        if self._is_up and may_be_stored(secret):
            await self.refresh()
            if (principal := self.find(digest)) is not None:
                return principal
        if not self._is_up:
            self._refused["unavailable"] += 1
            raise StoreUnavailable(
                "whether this API key is valid cannot be told now, for the key store is away; try again",
                retry_after_s=_RETRY_AFTER_S,
            )
        self._refused["unknown"] += 1
        return None

    def statistics(self) -> KeysStatistics:
        """A snapshot."""
        return KeysStatistics(
            len(self._known),
            self._is_up,
            self._clock.now() - self._read_at,
            self._num_changes,
            self._reader.num_unreadable,
            dict(self._refused),
        )

    async def _follow(self) -> None:
        while True:
            try:
                async with asyncio.timeout(_EVERY_S):
                    await self._wanted.wait()
            except TimeoutError:
                pass
            looked_for, self._next_look = self._next_look, None
            self._wanted.clear()
            try:
                await self._look()
            finally:
                if looked_for is not None and not looked_for.done():
                    looked_for.set_result(None)
            await self._clock.sleep(_LEAST_PAUSE_S)

    async def _look(self) -> None:
        """Read what has changed; whether the store is there is known afterwards."""
        began_at = self._clock.now()
        looking = asyncio.ensure_future(self._thread.ask(self._read_changes))
        done, _ = await asyncio.wait([looking], timeout=_PATIENCE_S)
        if not done:
            self._went_away(f"the key store has not answered within {_PATIENCE_S:g} s")
        try:
            changes, keys, raises = await looking
        except (StoreUnavailable, ConfigurationError) as error:
            self._went_away(error.message)
            return
        await self._take(changes, keys)
        if raises is not None:
            self._raises.known = raises
        self._read_at = began_at
        if not self._is_up:
            self._is_up = True
            _logger.info("%d stored keys are known", len(self._known))

    async def _read_copy(self, copy: KeyStore) -> None:
        try:
            # Another thread than the one that may still wait for the store.
            changes = await asyncio.to_thread(copy.changes, None)
        except (StoreUnavailable, ConfigurationError) as error:
            _logger.error("nor is there a local copy: %s", error.message)
            return
        finally:
            await asyncio.to_thread(copy.close)
        await self._take(changes, self._reader.read(changes.rows))
        _logger.warning("%d stored keys are known by the local copy", len(self._known))

    async def _take(self, changes: Changes, keys: list[KnownKey]) -> None:
        slices = Slices(self._clock)
        if changes.are_all:
            # What is no more goes behind what is: a key that stays is never missed in between.
            for name in set(self._known.names()).difference(key.name for key in keys):
                self._known.drop(name)
        for key in keys:
            self._known.take(key)
            await slices.give_way()
        self._mark = changes.mark
        self._num_changes += len(keys)

    def _made(self) -> None:
        self._make()
        self._is_made = True

    def _read_changes(self) -> tuple[Changes, list[KnownKey], Mapping[tuple[str, str], Raise] | None]:
        """In the thread: what has changed of the keys, and all raises if there are others than before."""
        if not self._is_made:
            self._made()
        changes = self._store.changes(self._mark)
        if self._copy is not None and (changes.rows or changes.are_all or not self._is_copied):
            self._is_copied = False
            self._follow_with(self._copy)
        raises, last_raise = None, self._store.raises.last()
        if last_raise != self._last_raise or changes.are_all:
            raises, self._last_raise = self._store.raises.in_force(), last_raise
        return changes, self._reader.read(changes.rows), raises

    def _follow_with(self, copy: KeyStore) -> None:
        try:
            copy.open()
            copy.follow(self._store.changes(copy.mark()))
            self._is_copied = True
        except (StoreUnavailable, ConfigurationError) as error:
            # The store itself answers, and calls go by memory.
            self._loop.failures.note(error)

    async def _asked(self, work: Callable[[], _T]) -> _T:
        try:
            async with asyncio.timeout(_PATIENCE_S):
                return await self._thread.ask(work)
        except TimeoutError:
            raise StoreUnavailable(f"the key store has not answered within {_PATIENCE_S:g} s") from None

    def _close_stores(self) -> None:
        self._store.close()
        if self._copy is not None:
            self._copy.close()

    def _went_away(self, why: str) -> None:
        if self._is_up:
            self._is_up = False
            _logger.error("%s; the %d stored keys that are known go on", why, len(self._known))
