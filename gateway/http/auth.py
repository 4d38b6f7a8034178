"""Who is calling: API keys, kept only as hashes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import msgspec

from backends.errors import Unauthorized
from backends.protocol import Priority
from policies.matching.globs import ModelSet
from policies.schema import KeyPolicy


class Principal(msgspec.Struct, frozen=True, gc=False):
    """A caller: the name of its key, its tenant, the models it may use, and whether it is an operator."""

    key: str
    tenant: str
    models: ModelSet
    admin: bool = False
    priority: Priority = Priority.NORMAL

    def may_use(self, model: str) -> bool:
        """Whether the key's `models` cover this one."""
        return self.models.covers(model)


ANONYMOUS = Principal("", "default", ModelSet(("*",)), admin=True)
"""Whoever calls a gateway without keys, which only this machine can reach."""


class Keyring:
    """The keys of one policy.

    A presented key is looked up by its SHA-256, which costs the same for one key and for a hundred thousand, known or
    not. What such a look-up's time could tell is about the digest of what was presented, and a digest near to a known
    one brings nobody nearer to a key. A key that can be guessed stays as guessable as it is: keys should be random.
    """

    def __init__(self, keys: Iterable[KeyPolicy]) -> None:
        self._principals: dict[bytes, Principal] = {}
        self._by_name: dict[tuple[str, str], Principal] = {}
        models: dict[tuple[str, ...], ModelSet] = {}
        for key in keys:
            covered = models.get(key.models)
            if covered is None:
                covered = models[key.models] = ModelSet(key.models)
            principal = Principal(key.name, key.tenant, covered, key.admin, Priority[key.priority.upper()])
            self._principals[_digest(key.key.get_secret_value().encode("utf-8"))] = principal
            self._by_name.setdefault((key.name, key.tenant), principal)
        self.is_open = not self._principals
        """Whether anybody may call."""

    def authenticate(self, credentials: bytes | None) -> Principal:
        """The caller behind an `authorization` value or a bare key.

        Raises: Unauthorized.
        """
        if not self._principals:
            return ANONYMOUS
        if not credentials:
            raise Unauthorized("no API key, or several that differ: send one as `Authorization: Bearer KEY`")
        key = credentials[7:].strip() if credentials[:7].lower() == b"bearer " else credentials.strip()
        principal = self._principals.get(_digest(key))
        if principal is None:
            raise Unauthorized("the API key is not known here")
        return principal

    def named(self, key: str, tenant: str) -> Principal | None:
        """The caller with a key of that name and tenant, for what outlives the request that it came with."""
        if not self._by_name:
            return ANONYMOUS if (key, tenant) == (ANONYMOUS.key, ANONYMOUS.tenant) else None
        return self._by_name.get((key, tenant))


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
