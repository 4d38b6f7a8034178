"""`slipstream serve`: start the gateway and say how to talk to it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
import yaml
from pydantic import ValidationError

from backends.errors import ConfigurationError
from backends.registry import Registry
from gateway.cli.greeting import TRIAL, ask_model, greeting, some_model, unknown_variables
from gateway.factory import load
from gateway.settings import LOOPBACK_HOSTS, Settings, environment
from policies.load import LoadedPolicy

_UPSTREAM_KEY = "UPSTREAM_KEY"


@click.command()
@click.argument("file", required=False, type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--upstream",
    metavar="URL",
    help="Without a FILE: proxy this OpenAI-compatible server, as in http://127.0.0.1:8000/v1. "
    "Its key, if it wants one, is taken from the environment variable UPSTREAM_KEY.",
)
@click.option("--host", help="Address to listen on.  [default: 127.0.0.1]")
@click.option(
    "--port", type=click.IntRange(0, 65535), help="Port to listen on; 0 lets the system choose.  [default: 8080]"
)
@click.option("--workers", type=click.IntRange(1, 256), help="Processes that share the port.  [default: 1]")
def serve(file: Path | None, upstream: str | None, host: str | None, port: int | None, workers: int | None) -> None:
    """Start the gateway with a policy FILE, or with --upstream, or with neither to try it out.

    Ctrl-C or SIGTERM stops it once the answers in flight are finished. A policy file is read again when it changes,
    and on SIGHUP. These settings and more can be given as environment variables, such as SLIPSTREAM_PORT and
    SLIPSTREAM_MAX_BODY: see docs/settings.md.

    \b
    Examples:
      slipstream serve
      UPSTREAM_KEY=sk-... slipstream serve --upstream https://api.openai.com/v1
      slipstream serve policy.yaml --host 0.0.0.0 --workers 2
    """
    settings = _settings({"policy": file, "host": host, "port": port, "workers": workers})
    if settings.policy is not None and upstream is not None:
        raise click.UsageError("give a policy FILE (or SLIPSTREAM_POLICY) or --upstream, not both")
    source = upstream or (settings.policy.name if settings.policy is not None else TRIAL)
    with _policy_file(settings.policy, upstream) as path:
        # model_copy leaves the fields that were given marked as given, which export_settings goes by.
        settings = settings.model_copy(update={"policy": path})
        try:
            loaded = load(settings, Registry())
            if upstream is not None and urlsplit(upstream).netloc in _own_addresses(settings):
                problem = "the gateway itself would listen there; give it another --port"
                raise click.BadParameter(problem, param_hint="--upstream")
            if settings.is_public and not loaded.policy.keys:
                raise click.ClickException(_open_door(settings, source))
            _run(settings, loaded, source, upstream)
        except ConfigurationError as error:
            _, is_about_url, problem = error.message.partition("backends.upstream.base_url: ")
            if upstream is not None and is_about_url:
                # The file is of our own making, so the option is what is wrong.
                raise click.BadParameter(problem, param_hint="--upstream") from error
            raise click.ClickException(error.message) from error


def _settings(given: dict[str, Any]) -> Settings:
    """The environment's settings and, before them, those of the command line."""
    try:
        return Settings(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        problems = "; ".join(
            f"SLIPSTREAM_{str(problem['loc'][0]).upper()}: {problem['msg'].removeprefix('Value error, ')}"
            for problem in error.errors(include_input=False)
        )
        raise click.ClickException(problems) from error


def _run(settings: Settings, loaded: LoadedPolicy, source: str, upstream: str | None) -> None:
    # Imported late: prometheus_client decides at import whether workers share their metrics.
    from gateway.server import serve as run_server

    warnings = [*loaded.warnings, *unknown_variables(environment())]
    model = some_model(loaded)
    if upstream is not None:
        listed, troubles = ask_model(upstream, environment().get(_UPSTREAM_KEY, ""))
        model = listed or model
        warnings += troubles

    def greet(port: int) -> None:
        for warning in warnings:
            click.secho(f"warning: {warning}", err=True, fg="yellow")
        click.echo(greeting(settings, loaded, source, port, model), err=True)

    try:
        run_server(settings, greet)
    except OSError as error:
        raise click.ClickException(
            f"cannot listen on {settings.host}:{settings.port}: {error.strerror or error}; try another --port or --host"
        ) from error


def _own_addresses(settings: Settings) -> set[str]:
    return {f"{host}:{settings.port}" for host in (*LOOPBACK_HOSTS, settings.host)}


def _open_door(settings: Settings, source: str) -> str:
    danger = f"anybody who reaches {settings.host} could spend your tokens"
    if settings.policy is None or source != settings.policy.name:
        return f"without a policy file there are no `keys`: {danger}. Name a file that has some, or leave --host away."
    return f"{settings.policy} has no `keys`, so {danger}. Add keys to it, or leave --host away."


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
