"""How a path reads: decoded below the API's root, and as the laxest of servers may read it.

What an operation is called in another spelling is no other call: it is refused, for upstreams may take it for the same.
"""

from __future__ import annotations

import re
from unicodedata import normalize
from urllib.parse import unquote

from backends.errors import MethodNotAllowed, UnknownPath
from backends.operations import BY_PATH

_AMBIGUOUS = re.compile(r"//|[\\;%\x00-\x1f\x7f]|/\.{1,2}(?:/|$)")
"""What a server may take for a step up, for a separator, or decode once more."""
_READS = frozenset({"GET", "HEAD"})


def plain_path(path: str) -> str:
    """A path below the API root, decoded. Raises: UnknownPath where servers read it in more than one way."""
    plain = unquote(path) if "%" in path else path
    if _AMBIGUOUS.search(plain) is not None or "%2f" in path.lower():
        raise UnknownPath(f"there is no {path}")
    return plain


def plainest(plain: str) -> str:
    """What a server may take a path for that minds neither case, nor width of letters, nor what stands at an end."""
    folded = plain.lower() if plain.isascii() else normalize("NFKC", normalize("NFKC", plain).casefold())
    segments = [segment.rstrip(". ") for segment in folded.split("/")]
    # A backend's `base_url` may lack the root that the client has written twice.
    while segments[1:2] == ["v1"]:
        del segments[1]
    return "/".join(segments).rstrip("/")


def check_is_no_operation(method: str, path: str, plain: str, *, has_body: bool) -> None:
    """What reads as an operation is answered as one or not at all; what operations have made may be listed.

    `path` is as it came, `plain` the same decoded. Raises: UnknownPath for another spelling, MethodNotAllowed for
    another method, or for one that reads and has a body.
    """
    operation_path = plainest(plain)
    if operation_path not in BY_PATH:
        return
    if path.rstrip("/") != operation_path:
        raise UnknownPath(f"there is no {path}: write /v1{operation_path}")
    if method not in _READS or has_body:
        raise MethodNotAllowed(f"{path} does not take {method}{' with a body' if has_body else ''}: it takes POST")
