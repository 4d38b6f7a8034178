"""`slipstream selftest` as people run it: what it lists, refuses and writes, and a whole run in a minute."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from gateway.selftest.catalogue import CHECKS
from tests.support.cli import Run
from tests.support.docs import table
from tests.support.gateway import running_gateway

SCRIPTED = """\
version: 1
backends: {answers: {type: scripted}}
keys: [{name: dev, key: "env:DEV_KEY"}]
routes: [{name: all, match: {models: ["*"]}, backends: [{ref: answers}]}]
"""


def test_selftest_in_a_minute_fails_nothing(tmp_path: Path) -> None:
    """All of it, short, against the built-in policy, in a process of its own: docs/trust.md holds."""
    out = tmp_path / "selftest.json"
    command = [str(Path(sys.executable).with_name("slipstream")), "selftest", "--quick", "--json", str(out)]
    process = subprocess.run(command, capture_output=True, text=True, timeout=240)

    found = json.loads(out.read_text(encoding="utf-8"))
    assert [check["id"] for check in found["checks"] if check["verdict"] == "fail"] == [], process.stdout
    assert process.returncode == 0, process.stderr
    assert [check["id"] for check in found["checks"]] == [check.id for check in CHECKS]
    assert max(len(line) for line in process.stdout.splitlines()) <= 100


def test_selftest_tries_a_running_gateway_from_outside(run: Run) -> None:
    """With --url requests are sent to it; what needs upstreams of ours is skipped and says so."""
    environ = {"DEV_KEY": "sk-dev-0123456789"}
    with running_gateway(SCRIPTED, environ=environ) as gateway:
        chosen = ("--only", "25", "--only", "28", "--only", "1")
        url = ("--url", gateway.url, "--model", "any", "--key", "env:DEV_KEY")
        result = run("selftest", *url, *chosen, "--quick", "--json", "-", environ=environ)

    verdicts = {check["id"]: check["verdict"] for check in json.loads(result.stdout)["checks"]}
    assert verdicts == {"1": "skipped", "25": "pass", "28": "pass"}
    assert result.exit_code == 0


def test_selftest_lists_what_the_documentation_lists(run: Run) -> None:
    """The faults by number, the same in the command and on the page."""
    listed = run("selftest", "--list").stdout.splitlines()
    rows = [*table("docs/selftest.md", "id"), *table("docs/selftest.md", "scenario")]
    documented = [f"{row[0]:<4} {row[1]}" for row in rows]

    assert listed == documented
    assert [int(line.split()[0]) for line in listed if line[0].isdecimal()] == list(range(1, 37))
    assert [check.fault for check in CHECKS if len(check.fault) > 48 + 2] == []


def test_selftest_refuses_what_it_cannot_try(run: Run, tmp_path: Path) -> None:
    """A policy without a server, an unknown fault, both a policy and an address: said in a sentence."""
    path = tmp_path / "policy.yaml"
    path.write_text(SCRIPTED, encoding="utf-8")

    assert "nothing to try" in run("selftest", str(path)).stderr
    assert "there is no fault 99" in run("selftest", "--only", "99").stderr
    assert "not both" in run("selftest", str(path), "--url", "http://127.0.0.1:1").stderr
