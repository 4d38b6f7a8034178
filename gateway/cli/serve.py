"""`slipstream serve`: start the gateway and say how to talk to it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path

import click
import yaml
from pydantic import ValidationError

from backends.errors import ConfigurationError
from backends.registry import Registry
from gateway.factory import load
from gateway.settings import Settings, environment
from policies.load import LoadedPolicy

_UPSTREAM_KEY = "UPSTREAM_KEY"


@click.command()
@click.argument("file", required=False, type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--upstream",
    metavar="URL",
    help="Without a FILE: proxy this OpenAI-compatible server, as in http://127.0.0.1:8000/v1.",
)
@click.option("--host", help="Address to listen on.  [default: 127.0.0.1]")
@click.option(
    "--port", type=click.IntRange(0, 65535), help="Port to listen on; 0 lets the system choose.  [default: 8080]"
)
@click.option("--workers", type=click.IntRange(1, 256), help="Processes that share the port.  [default: 1]")
def serve(file: Path | None, upstream: str | None, host: str | None, port: int | None, workers: int | None) -> None:
    """Start the gateway with a policy FILE, or with --upstream, or with neither to try it out.

    Every option is also an environment variable SLIPSTREAM_HOST, _PORT, _WORKERS, _POLICY and so on
    (docs/settings.md). The policy file is read again when it changes, and on SIGHUP.

    \b
    Examples:
      slipstream serve policy.yaml --host 0.0.0.0 --workers 2
      UPSTREAM_KEY=sk-... slipstream serve --upstream https://api.openai.com/v1
    """
    if file is not None and upstream is not None:
        raise click.UsageError("give a policy FILE or --upstream, not both")
    given = {"policy": file, "host": host, "port": port, "workers": workers}
    try:
        settings = Settings(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        problems = "; ".join(
            f"SLIPSTREAM_{str(p['loc'][0]).upper()}: {p['msg']}" for p in error.errors(include_input=False)
        )
        raise click.ClickException(problems) from error
    with _policy_file(settings.policy, upstream) as path:
        settings = settings.model_copy(update={"policy": path})
        # model_copy leaves the fields that were given marked as given, which export_settings goes by.
        try:
            loaded = load(settings, Registry())
        except ConfigurationError as error:
            raise click.ClickException(error.message) from error
        _refuse_open_door(settings, loaded)
        _run(settings, loaded, upstream)


def _run(settings: Settings, loaded: LoadedPolicy, upstream: str | None) -> None:
    # Imported late: prometheus_client decides at import whether workers share their metrics.
    from gateway.server import serve as run_server

    def greet(port: int) -> None:
        for warning in loaded.warnings:
            click.secho(f"warning: {warning}", err=True, fg="yellow")
        click.echo(_greeting(settings, loaded, upstream, port), err=True)

    try:
        run_server(settings, greet)
    except OSError as error:
        raise click.ClickException(
            f"cannot listen on {settings.host}:{settings.port}: {error.strerror or error}; choose another --port or --host"
        ) from error


def _refuse_open_door(settings: Settings, loaded: LoadedPolicy) -> None:
    if settings.is_public and not loaded.policy.keys:
        raise click.ClickException(
            f"{loaded.path} has no `keys`, so anybody who reaches {settings.host} could spend your tokens. "
            "Add keys to it, or leave --host away to listen on loopback only."
        )


@contextmanager
def _policy_file(given: Path | None, upstream: str | None) -> Iterator[Path]:
    """The policy to serve: the one given, or one made up for --upstream, or the built-in trial."""
    if given is not None:
        yield given
    elif upstream is None:
        with resources.as_file(resources.files("policies.presets").joinpath("scripted.yaml")) as path:
            yield path
    else:
        with tempfile.TemporaryDirectory(prefix="slipstream-") as directory:
            path = Path(directory, "upstream.yaml")
            path.write_text(_policy_for(upstream), encoding="utf-8")
            yield path


def _policy_for(upstream: str) -> str:
    backend = {"type": "openai", "base_url": upstream}
    if environment().get(_UPSTREAM_KEY):
        backend["api_key"] = f"env:{_UPSTREAM_KEY}"
    policy = {
        "version": 1,
        "backends": {"upstream": backend},
        "routes": [{"name": "all", "match": {"models": ["*"]}, "backends": [{"ref": "upstream"}]}],
    }
    return yaml.safe_dump(policy, sort_keys=False)


def _greeting(settings: Settings, loaded: LoadedPolicy, upstream: str | None, port: int) -> str:
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    if settings.host in ("0.0.0.0", "::"):
        host = "127.0.0.1"
    root = f"http://{host}:{port}"
    lines = [f"Slipstream listens on {root}/v1, policy revision {loaded.revision} ({upstream or loaded.path.name})."]
    if not loaded.policy.keys:
        lines.append("The policy has no `keys`: anybody on this machine may call, nobody else can (loopback only).")
    if settings.policy is not None and settings.policy.name == "scripted.yaml":
        lines.append(
            "No upstream is named: a scripted backend answers. For a real one: slipstream serve --upstream URL"
        )
    key = ' \\\n    -H "authorization: Bearer $KEY"' if loaded.policy.keys else ""
    model = _some_model(loaded)
    body = f'{{"model": "{model}", "messages": [{{"role": "user", "content": "Hello!"}}], "stream": true}}'
    lines.append("Try it:")
    lines.append(f"  curl -N {root}/v1/chat/completions -H 'content-type: application/json'{key} \\\n    -d '{body}'")
    return "\n".join(lines)


def _some_model(loaded: LoadedPolicy) -> str:
    for route in loaded.policy.routes:
        for name in route.match.models:
            if not any(sign in name for sign in "*?["):
                return name
    return "MODEL-NAME" if any(kind != "scripted" for kind, _ in loaded.backends.values()) else "any-model"
