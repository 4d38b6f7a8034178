"""A gateway is made of the policy that was read and checked for it; nothing is read a second time."""

from __future__ import annotations

from pathlib import Path

from backends.registry import Registry
from gateway.process.factory import application_of, load
from gateway.settings import Settings
from policies.policy_file.sources import PolicyFiles

_POLICY = """\
version: 1
backends: {scripted: {type: scripted}}
routes: [{name: a, match: {models: ["*"]}, backends: [{ref: scripted}]}]
"""


def test_application_of_takes_the_policy_that_was_read(tmp_path: Path) -> None:
    """The file may be gone again: what was read serves, and the watch knows that the file is another one now."""
    path = tmp_path / "policy.yaml"
    path.write_text(_POLICY, encoding="utf-8")
    settings = Settings(policy=path, access_log="off")
    files = PolicyFiles(path)
    registry = Registry()
    loaded = load(settings, registry, files)
    path.unlink()

    application = application_of(settings, registry, files, loaded)

    assert application.failure is None
    assert files.fingerprint() != files.seen
