"""Who is calling: API keys, kept only as hashes."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

import msgspec

from backends.errors import Unauthorized
from backends.protocol import Priority
from policies.match import allows
from policies.schema import KeyPolicy


class Principal(msgspec.Struct, frozen=True):
    """A caller: the name of its key, its tenant, globs over the models it may use, and whether it is an operator."""

    key: str
    tenant: str
    models: tuple[str, ...]
    admin: bool = False
    priority: Priority = Priority.NORMAL

    def may_use(self, model: str) -> bool:
        """Whether the key's `models` cover this one."""
        return self.models == ("*",) or allows(self.models, model)


ANONYMOUS = Principal("", "default", ("*",), admin=True)
"""Whoever calls a gateway without keys, which only this machine can reach."""


class Keyring:
    """The keys of one policy.

    A presented key is hashed and looked up by its hash, so neither the time nor the memory tells anything of the
    keys themselves.
    """

    def __init__(self, keys: Sequence[KeyPolicy]) -> None:
        self._principals = {
            _digest(key.key.get_secret_value().encode("utf-8")): Principal(
                key.name, key.tenant, key.models, key.admin, Priority[key.priority.upper()]
            )
            for key in keys
        }

    @property
    def is_open(self) -> bool:
        """Whether anybody may call."""
        return not self._principals

    def authenticate(self, credentials: bytes | None) -> Principal:
        """The caller behind an `authorization` value or a bare key.

        Raises: Unauthorized.
        """
        if not self._principals:
            return ANONYMOUS
        if not credentials:
            raise Unauthorized("no API key: send it as `Authorization: Bearer KEY`")
        key = credentials[7:].strip() if credentials[:7].lower() == b"bearer " else credentials.strip()
        digest = _digest(key)
        for known, principal in self._principals.items():
            if hmac.compare_digest(known, digest):
                return principal
        raise Unauthorized("the API key is not known here")

    def named(self, key: str, tenant: str) -> Principal | None:
        """The caller with a key of that name and tenant, for what outlives the request that it came with."""
        known = self._principals.values() or (ANONYMOUS,)
        return next((principal for principal in known if (principal.key, principal.tenant) == (key, tenant)), None)


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
