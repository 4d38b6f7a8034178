"""The autoscaling manifests: what they ask for exists, and the recorded rule adds gateways up as it should."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from prometheus_client import CollectorRegistry

from gateway.metrics.autoscaling import AutoscalingMetrics
from policies.pool.load.scaling import DOWN_AFTER_S, MEMORY_TARGET, PREFILL_TARGET, UP_AFTER_S

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = DEPLOY / "prometheus" / "rules.yaml"
CASES = """\
rule_files: [{rules}]
evaluation_interval: 5s
tests:
  - interval: 5s
    input_series:
      - {{series: 'slipstream_autoscale_prefill_load{{route="all",instance="a"}}', values: '1.5x20'}}
      - {{series: 'slipstream_autoscale_prefill_load{{route="all",instance="b"}}', values: '1.5x20'}}
      - {{series: 'slipstream_autoscale_memory_load{{route="all",instance="a"}}', values: '0.2x20'}}
      - {{series: 'slipstream_autoscale_shed_share{{route="all",instance="a"}}', values: '0x20'}}
      - {{series: 'slipstream_autoscale_replicas{{route="all",instance="a"}}', values: '4x20'}}
      - {{series: 'slipstream_autoscale_prefill_load{{route="b",instance="a"}}', values: '0.1x20'}}
      - {{series: 'slipstream_autoscale_shed_share{{route="b",instance="a"}}', values: '0.1x20'}}
      - {{series: 'slipstream_autoscale_replicas{{route="b",instance="a"}}', values: '10x20'}}
    promql_expr_test:
      - expr: slipstream:desired_replicas
        eval_time: 1m
        exp_samples:
          - {{labels: 'slipstream:desired_replicas{{route="all"}}', value: 4}}
          - {{labels: 'slipstream:desired_replicas{{route="b"}}', value: 12}}
"""


def test_rules_ask_for_metrics_that_the_gateway_has_and_with_its_own_targets() -> None:
    """A renamed metric or another target would leave the rule behind. What one gateway desires is not for many."""
    known = {metric._name for metric in AutoscalingMetrics(CollectorRegistry()).metrics}
    text = RULES.read_text()
    asked = set(re.findall(r"slipstream_autoscale_\w+", text))

    assert asked == known - {"slipstream_autoscale_desired_replicas"}
    assert f"prefill_load) / {PREFILL_TARGET:g}" in text
    assert f"memory_load) / {MEMORY_TARGET:g}" in text


@pytest.mark.parametrize("name", ["keda.yaml", "hpa.yaml"])
def test_manifest_waits_as_long_as_the_gateway_and_asks_for_what_is_recorded(name: str) -> None:
    """Up and down after the same times, by the recorded rule."""
    text = (DEPLOY / "kubernetes" / name).read_text()
    manifest = yaml.safe_load(text)
    spec = manifest["spec"]
    behavior = spec.get("behavior") or spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    recorded = {rule.get("record") for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]}

    assert behavior["scaleUp"]["stabilizationWindowSeconds"] == UP_AFTER_S
    assert behavior["scaleDown"]["stabilizationWindowSeconds"] == DOWN_AFTER_S
    assert "slipstream:desired_replicas" in recorded
    assert "slipstream:desired_replicas" in text


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_rules_of_several_gateways_add_loads_up_and_take_the_worst_share(tmp_path: Path) -> None:
    """Two gateways that see 1.5 replicas' worth each need four; a tenth shed at ten replicas needs twelve."""
    cases = tmp_path / "cases.yaml"
    cases.write_text(CASES.format(rules=RULES))
    done = subprocess.run(["promtool", "test", "rules", cases], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
