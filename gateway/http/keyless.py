"""Who may call a gateway without keys: programs of this machine, and not the web pages that its browser shows.

A page can send requests to any address that the browser reaches. Where keys are asked for it has none; a gateway
without keys listens on this machine alone, and looks at what browsers say of where a request comes from.
"""

from __future__ import annotations

from ipaddress import ip_address

from backends.errors import ForeignOrigin
from backends.protocol import Headers
from gateway.http.cors import is_allowed_origin

_WATCHED = frozenset({b"host", b"origin", b"sec-fetch-site", b"content-type"})
_OWN_NAMES = frozenset({"localhost", "host.docker.internal", "host.containers.internal"})
"""This machine's names for itself, and those of containers for it; no public name server answers for them."""
_MAX_KNOWN_HOSTS = 256


class KeylessAccess:
    """Looks at the head of every request while there are no keys."""

    def __init__(self, cors_origins: tuple[str, ...], allowed_hosts: tuple[str, ...]) -> None:
        self._cors_origins = cors_origins
        self._allowed_hosts = frozenset(name.lower() for name in allowed_hosts)
        self._known_hosts: set[bytes] = set()

    def check(self, method: str, headers: Headers) -> None:
        """Raises: ForeignOrigin."""
        host, is_foreign = None, False
        origins = []
        content_type = b""
        for name, value in headers:
            if name not in _WATCHED:
                continue
            if name == b"host":
                if value not in self._known_hosts or host is not None:
                    self._check_host(value, is_second=host is not None)
                host = value
            elif name == b"origin":
                origins.append(value)
            elif name == b"content-type":
                content_type = value
            else:
                is_foreign = is_foreign or value == b"cross-site"
        for origin in origins:
            self._check_origin(origin, host)
        if is_foreign and not origins:
            raise ForeignOrigin("a page of another site asked for this; a gateway without keys does not answer it")
        if content_type[:10].lower() == b"text/plain" and method not in ("GET", "HEAD"):
            raise ForeignOrigin(
                "web pages can send bodies of type text/plain anywhere, so a gateway without keys reads none:"
                " send it as application/json, or write `keys` into the policy"
            )

    def _check_host(self, host: bytes, *, is_second: bool) -> None:
        """A name that is somebody else's was made to lead here (DNS rebinding), so the page that asks is too."""
        name = _name_of(host)
        is_own = "*" in self._allowed_hosts or name in self._allowed_hosts or _is_own_name(name)
        if is_second or not is_own:
            raise ForeignOrigin(
                f"a gateway without keys answers under this machine's own names only, not as {name[:100]!r}:"
                " set SLIPSTREAM_ALLOWED_HOSTS to the names that it may be called by, or write `keys` into the policy"
            )
        if len(self._known_hosts) < _MAX_KNOWN_HOSTS:
            self._known_hosts.add(host)

    def _check_origin(self, origin: bytes, host: bytes | None) -> None:
        is_own = host is not None and origin.partition(b"://")[2].lower() == host.lower()
        if not is_own and not is_allowed_origin(origin, self._cors_origins):
            raise ForeignOrigin(
                f"pages of {origin[:200].decode('latin-1')!r} may not call a gateway without keys:"
                " set SLIPSTREAM_CORS_ORIGINS to the origins that may"
            )


def _name_of(host: bytes) -> str:
    """The name or address in a `host` field, without its port."""
    text = host.decode("latin-1").lower()
    name = text[1:].partition("]")[0] if text.startswith("[") else text.partition(":")[0]
    return name.removesuffix(".")


def _is_own_name(name: str) -> bool:
    if name in _OWN_NAMES or name.endswith(".localhost"):
        return True
    try:
        address = ip_address(name)
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified
