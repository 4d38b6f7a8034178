"""A key of the key store: its name, what it may do, and the secrets that it is presented by, as hashes."""

from __future__ import annotations

import secrets
from typing import Any

import msgspec

from backends.errors import InvalidRequest
from gateway.http.auth import digest_of
from policies.keys.settings import KeyTerms

PREFIX = "sk-slip-"
"""What the secrets of the store begin with, for people and for programs that look for secrets where none belong."""
_SECRET_BYTES = 32
_LENGTH = len(PREFIX) + 2 * _SECRET_BYTES
_HINT_CHARS = 4
_MAX_SECRETS = 8
"""That are valid at the same time."""


class KeySecret(msgspec.Struct, frozen=True):
    """A secret as it is kept. Times are seconds since the Unix epoch."""

    digest: str
    """SHA-256 in hexadecimal digits."""
    hint: str
    """Its last characters, so that its holder can tell which one it is."""
    created_at: float
    until: float | None = None
    """When it stops, once another one has taken its place."""


class StoredKey(msgspec.Struct, frozen=True):
    """The key of that name. Whatever changes makes another value, with a version of its own."""

    name: str
    terms: KeyTerms
    secrets: tuple[KeySecret, ...]
    """The newest one last."""
    created_at: float
    revoked_at: float | None = None

    def status(self, now: float) -> str:
        """`active`, `expired` or `revoked`, at that moment."""
        if self.revoked_at is not None:
            return "revoked"
        expires_at = self.terms.expires_at
        return "expired" if expires_at is not None and expires_at <= now else "active"

    def rotated(self, terms: KeyTerms, now: float, overlap_s: float) -> tuple[StoredKey, str]:
        """With a new secret, which is told here and never again; those before it go on for the overlap.

        Raises: InvalidRequest where the key is over, or has too many secrets.
        """
        after = msgspec.structs.replace(self, terms=terms)
        if (status := after.status(now)) != "active":
            remedy = "; make another one" if status == "revoked" else "; say when it expires from now on"
            raise InvalidRequest(f'the key "{self.name}" is {status}{remedy}')
        end = now + overlap_s
        valid = [each for each in self.secrets if each.until is None or each.until > now] if overlap_s > 0 else []
        if len(valid) >= _MAX_SECRETS:
            raise InvalidRequest(f'"{self.name}" has {len(valid)} secrets that are valid; rotate without an overlap')
        kept = [
            msgspec.structs.replace(each, until=end if each.until is None else min(end, each.until)) for each in valid
        ]
        secret, made = new_secret(now)
        return msgspec.structs.replace(after, secrets=(*kept, made)), secret


def new_key(name: str, terms: KeyTerms, now: float) -> tuple[StoredKey, str]:
    """A key, and its secret, which is told here and never again."""
    secret, made = new_secret(now)
    return StoredKey(name, terms, (made,), now), secret


def new_secret(now: float) -> tuple[str, KeySecret]:
    """A secret of 256 random bits, and what is kept of it."""
    secret = PREFIX + secrets.token_hex(_SECRET_BYTES)
    return secret, KeySecret(digest_of(secret.encode()).hex(), secret[-_HINT_CHARS:], now)


def may_be_stored(presented: bytes) -> bool:
    """Whether it looks like one of the store's secrets."""
    return len(presented) == _LENGTH and presented.startswith(PREFIX.encode())


_Row = tuple[Any, ...]
COLUMNS = "name, terms, secrets, created_at, revoked_at"
_secrets = msgspec.json.Decoder(tuple[KeySecret, ...])


def to_row(key: StoredKey) -> _Row:
    """Its `COLUMNS`. What a key may do is a JSON document, the same as in a policy file."""
    terms = key.terms.model_dump_json(exclude_defaults=True)
    return key.name, terms, msgspec.json.encode(key.secrets).decode(), key.created_at, key.revoked_at


def of_row(row: _Row) -> StoredKey:
    """Raises: ValueError for what this version cannot read."""
    name, terms, secrets_text, created_at, revoked_at = row
    return StoredKey(name, KeyTerms.model_validate_json(terms), _secrets.decode(secrets_text), created_at, revoked_at)
