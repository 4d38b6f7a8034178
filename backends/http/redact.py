"""Takes out of what an upstream says what clients must not see: the keys it was presented, and where it is.

Errors are searched, which is where servers and proxies quote what they were sent and whom they could not reach, and the
header fields of every answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from operator import itemgetter

from pydantic import SecretStr

from backends.protocol import Headers

HIDDEN = "[redacted]"
_MIN_CHARS = 8
"""Shorter values ("EMPTY", "none") are no secrets, and would be found in words."""
_PUBLIC_FIELDS = frozenset({"accept", "accept-encoding", "accept-language", "content-type", "user-agent"})
_ESCAPE = re.compile(rb"\\(?:u00([2-7][0-9a-fA-F])|/|.)", re.DOTALL)
_KEPT_ESCAPES = frozenset({0x22, 0x5C})


class Redactor:
    """What one backend's clients must not see. Made once per backend."""

    __slots__ = ("_hidden", "_secret")

    def __init__(self, base_url: str, api_keys: Iterable[SecretStr], headers: Mapping[str, str]) -> None:
        secrets = [key.get_secret_value() for key in api_keys]
        for name, value in headers.items():
            if name.lower() not in _PUBLIC_FIELDS:
                # What follows the scheme of a credential is one by itself.
                secrets += [value, value.rpartition(" ")[2]]
        self._secret = _any_of(text for text in secrets if len(text) >= _MIN_CHARS)
        origin = base_url.split("/", 3)[2]
        places = [base_url, f"{base_url.split(':', 1)[0]}://{origin}", origin]
        # A host by itself may be a word ("vllm"); with a dot or colon in it, it is an address.
        host = origin.rpartition(":")[0] if re.search(r":\d+$", origin) else origin
        if "." in host or ":" in host:
            places.append(host)
        hidden = {text for text in (*secrets, *places) if len(text) >= _MIN_CHARS or text in (origin, host)}
        self._hidden = _any_of(hidden)

    def data(self, said: bytes) -> bytes:
        """The same JSON, events or plain text without it."""
        shown = self._hidden.sub(HIDDEN.encode("ascii"), said)
        if b"\\" in shown:
            # JSON may write any character as an escape. Undone where that leaves it the same JSON.
            plain = _ESCAPE.sub(_unescaped, shown)
            if self._hidden.search(plain) is not None:
                shown = self._hidden.sub(HIDDEN.encode("ascii"), plain)
        return shown

    def text(self, said: str) -> str:
        """The same text without it."""
        return self.data(said.encode("utf-8", "replace")).decode("utf-8", "replace")

    def fields(self, headers: Headers) -> Headers:
        """The same header fields but for those that hold it."""
        return [field for field in headers if self._hidden.search(field[1]) is None]

    def answer_fields(self, headers: Headers) -> Headers:
        """Those of a good answer, with what is secret in their values taken out: some servers show what they were sent.

        Places stay: fields may name them on purpose. Normal answers pay for one search.
        """
        if self._secret.search(b"\n".join(map(_value, headers))) is None:
            return headers
        return [(name, self._secret.sub(HIDDEN.encode("ascii"), value)) for name, value in headers]


_value = itemgetter(1)


def _any_of(texts: Iterable[str]) -> re.Pattern[bytes]:
    """Finds any of these; nothing where there are none."""
    # The longest first: one may be a part of another.
    words = sorted((re.escape(text.encode("utf-8")) for text in texts), key=len, reverse=True)
    return re.compile(b"|".join(words) or rb"(?!)")


def _unescaped(escape: re.Match[bytes]) -> bytes:
    digits = escape[1]
    if digits is None:
        return b"/" if escape[0] == b"\\/" else escape[0]
    code = int(digits, 16)
    return escape[0] if code in _KEPT_ESCAPES or code == 0x7F else bytes((code,))
