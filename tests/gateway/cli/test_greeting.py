"""What `slipstream serve` warns of when it starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from backends.registry import Registry
from gateway.cli.greeting import model_copy_warnings
from gateway.process.factory import load
from gateway.settings import Settings

_POLICY = """
version: 1
backends:
  local: {type: engine, model: slipstream-target}
  far: {type: openai, base_url: "http://127.0.0.1:9/v1"}
routes: [{name: all, match: {models: ["*"]}, backends: [{ref: local}, {ref: far}]}]
"""


@pytest.mark.parametrize(("workers", "said"), [(1, []), (2, ["each of the 2 workers loads its own copy of local"])])
def test_models_in_several_workers_are_warned_of(tmp_path: Path, workers: int, said: list[str]) -> None:
    """Memory that is taken twice is said where the operator looks."""
    pytest.importorskip("torch")
    policy = tmp_path / "policy.yaml"
    policy.write_text(_POLICY, encoding="utf-8")

    warnings = model_copy_warnings(load(Settings(policy=policy), Registry()), workers)

    assert [warning.partition(",")[0] for warning in warnings] == said
