"""What a request's address says to an API of the gateway's own."""

from __future__ import annotations

from urllib.parse import parse_qsl

from starlette.types import Scope

from gateway.http.incoming import ascii_text


def path_below(scope: Scope, root: str) -> str:
    """What stands in a path behind /v1/ROOT/."""
    path: str = scope["path"]
    return path.removeprefix("/v1").strip("/").removeprefix(root).strip("/")


def query_of(scope: Scope) -> dict[str, str]:
    """The query's fields, the last of each name. Raises: InvalidRequest."""
    return dict(parse_qsl(ascii_text(scope["query_string"], "query")))
