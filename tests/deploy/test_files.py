"""The files in deploy/ name commands, ports, variables and paths that there are."""

from __future__ import annotations

import configparser
import re
import subprocess
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from gateway.cli.main import cli
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
    mounted = [volume.split(":")[0] for service in services.values() for volume in service.get("volumes", [])]

    assert mounted
    assert all((DEPLOY / path).exists() for path in mounted)
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
    assert said["USER"] != "root"


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


def test_envoy_says_what_nginx_says() -> None:
    """The gateway's port, no limit that ends a long answer, no second try, no metrics for others."""
    nginx = (DEPLOY / "nginx" / "slipstream.conf").read_text()
    resources = yaml.safe_load((DEPLOY / "envoy" / "envoy.yaml").read_text())["static_resources"]
    (listener,), (cluster,) = resources["listeners"], resources["clusters"]
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    denied, passed = manager["route_config"]["virtual_hosts"][0]["routes"]
    (options,) = cluster["typed_extension_protocol_options"].values()
    (endpoint,) = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"]
    idle_s = float(options["common_http_protocol_options"]["idle_timeout"].removesuffix("s"))
    address = endpoint["endpoint"]["address"]["socket_address"]

    assert f"server {address['address']}:{address['port_value']};" in nginx
    assert address["port_value"] == PORT
    assert f"listen {listener['address']['socket_address']['port_value']};" in nginx
    assert f"keepalive_timeout {idle_s:.0f}s;" in nginx
    assert (passed["route"]["cluster"], passed["route"]["timeout"]) == (cluster["name"], "0s")
    assert "retry_policy" not in passed["route"]
    assert (denied["match"]["path"], denied["direct_response"]["status"]) == ("/metrics", 403)
    assert "location = /metrics { deny all; }" in nginx
    assert float(manager["stream_idle_timeout"].removesuffix("s")) > DRAIN_LIMIT_S
    assert manager["request_timeout"] == "0s"
