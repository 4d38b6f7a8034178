"""`slipstream init`: a policy file that explains itself, and beside it a file with its secrets."""

from __future__ import annotations

import json
import os
import re
import secrets
import shlex
from pathlib import Path

import click

from gateway.cli.loading import FileProblem
from policies.prices.reading import has_list_prices

_URL = re.compile(r"https?://[^/\s]+")
"""What `base_url` takes."""
_POLICY = """\
# What this gateway does. docs/policies.md explains every key, and `slipstream check {policy}` finds mistakes. A running
# gateway takes a changed file over by itself. Secrets are not in here: `env:NAME` reads an environment variable.
version: 1

# Who answers: any OpenAI-compatible server. `type: anthropic` speaks to Anthropic, `type: engine` runs a model here.
backends:
  up:
    type: openai
    base_url: {url}
    api_key: "env:UPSTREAM_KEY"

# Who may call, with `authorization: Bearer KEY`, and who may look at everything: http://127.0.0.1:8080/dashboard.
keys:
  - {{name: dev, key: "env:GATEWAY_KEY"}}
  - {{name: admin, key: "env:ADMIN_KEY", admin: true}}

# What happens to a call. The first route that matches takes it.
routes:
  - name: all
    match: {{models: ["*"]}}
    backends: [{{ref: up}}]
    # The same call of the same tenant gets the same answer for an hour, and nobody is asked.
    cache: {{exact: {{ttl: 1h}}}}
    # When an answer is in time: counted in /metrics, and what `admission` would keep.
    slo: {{ttft: 5s, tpot: 200ms}}

# A row for every call, for the dashboard and `slipstream ledger report --config {policy} --by day`.
ledger: {{url: "sqlite:///ledger.sqlite3"}}

# What models cost: providers' list prices. A backend of your own can have a `price`.
{prices}

# Dollars that somebody may spend.
# budgets:
#   - {{name: month, per: key, usd: 50, every: month}}
"""
_SECRETS = """\
# Read by: set -a; . ./{name}; set +a
# What callers of the gateway show.
GATEWAY_KEY={key}
# What is shown at the dashboard.
ADMIN_KEY={admin_key}
# What the gateway shows upstream.
UPSTREAM_KEY={upstream_key}
"""


@click.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path), default=".")
@click.option("--upstream", default="https://api.openai.com/v1", show_default=True, help="The server that answers.")
def init(folder: Path, upstream: str) -> None:
    """Write a policy file with comments, and a .env file with its secrets, into FOLDER; nothing is overwritten.

    \b
    Examples:
      slipstream init
      slipstream init gateway --upstream http://127.0.0.1:8000/v1
    """
    if not _URL.match(upstream):
        raise click.BadParameter(
            f"{_quoted(upstream)} - must be a URL: http://host... or https://host...", param_hint="--upstream"
        )
    policy, environment = folder / "policy.yaml", folder / ".env"
    for path in (policy, environment):
        if path.exists():
            raise FileProblem(f"{path} is there already; nothing is written")
    prices = "prices: {}" if has_list_prices() else "# prices: {}  # needs: pip install 'slipstream-gateway[prices]'"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        said = {"key": _new_key(), "admin_key": _new_key(), "upstream_key": "put-its-key-here"}
        _write(environment, _SECRETS.format(name=environment.name, **said), 0o600)
        # A JSON string is a YAML string too, whatever is in the address.
        _write(policy, _POLICY.format(policy=policy.name, url=_quoted(upstream), prices=prices), 0o644)
    except OSError as error:
        raise FileProblem(f"{folder}: {error.strerror}") from error
    click.echo(
        f"{policy} says what the gateway does. {environment} has its secrets: put the upstream's key there. Then:"
    )
    if str(folder) != ".":
        click.echo(f"  cd {shlex.quote(str(folder))}")
    click.echo(f"  set -a; . ./{environment.name}; set +a")
    click.echo(f"  slipstream serve {policy.name}")


def _write(path: Path, text: str, mode: int) -> None:
    """A new file, which nobody else has made meanwhile, with its rights from the beginning."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w", encoding="utf-8") as file:
        file.write(text)


def _new_key() -> str:
    return f"sk-{secrets.token_urlsafe(24)}"


def _quoted(text: str) -> str:
    return json.dumps(text)
