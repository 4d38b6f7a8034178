"""The files that a browser gets: the page, its style and its modules, and Chart.js from its installed package.

All of them together have one hash, which is in their paths, so they may be kept for ever and never fit badly.
"""

from __future__ import annotations

import gzip
from functools import cached_property
from hashlib import sha256
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

_TYPES = {".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".svg": "image/svg+xml"}
_CHARTS = "chart.bundle.js"
_NO_CHARTS = b"// Chart.js is not installed: pip install 'slipstream-gateway[dashboard]'\n"

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
    "trusted-types 'none'"
)
"""What the page may load and run: its own files, and nothing that somebody has put into a name."""


class Asset(NamedTuple):
    """One file, compressed."""

    body: bytes
    media_type: str


class Assets:
    """Read and compressed when the first of them is asked for, which takes a tenth of a second: in a thread, please."""

    @cached_property
    def files(self) -> dict[str, Asset]:
        """By path below `/dashboard/assets/HASH/`."""
        return {name: Asset(gzip.compress(body, 9, mtime=0), _type(name)) for name, body in self._raw.items()}

    @cached_property
    def page(self) -> Asset:
        """The page that all of the dashboard's addresses show."""
        body = self._raw["index.html"].replace(b"{assets}", f"/dashboard/assets/{self.hash}".encode())
        return Asset(gzip.compress(body, 9, mtime=0), "text/html; charset=utf-8")

    @cached_property
    def hash(self) -> str:
        """Of everything."""
        whole = sha256()
        for name, body in sorted(self._raw.items()):
            whole.update(b"%b %d " % (name.encode(), len(body)))
            whole.update(body)
        return whole.hexdigest()[:16]

    @cached_property
    def _raw(self) -> dict[str, bytes]:
        folder = Path(str(resources.files("gateway.dashboard").joinpath("static")))
        files = {
            path.relative_to(folder).as_posix(): path.read_bytes()
            for path in sorted(folder.rglob("*"))
            if path.suffix in _TYPES
        }
        return {**files, _CHARTS: _charts()}


def _charts() -> bytes:
    """Chart.js, which the package `chartkick` carries."""
    found = find_spec("chartkick")
    if found is None or not found.submodule_search_locations:
        return _NO_CHARTS
    return Path(found.submodule_search_locations[0], "django/static/chartkick/Chart.bundle.js").read_bytes()


def _type(name: str) -> str:
    return f"{_TYPES[Path(name).suffix]}; charset=utf-8"
