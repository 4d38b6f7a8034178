"""`make release`: builds what is published, twice, and refuses where the two differ or hold anything but the source.

Writes to dist/: the wheel, the sdist, an SBOM in CycloneDX's format of what a plain gateway and its extras without
models install, and SHA256SUMS. Needs the tools of release.lock. The same commit gives the same bytes each time.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("backends", "gateway", "kernels", "policies")
SBOM = "slipstream.cdx.json"
SUMS = "SHA256SUMS"


class CannotRelease(Exception):
    """What must not be published, and why."""


def release(root: Path, out: Path) -> list[Path]:
    """Everything that is published of the last commit. Raises: CannotRelease."""
    if _said(root, "git", "status", "--porcelain"):
        raise CannotRelease("there are changes that are not committed: what is released is a commit")
    built = build_twice(root, out)
    with tempfile.TemporaryDirectory() as name:
        source = export(root, Path(name))
        for path in built:
            if path.suffix == ".whl":
                check_wheel(path, source)
        built.append(make_sbom(source, out / SBOM))
    sums = out / SUMS
    sums.write_text("".join(f"{_sha256(path)}  {path.name}\n" for path in sorted(built)), encoding="ascii")
    return [*built, sums]


def build_twice(root: Path, out: Path) -> list[Path]:
    """Wheel and sdist of the last commit. Raises: CannotRelease where two builds of it differ."""
    shutil.rmtree(out, ignore_errors=True)
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        one, other = build(root, Path(first)), build(root, Path(second))
        for path, again in zip(one, other, strict=True):
            if path.name != again.name or path.read_bytes() != again.read_bytes():
                raise CannotRelease(f"two builds of {path.name} differ")
        out.mkdir(parents=True)
        return [Path(shutil.copy(path, out)) for path in one]


def build(root: Path, folder: Path) -> list[Path]:
    """Wheel and sdist of the last commit, dated as it is, out of a copy of its files."""
    source = export(root, folder / "source")
    environ = {**os.environ, "SOURCE_DATE_EPOCH": _said(root, "git", "log", "-1", "--format=%ct")}
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-t", "sdist", "-d", str(folder / "dist")]
    subprocess.run(command, cwd=source, env=environ, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return sorted((folder / "dist").iterdir())


def export(root: Path, folder: Path) -> Path:
    """The files of the last commit, and nothing else."""
    folder.mkdir(parents=True, exist_ok=True)
    archive = folder.parent / f"{folder.name}.tar"
    subprocess.run(["git", "archive", "-o", str(archive), "HEAD"], cwd=root, check=True)
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    archive.unlink()
    return folder


def check_wheel(wheel: Path, source: Path) -> None:
    """Every module of the wheel is the source's, none is missing but what the project leaves out, nothing runs by
    itself. Raises: CannotRelease.
    """
    settings = tomllib.loads((source / "pyproject.toml").read_text(encoding="utf-8"))
    left_out = [source / folder for folder in settings["tool"]["hatch"]["build"]["targets"]["wheel"]["exclude"]]
    expected = {
        str(path.relative_to(source)): path
        for top in PACKAGES
        for path in (source / top).rglob("*")
        if path.is_file() and not any(path.is_relative_to(folder) for folder in left_out)
    }
    with zipfile.ZipFile(wheel) as held:
        names = [name for name in held.namelist() if ".dist-info/" not in name]
        strange = [name for name in names if name not in expected]
        missing = [name for name in expected if name not in names]
        changed = [name for name in names if name in expected and held.read(name) != expected[name].read_bytes()]
        hooks = [name for name in held.namelist() if name.endswith(".pth")]
    for what, found in (
        ("runs at every start", hooks),
        ("strange", strange),
        ("missing", missing),
        ("changed", changed),
    ):
        if found:
            raise CannotRelease(f"{wheel.name}: {what}: {', '.join(sorted(found)[:5])}")


def make_sbom(source: Path, out: Path) -> Path:
    """What requirements.lock installs beside the package itself, as CycloneDX; the same bytes each time."""
    command = [sys.executable, "-m", "cyclonedx_py", "requirements", "--output-reproducible", "--of", "JSON"]
    places = ["--pyproject", str(source / "pyproject.toml"), "-o", str(out), str(source / "requirements.lock")]
    subprocess.run([*command, *places], check=True, stderr=subprocess.DEVNULL)
    return out


def _said(root: Path, *command: str) -> str:
    return subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout.strip()


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


if __name__ == "__main__":
    try:
        for made in release(ROOT, ROOT / "dist"):
            print(f"dist/{made.name}")
    except CannotRelease as error:
        sys.exit(f"not released: {error}")
