"""The files in deploy/ name commands, ports, variables and paths that there are."""

from __future__ import annotations

import configparser
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from gateway.cli.loading import read_policy
from gateway.cli.main import cli
from gateway.process.server import KEEP_ALIVE_S
from gateway.settings import Settings

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
SETTINGS = {f"SLIPSTREAM_{name.upper()}" for name in Settings.model_fields}
PORT = Settings.model_fields["port"].default
DRAIN_LIMIT_S = float(Settings().drain_limit)


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    """Those of compose.yaml."""
    loaded: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    return loaded


def test_compose_mounts_what_there_is_and_gives_calls_their_time(services: dict[str, Any]) -> None:
    """Every file of this folder that a service reads exists; who stops waits for longer than calls may take."""
    volumes = [volume.split(":") for service in services.values() for volume in service.get("volumes", [])]
    files = [path for path, *_ in volumes if path.startswith(".")]
    keeps = {path: place for path, place, *_ in volumes if path not in files}

    assert files
    assert all((DEPLOY / path).exists() for path in files)
    assert keeps == {"ledger": "/var/lib/slipstream"}
    assert services["gateway"]["ports"] == [f"{PORT}:{PORT}"]
    assert float(services["gateway"]["stop_grace_period"].removesuffix("s")) > DRAIN_LIMIT_S
    assert all(re.search(r":v?\d", service["image"]) for service in services.values() if "image" in service)


def test_compose_names_its_services_as_they_look_for_each_other(services: dict[str, Any]) -> None:
    """Prometheus looks at the gateway, Grafana at Prometheus, the gateway at Redis."""
    scraped = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yaml").read_text())["scrape_configs"]
    sources = yaml.safe_load((DEPLOY / "grafana/provisioning/datasources/prometheus.yaml").read_text())["datasources"]
    boards = yaml.safe_load((DEPLOY / "grafana/provisioning/dashboards/slipstream.yaml").read_text())["providers"]
    hosts = [scraped[0]["static_configs"][0]["targets"][0], *(source["url"] for source in sources)]
    hosts.append(services["gateway"]["environment"]["REDIS_URL"])

    assert {re.sub(r"^\w+://|:.*", "", re.sub(r"^\w+://", "", host)) for host in hosts} <= services.keys()
    assert scraped[0]["job_name"] == "slipstream"
    assert any(volume.split(":")[1] == boards[0]["options"]["path"] for volume in services["grafana"]["volumes"])


def test_prometheus_takes_its_configuration_with_all_rules() -> None:
    """As `promtool` reads it."""
    done = subprocess.run(
        ["promtool", "check", "config", DEPLOY / "prometheus" / "prometheus.yaml"], capture_output=True, text=True
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.count("rules found") == 2


def test_dockerfile_starts_a_command_and_sets_settings_that_there_are() -> None:
    """It ends as an ordinary user, on the port that compose publishes."""
    lines = (DEPLOY / "Dockerfile").read_text().splitlines()
    said = {line.split()[0]: line.partition(" ")[2] for line in lines if line and not line.startswith("#")}

    assert yaml.safe_load(said["ENTRYPOINT"])[1] in cli.list_commands(click.Context(cli))
    assert {name for name in re.findall(r"(\w+)=", said["ENV"]) if name.startswith("SLIPSTREAM_")} <= SETTINGS
    assert said["EXPOSE"] == str(PORT)
    assert int(said["USER"]) > 0
    assert said["WORKDIR"] == "/var/lib/slipstream"


def test_policy_of_compose_is_one_with_money_to_see() -> None:
    """It is taken, its ledger lies in the volume, list prices are known, and somebody may look."""
    policy = read_policy(DEPLOY / "policy.yaml", no_env=True).policy

    assert policy.ledger is not None
    assert policy.ledger.url.get_secret_value().startswith("sqlite:////var/lib/slipstream/")
    assert policy.prices is not None
    assert any(key.admin for key in policy.keys)


def test_unit_starts_reloads_and_waits_as_the_gateway_does() -> None:
    """SIGHUP reloads, SIGTERM is waited for longer than calls may take, and who stops in order is not restarted."""
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(DEPLOY / "systemd" / "slipstream.service")
    service = unit["Service"]

    assert service["ExecStart"].split()[1:] == ["serve", "/etc/slipstream/policy.yaml"]
    assert "-HUP" in service["ExecReload"]
    assert float(service["TimeoutStopSec"].removesuffix("s")) > DRAIN_LIMIT_S
    assert service["Restart"] == "on-failure"


def test_proxies_let_calls_take_their_time() -> None:
    """Idle connections end before the gateway ends them, and a stream may be still for longer than a call may take."""
    nginx = (DEPLOY / "nginx" / "slipstream.conf").read_text()
    resources = yaml.safe_load((DEPLOY / "envoy" / "envoy.yaml").read_text())["static_resources"]
    manager = resources["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    (options,) = resources["clusters"][0]["typed_extension_protocol_options"].values()
    idle_s = float(options["common_http_protocol_options"]["idle_timeout"].removesuffix("s"))

    assert idle_s < KEEP_ALIVE_S
    assert f"keepalive_timeout {idle_s:.0f}s;" in nginx
    assert float(manager["stream_idle_timeout"].removesuffix("s")) > DRAIN_LIMIT_S
    assert "proxy_read_timeout 1h;" in nginx
    assert manager["request_timeout"] == "0s"


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze, which reads units")
def test_unit_is_one_that_systemd_takes_and_shuts_in(tmp_path: Path) -> None:
    """Not a word about a key that it does not know, and little that the service may do."""
    unit = tmp_path / "slipstream.service"
    unit.write_text((DEPLOY / "systemd" / unit.name).read_text().replace("/opt/slipstream/bin/slipstream", "/bin/true"))
    environment = {"SYSTEMD_LOG_LEVEL": "warning", "PATH": os.environ["PATH"]}
    verify = ["systemd-analyze", "verify", "--man=no", unit]
    secure = ["systemd-analyze", "security", "--offline=true", "--threshold=20", unit]
    verified = subprocess.run(verify, capture_output=True, text=True, env=environment)
    secured = subprocess.run(secure, capture_output=True, text=True, env=environment)

    assert unit.name not in verified.stderr
    assert secured.returncode == 0, secured.stdout


@pytest.mark.parametrize(
    "command",
    [
        ["hadolint", "--failure-threshold", "info", "Dockerfile"],
        ["check-jsonschema", "--builtin-schema", "vendor.compose-spec", "compose.yaml"],
    ],
    ids=lambda command: command[0],
)
def test_files_pass_the_tool_that_knows_them(command: list[str]) -> None:
    """Nothing to say, not even for your information."""
    tool = Path(sys.executable).parent / command[0]
    done = subprocess.run([tool, *command[1:]], cwd=DEPLOY, capture_output=True, text=True)

    assert done.returncode == 0, done.stdout + done.stderr
