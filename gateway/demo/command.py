"""`slipstream demo`: the dashboard of a made-up ledger, for a look before there is traffic."""

from __future__ import annotations

import tempfile
import time
from functools import partial
from pathlib import Path

import click
import yaml

from backends.registry import Registry
from gateway.cli.serve import gateway_settings, run_gateway
from gateway.demo.ledger import CALLS_A_DAY, NUM_DAYS, fill, policy
from gateway.process.factory import application_of, load
from policies.policy_file.sources import PolicyFiles

_SOURCE = "made-up data"


@click.command()
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="Another one makes other weeks.")
@click.option("--host", help="Address to listen on.  [default: 127.0.0.1]")
@click.option(
    "--port", type=click.IntRange(0, 65535), help="Port to listen on; 0 lets the system choose.  [default: 8080]"
)
def demo(seed: int, host: str | None, port: int | None) -> None:
    """Show the dashboard with five made-up weeks, in which something happens on each day of the last one.

    A gateway starts with a throw-away ledger, and backends that answer by themselves. Ctrl-C ends it, and takes the
    ledger away.

    \b
    Examples:
      slipstream demo
      slipstream demo --port 8090 --seed 7
    """
    with tempfile.TemporaryDirectory(prefix="slipstream-demo-", ignore_cleanup_errors=True) as folder:
        ledger, file = Path(folder, "ledger.sqlite3"), Path(folder, "policy.yaml")
        with click.progressbar(length=NUM_DAYS * CALLS_A_DAY, label="Making up calls") as bar:
            spent_by_research = fill(ledger, time.time(), seed, bar.update)
        file.write_text(yaml.safe_dump(policy(ledger, spent_by_research), sort_keys=False), encoding="utf-8")
        settings = gateway_settings({"policy": file, "host": host, "port": port})
        files, registry = PolicyFiles(file), Registry()
        loaded = load(settings, registry, files)
        run_gateway(settings, loaded, partial(application_of, settings, registry, files, loaded), _SOURCE, None)
