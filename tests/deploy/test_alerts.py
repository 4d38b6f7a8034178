"""The alerts: each fires after what it waits for and resolves behind it, and each is explained."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.test_boards import metrics_of, selectors
from tests.support.docs import table

RULES = Path(__file__).parents[2] / "deploy" / "prometheus" / "alerts.yaml"
CASES = ("alert_cases.yaml", "slow_alert_cases.yaml")


def rules() -> list[dict[str, Any]]:
    """Every rule of the file."""
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


@pytest.mark.parametrize("name", CASES)
def test_alerts_fire_and_resolve(name: str, tmp_path: Path) -> None:
    """In Prometheus' own arithmetic, over series as the gateway would show them."""
    cases = tmp_path / name
    cases.write_text(Path(__file__).with_name(name).read_text().replace("RULES", str(RULES)))
    done = subprocess.run(["promtool", "test", "rules", cases], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_case_in_which_it_fires_and_then_does_not() -> None:
    """An alert that is added brings its case."""
    fired: set[str] = set()
    resolved: set[str] = set()
    for name in CASES:
        for case in yaml.safe_load(Path(__file__).with_name(name).read_text())["tests"]:
            for asked in case.get("alert_rule_test", []):
                alert = asked["alertname"]
                if asked.get("exp_alerts"):
                    fired.add(alert)
                elif alert in fired:
                    resolved.add(alert)

    assert fired == resolved == {rule["alert"] for rule in rules() if "alert" in rule}


def test_alerts_are_explained() -> None:
    """The documentation names each with its severity and what to do."""
    described = {row[0].strip("`"): row[1] for row in table("docs/metrics.md", "alert")}

    assert described == {rule["alert"]: rule["labels"]["severity"] for rule in rules() if "alert" in rule}


def test_rules_ask_for_metrics_and_labels_that_there_are() -> None:
    """A renamed metric would leave an alert that never fires."""
    known = metrics_of()
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    for rule in rules():
        for name, labels in selectors(rule["expr"]):
            assert name in known, f"{name} in {rule}"
            assert labels <= known[name] | {"job", "instance"}, f"labels of {name} in {rule}"
        for name in re.findall(r"slipstream:\w+:\w+", rule["expr"]):
            assert name in recorded, f"{name} is recorded nowhere"
