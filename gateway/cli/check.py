"""`slipstream check`: everything that is wrong in a policy file, or what is in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from backends.errors import ConfigurationError
from gateway.assembly.speculation import read_calibrations
from gateway.cli.loading import FileProblem, file_argument, format_option, no_env_option, read_policy
from policies.policy_file.load import LoadedPolicy


@click.command()
@file_argument
@format_option
@no_env_option
@click.pass_context
def check(context: click.Context, file: Path, form: str, no_env: bool) -> None:
    """Find what is wrong in a policy FILE: all of it, each with its line and what to do.

    \b
    Examples:
      slipstream check policy.yaml
      slipstream check --no-env --format json policy.yaml     # in CI, where no secret is set
    """
    try:
        loaded = read_policy(file, no_env=no_env)
        read_calibrations(loaded.policy.routes)
    except ConfigurationError as error:
        if form == "text":
            count = len(error.message.splitlines())
            raise FileProblem(f"{error.message}\n{count} problem{'s' if count > 1 else ''}") from error
        click.echo(json.dumps({"ok": False, "file": str(file), "errors": error.message.splitlines()}, indent=2))
        context.exit(1)
    summary = _summary(loaded)
    click.echo(json.dumps({"ok": True, **summary}, indent=2) if form == "json" else _text(summary))


def _summary(loaded: LoadedPolicy) -> dict[str, Any]:
    policy = loaded.policy
    return {
        "file": str(loaded.path),
        "revision": loaded.revision,
        "routes": {route.name: [part.ref for part in route.backends] for route in policy.routes},
        "backends": {name: kind for name, (kind, _) in loaded.backends.items()},
        "keys": {key.name: key.tenant for key in policy.keys},
        "has_key_store": policy.stores.keys is not None,
        "warnings": list(loaded.warnings),
    }


def _text(summary: dict[str, Any]) -> str:
    routes = [f"{name} -> {', '.join(refs)}" for name, refs in summary["routes"].items()]
    backends = [f"{name} ({kind})" for name, kind in summary["backends"].items()]
    keys = [f"{name} (tenant {tenant})" for name, tenant in summary["keys"].items()]
    if summary["has_key_store"]:
        keys.append("those of stores.keys")
    keys = keys or ["none: loopback only"]
    lines = [f"{summary['file']}: OK, revision {summary['revision']}"]
    for title, items in (("routes", routes), ("backends", backends), ("keys", keys)):
        lines += [f"  {title if index == 0 else '':<10}{item}" for index, item in enumerate(items)]
    lines += [f"warning: {warning}" for warning in summary["warnings"]]
    return "\n".join(lines)
