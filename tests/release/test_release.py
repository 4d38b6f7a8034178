"""What is published can be checked: two builds are the same bytes, the wheel is the source, locks pin everything."""

from __future__ import annotations

import re
import shutil
import zipfile
from collections.abc import Callable
from importlib.metadata import PathDistribution
from pathlib import Path

import pytest

from deploy import release
from gateway.selftest.faults.release import examine
from gateway.selftest.verdict import CheckVerdict
from tests.support.docs import ROOT


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Wheel and sdist of the last commit, built twice."""
    if not (ROOT / ".git").exists():
        pytest.skip("a release is made of a commit, and this is no clone")
    return release.build_twice(ROOT, tmp_path_factory.mktemp("release") / "dist")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the last commit, which nobody changes."""
    return release.export(ROOT, tmp_path_factory.mktemp("export") / "source")


def wheel_of(built: list[Path]) -> Path:
    """The wheel."""
    return next(path for path in built if path.suffix == ".whl")


def test_release_is_reproducible_and_the_wheel_is_the_source(built: list[Path], source: Path) -> None:
    """Two builds of a commit do not differ, and no module of the wheel is anything but the commit's."""
    assert sorted(path.suffix for path in built) == [".gz", ".whl"]
    release.check_wheel(wheel_of(built), source)


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("slipstream.pth", "import os", "runs at every start"),
        ("gateway/extra.py", "", "strange"),
        ("gateway/app.py", "changed", "changed"),
    ],
)
def test_wheel_with_anything_else_is_refused(
    built: list[Path], source: Path, tmp_path: Path, name: str, text: str, complaint: str
) -> None:
    """A hook, a module too many and a module that differs are found."""
    wheel = tmp_path / wheel_of(built).name
    with zipfile.ZipFile(wheel_of(built)) as honest, zipfile.ZipFile(wheel, "w") as spoilt:
        for known in honest.namelist():
            spoilt.writestr(known, text if known == name else honest.read(known))
        if name not in honest.namelist():
            spoilt.writestr(name, text)

    with pytest.raises(release.CannotRelease, match=complaint):
        release.check_wheel(wheel, source)


def _nothing(folder: Path) -> None:
    del folder


def _change(folder: Path) -> None:
    (folder / "gateway" / "app.py").write_text("import os")


def _add(folder: Path) -> None:
    (folder / "policies" / "extra.py").write_text("import os")


def _hook(folder: Path) -> None:
    record = next(folder.glob("*.dist-info")) / "RECORD"
    (folder / "slipstream.pth").write_text("import os")
    record.write_text(record.read_text() + "slipstream.pth,,\n")


@pytest.mark.parametrize(
    ("tamper", "verdict"),
    [
        (_nothing, CheckVerdict.PASS),
        (_change, CheckVerdict.FAIL),
        (_add, CheckVerdict.FAIL),
        (_hook, CheckVerdict.FAIL),
    ],
)
def test_selftest_finds_what_was_changed_after_the_installation(
    built: list[Path], tmp_path: Path, tamper: Callable[[Path], None], verdict: CheckVerdict
) -> None:
    """Fault 36 on an installed wheel: good as it is, but not with a changed file, a new one, or a hook."""
    shutil.unpack_archive(wheel_of(built), tmp_path, "zip")

    tamper(tmp_path)

    found = examine(PathDistribution(next(tmp_path.glob("*.dist-info"))))
    assert found.verdict is verdict, found


@pytest.mark.parametrize("name", ["requirements.lock", "deploy/release.lock"])
def test_lock_has_a_hash_for_everything_and_names_no_place(name: str) -> None:
    """Each requirement is pinned and has hashes; no index, host or path of a machine is in it."""
    text = (ROOT / name).read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    pinned = [number for number, line in enumerate(lines) if not line.startswith(" ")]

    assert pinned
    assert all(re.match(r"[a-z0-9-]+==[\w.]+", lines[number]) for number in pinned)
    assert all(lines[number + 1].strip().startswith("--hash=sha256:") for number in pinned)
    assert not re.search(r"https?:|file:|index|find-links|/", "\n".join(lines))


def test_lock_has_the_versions_of_the_constraints() -> None:
    """Both ways to install give the same versions."""
    constraints = dict(
        re.findall(r"^([\w.-]+)==([\w.]+)$", (ROOT / "constraints.txt").read_text("utf-8"), re.MULTILINE)
    )
    known = {name.lower().replace("_", "-"): version for name, version in constraints.items()}
    locked = dict(re.findall(r"^([\w.-]+)==([\w.]+)", (ROOT / "requirements.lock").read_text("utf-8"), re.MULTILINE))

    assert {name: version for name, version in locked.items() if known.get(name, version) != version} == {}
    assert {"uvicorn", "pydantic", "redis", "pyzmq", "onnxruntime"} <= locked.keys()
