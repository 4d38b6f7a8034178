"""A package of a user's own with a backend type, as pip would have left it for a gateway in a process of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import dedent


@contextmanager
def plugin(source: str) -> Iterator[dict[str, str]]:
    """The environment in which `type: mine` is what `source`, a module, calls KIND."""
    with TemporaryDirectory(prefix="slipstream-plugin-") as name:
        folder = Path(name)
        (folder / "my_backend.py").write_text(dedent(source), encoding="utf-8")
        known = folder / "my_backend-1.0.dist-info"
        known.mkdir()
        (known / "METADATA").write_text("Metadata-Version: 2.1\nName: my-backend\nVersion: 1.0\n", encoding="utf-8")
        (known / "entry_points.txt").write_text("[slipstream.backends]\nmine = my_backend:KIND\n", encoding="utf-8")
        yield {"PYTHONPATH": str(folder)}
