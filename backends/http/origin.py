"""Where requests go: scheme, host and port, out of a base URL."""

from __future__ import annotations

from urllib.parse import urlsplit

import msgspec

from backends.errors import ConfigurationError


class Origin(msgspec.Struct, frozen=True):
    """Where a request goes; `host` as in a URL, but without the brackets of an IPv6 address."""

    scheme: str
    host: str
    port: int

    @property
    def address(self) -> str:
        """host:port, for messages."""
        return f"{self._url_host}:{self.port}"

    @property
    def host_header(self) -> bytes:
        """The value of the `host` field."""
        is_default = self.port == (443 if self.scheme == "https" else 80)
        return (self._url_host if is_default else self.address).encode("ascii")

    @property
    def _url_host(self) -> str:
        return f"[{self.host}]" if ":" in self.host else self.host


def parse_origin(base_url: str) -> Origin:
    """The origin of an http or https URL without credentials.

    Raises: ConfigurationError, which does not repeat credentials.
    """
    try:
        parts = urlsplit(base_url)
        port = parts.port
        host = (parts.hostname or "").encode("idna").decode("ascii")
    except ValueError as error:
        raise ConfigurationError(f"a base URL cannot be read: {error}") from None
    if parts.username is not None or parts.password is not None:
        raise ConfigurationError("a base URL must not hold credentials; give them as headers")
    if parts.scheme not in ("http", "https") or not host:
        raise ConfigurationError(f'the base URL "{base_url}" does not begin with http:// or https:// and a host')
    return Origin(parts.scheme, host, port or (443 if parts.scheme == "https" else 80))
