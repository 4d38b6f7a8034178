"""Fault 36: what is installed is what was released: every file as recorded, and nothing that runs by itself."""

from __future__ import annotations

import base64
import hashlib
import json
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from gateway.selftest.bench import Bench, GatewayTarget
from gateway.selftest.check import Check
from gateway.selftest.verdict import CheckOutcome, failed, passed, skipped

_NAME = "slipstream-gateway"
_OWN = ("backends", "gateway", "kernels", "policies")
_COMPILED = frozenset({".pyc"})


async def installed(bench: Bench | GatewayTarget) -> CheckOutcome:
    """Hashes of RECORD, no .pth, no file of ours that is not recorded."""
    del bench
    try:
        found = distribution(_NAME)
    except PackageNotFoundError:
        return skipped("the package is not installed: this is a source tree")
    if _is_editable(found):
        return skipped("an editable installation: its files are those of a source tree", "pip install the wheel")
    return examine(found)


def examine(found: Distribution) -> CheckOutcome:
    """What is wrong with an installed package."""
    files = found.files or []
    changed: list[str] = []
    known: set[Path] = set()
    for file in files:
        path = Path(str(file.locate()))
        known.add(path.resolve())
        if file.hash is None:
            continue
        if not path.is_file() or _digest(path, file.hash.mode) != file.hash.value:
            changed.append(str(file))
    hooks = [str(file) for file in files if file.suffix == ".pth"]
    root = Path(str(found.locate_file("")))
    strangers = [
        str(path.relative_to(root))
        for top in _OWN
        for path in (root / top).rglob("*")
        if path.is_file() and path.suffix not in _COMPILED and path.resolve() not in known
    ]
    measured = f"{len(known)} files, {len(changed)} changed, {len(strangers)} strange, {len(hooks)} .pth"
    remedy = "install the wheel again, from a file whose hash you have checked"
    if hooks:
        return failed(measured, f"runs at every start of Python: {', '.join(hooks)}", remedy)
    if changed or strangers:
        return failed(measured, f"not as released: {', '.join([*changed, *strangers][:5])}", remedy)
    return passed(measured, "whether it was built from the source: docs/trust.md")


def _digest(path: Path, algorithm: str) -> str:
    digest = hashlib.new(algorithm, path.read_bytes()).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def _is_editable(found: Distribution) -> bool:
    told = found.read_text("direct_url.json")
    return bool(told) and json.loads(told or "{}").get("dir_info", {}).get("editable") is True


CHECKS = (Check("36", "the installed files are those of the release", installed, installed),)
