"""What one process knows of the key store: callers by the digests of their secrets, all of them in memory."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from gateway.http.auth import Callers, Principal
from gateway.keys.stored_key import StoredKey, of_row

_logger = logging.getLogger(__name__)


class KnownKey(NamedTuple):
    """A key as calls look it up. Nobody is behind the digests of one that is revoked: there are none."""

    name: str
    by_digest: tuple[tuple[bytes, Principal], ...]
    """The newest secret last."""


class KnownKeys:
    """Looked at by every call, so it is two dictionaries. Callers whose keys have expired are in it too: it is the
    clock that tells them.
    """

    def __init__(self) -> None:
        self._by_digest: dict[bytes, Principal] = {}
        self._by_name: dict[str, KnownKey] = {}
        self.find = self._by_digest.get
        """The caller behind a digest, or None."""

    def __len__(self) -> int:
        return len(self._by_name)

    def named(self, name: str, tenant: str) -> Principal | None:
        """The caller with the key of that name, if it is one of that tenant."""
        known = self._by_name.get(name)
        if known is None:
            return None
        _, principal = known.by_digest[-1]
        return principal if principal.tenant == tenant else None

    def names(self) -> Iterable[str]:
        """Of all keys that are not revoked."""
        return self._by_name.keys()

    def take(self, key: KnownKey) -> None:
        """This is what is known of that key from now on."""
        self.drop(key.name)
        if key.by_digest:
            self._by_name[key.name] = key
            self._by_digest.update(key.by_digest)

    def drop(self, name: str) -> None:
        """Nobody has that key any more."""
        known = self._by_name.pop(name, None)
        for digest, _ in known.by_digest if known is not None else ():
            self._by_digest.pop(digest, None)


class RowReader:
    """Makes what calls look up of the store's rows, in any thread."""

    def __init__(self, time_zone: str = "UTC", *, can_count: bool = True) -> None:
        """`time_zone`: of keys' budgets that name none. `can_count`: whether limits and budgets are counted once; if
        each of several workers would give the whole of them, nobody gets in by a key that has some.
        """
        self._callers = Callers(time_zone)
        self.can_count = can_count
        self.num_unreadable = 0
        """Rows that only a newer version can read, or whose limits cannot be counted here: nobody gets in by them."""

    def read(self, rows: list[tuple[Any, ...]]) -> list[KnownKey]:
        """Each key, whatever has become of it. The rows are used up: a hundred thousand take as much room as the keys
        that are made of them.
        """
        rows.reverse()
        known = []
        while rows:
            known.append(self._known(rows.pop()))
        return known

    def _known(self, row: tuple[Any, ...]) -> KnownKey:
        try:
            key = of_row(row[:-1])
        except (ValueError, msgspec.DecodeError) as error:
            self.num_unreadable += 1
            _logger.error("key %s cannot be read, and nobody gets in by it: %s", row[0], type(error).__name__)
            return KnownKey(row[0], ())
        if key.revoked_at is not None:
            return KnownKey(key.name, ())
        if key.terms.has_rules and not self.can_count:
            self.num_unreadable += 1
            _logger.error(
                "nobody gets in by key %s, for its limit or budget is counted by several workers only in stores.redis",
                key.name,
            )
            return KnownKey(key.name, ())
        return KnownKey(key.name, _by_digest(key, self._callers.of(key.name, key.terms)))


def _by_digest(key: StoredKey, principal: Principal) -> tuple[tuple[bytes, Principal], ...]:
    found = []
    for secret in key.secrets:
        ends = [end for end in (principal.expires_at, secret.until) if end is not None]
        end = min(ends, default=None)
        caller = principal if end == principal.expires_at else msgspec.structs.replace(principal, expires_at=end)
        found.append((bytes.fromhex(secret.digest), caller))
    return tuple(found)
