"""The server's settings: from the environment, with units, and on to worker processes unchanged."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from backends.registry import Registry
from gateway.process.factory import load
from gateway.settings import Settings

NAMES = [name for name in os.environ if name.startswith("SLIPSTREAM_")]


def test_settings_have_their_documented_defaults() -> None:
    """Loopback, one worker, a log, no tracing."""
    assert NAMES == [], "tests run without settings of the machine's own"
    settings = Settings()

    assert (settings.host, settings.port, settings.workers) == ("127.0.0.1", 8080, 1)
    assert not settings.is_public
    assert settings.access_log == "auto"
    assert settings.cors_origins == ()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("drain_delay", 5),
        ("drain_limit", "5"),
        ("max_body", "64"),
        ("max_body", "10B"),
        ("port", 70_000),
        ("workers", 0),
        ("log_level", "loud"),
        ("access_log", "xml"),
        ("reload_interval", "0s"),
        ("colour", "red"),
    ],
)
def test_setting_that_is_wrong_is_refused(name: str, value: Any) -> None:
    """Unknown names, missing units, values out of bounds."""
    with pytest.raises(ValidationError):
        Settings(**{name: value})


@pytest.mark.parametrize(
    ("host", "is_public"),
    [("127.0.0.1", False), ("::1", False), ("localhost", False), ("0.0.0.0", True), ("::", True), ("10.0.0.1", True)],
)
def test_host_decides_whether_the_gateway_is_public(host: str, is_public: bool) -> None:
    """Anything but loopback is."""
    assert Settings(host=host).is_public is is_public


def test_settings_reach_worker_processes_as_they_are() -> None:
    """What is put into the environment reads back as the same settings, whatever the units were."""
    given = (
        "policy='p.yaml', host='::1', port=0, workers=3, max_body='1.5MiB', drain_delay='250ms', drain_limit='2m', "
        "reload_interval='50ms', access_log='off', log_level='warning', tracing=True, kernels='reference', "
        "cors_origins='https://a.example, https://b.example'"
    )
    program = (
        "from gateway.settings import Settings, export_settings\n"
        f"settings = Settings({given})\nexport_settings(settings)\nprint(settings == Settings(), settings.max_body)"
    )
    # In a process of its own, since this changes the environment.
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=30)

    assert done.stdout.split() == ["True", str(1024 * 1536)]


_POLICY = """
version: 1
backends:
  here: {type: engine, model: slipstream-target}
  far: {type: openai, base_url: "http://127.0.0.1:9/v1"}
routes: [{name: all, match: {models: ["*"]}, backends: [{ref: here}, {ref: far}]}]
"""


@pytest.mark.parametrize("kernels", ["auto", "reference"])
def test_kernels_setting_reaches_every_engine_and_nothing_else(tmp_path: Path, kernels: str) -> None:
    """One variable in the environment tells whether a kernel is at fault."""
    policy = tmp_path / "policy.yaml"
    policy.write_text(_POLICY, encoding="utf-8")

    loaded = load(Settings.model_validate({"policy": policy, "kernels": kernels}), Registry())

    found = {name: getattr(config, "kernels", None) for name, (_, config) in loaded.backends.items()}
    assert found == {"here": kernels, "far": None}
