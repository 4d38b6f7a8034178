"""`slipstream serve`: starts the gateway and prints how to call it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
from pydantic import ValidationError

from backends.errors import ConfigurationError
from backends.registry import Registry
from gateway.app import Application
from gateway.cli.greeting import (
    EMBEDDED,
    TRIAL,
    first_key_expression,
    first_listed_model,
    greeting,
    model_copy_warnings,
    model_to_try,
    unknown_variable_warnings,
)
from gateway.cli.ready_made import UPSTREAM_KEY, PolicyOrigin, has_embedded_models, model_name, ready_made_policy
from gateway.process.factory import application_of, load
from gateway.settings import LOOPBACK_HOSTS, Settings, environment
from policies.policy_file.load import LoadedPolicy
from policies.policy_file.sources import PolicyFiles

_OPTIONS_BY_FIELD = {
    "backends.upstream.base_url: ": "--upstream",
    "backends.model.model: ": "--model",
    "backends.model.draft: ": "--draft",
}
"""The command-line option behind each field of a generated policy: a problem of the field is reported for it."""


@click.command()
@click.argument("file", required=False, type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--upstream",
    metavar="URL",
    help="Without a FILE: proxy this OpenAI-compatible server, as in http://127.0.0.1:8000/v1. "
    "Its key, if it wants one, is taken from the environment variable UPSTREAM_KEY.",
)
@click.option("--model", metavar="DIR", help="Without a FILE: serve this model, a folder in Hugging Face's layout.")
@click.option(
    "--draft", metavar="DIR", help="With --model: a smaller model with the same tokenizer, to speculate with."
)
@click.option(
    "--quantization",
    type=click.Choice(["int8", "w8a8", "int4", "nf4", "fp8"]),
    help="With --model: what to turn its weights into.",
)
@click.option(
    "--device", type=click.Choice(["auto", "cpu", "cuda"]), help="With --model: where it runs.  [default: auto]"
)
@click.option("--host", help="Address to listen on.  [default: 127.0.0.1]")
@click.option(
    "--port", type=click.IntRange(0, 65535), help="Port to listen on; 0 lets the system choose.  [default: 8080]"
)
@click.option("--workers", type=click.IntRange(1, 256), help="Processes that share the port.  [default: 1]")
def serve(file: Path | None, upstream: str | None, **options: Any) -> None:
    """Start the gateway with a policy FILE, or with --upstream or --model, or with nothing to try it out.

    Ctrl-C or SIGTERM stops it once the answers in flight are finished. A policy file is read again when it changes,
    and on SIGHUP. These settings and more can be given as environment variables, such as SLIPSTREAM_PORT and
    SLIPSTREAM_MAX_BODY: see docs/settings.md.

    \b
    Examples:
      slipstream serve
      UPSTREAM_KEY=sk-... slipstream serve --upstream https://api.openai.com/v1
      slipstream serve --model models/Qwen3-0.6B --quantization int8 --device cpu
      slipstream serve policy.yaml --host 0.0.0.0 --workers 2
    """
    settings = gateway_settings({"policy": file, **{name: options[name] for name in ("host", "port", "workers")}})
    origin = PolicyOrigin(upstream, _model_settings(options))
    if settings.policy is not None and origin != PolicyOrigin():
        option = "--upstream" if upstream is not None else "--model"
        raise click.UsageError(f"give a policy FILE (or SLIPSTREAM_POLICY) or {option}, not both")
    if upstream is not None and origin.model is not None:
        raise click.UsageError("give --upstream or --model, not both")
    source = _source(settings.policy, origin)
    has_key = bool(environment().get(UPSTREAM_KEY))
    made = nullcontext(settings.policy) if settings.policy else ready_made_policy(origin, has_key=has_key)
    with made as path:
        # model_copy keeps `model_fields_set`, on which export_settings depends.
        settings = settings.model_copy(update={"policy": path})
        try:
            files = PolicyFiles(path)
            registry = Registry()
            loaded = load(settings, registry, files)
            if upstream is not None and urlsplit(upstream).netloc in _own_addresses(settings):
                problem = "the gateway itself would listen there; give it another --port"
                raise click.BadParameter(problem, param_hint="--upstream")
            if settings.is_public and not loaded.policy.asks_for_keys:
                raise click.ClickException(_no_keys_message(settings, source))
            run_gateway(settings, loaded, partial(application_of, settings, registry, files, loaded), source, upstream)
        except ConfigurationError as error:
            if origin != PolicyOrigin():
                _blame_option(error)
            raise click.ClickException(error.message) from error


def _model_settings(options: dict[str, Any]) -> dict[str, str] | None:
    """The settings of the backend for --model and the options that belong to it."""
    given = {name: options[name] for name in ("model", "draft", "quantization", "device") if options[name] is not None}
    if given and "model" not in given:
        raise click.UsageError(f"--{next(iter(given))} needs --model")
    return given or None


def _source(policy: Path | None, origin: PolicyOrigin) -> str:
    """A name for the origin of the policy."""
    if policy is not None:
        return policy.name
    if origin.model is not None:
        return model_name(origin.model["model"])
    return origin.upstream or (EMBEDDED if has_embedded_models() else TRIAL)


def _blame_option(error: ConfigurationError) -> None:
    """Report a problem of a generated policy as one of the option that caused it. Raises: BadParameter."""
    for place, option in _OPTIONS_BY_FIELD.items():
        _, is_there, problem = error.message.partition(place)
        if is_there:
            raise click.BadParameter(problem, param_hint=option) from error


def gateway_settings(given: dict[str, Any]) -> Settings:
    """The settings of the command line, which take precedence, and those of the environment."""
    try:
        return Settings(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        problems = "; ".join(
            f"SLIPSTREAM_{str(problem['loc'][0]).upper()}: {problem['msg'].removeprefix('Value error, ')}"
            for problem in error.errors(include_input=False)
        )
        raise click.ClickException(problems) from error


def run_gateway(
    settings: Settings, loaded: LoadedPolicy, create: Callable[[], Application], source: str, upstream: str | None
) -> None:
    # Imported late: when prometheus_client is imported, it decides whether the workers share their metrics.
    from gateway.process.server import serve as run_server

    warnings = [
        *loaded.warnings,
        *unknown_variable_warnings(environment()),
        *model_copy_warnings(loaded, settings.workers),
    ]
    model, key = model_to_try(loaded), first_key_expression(loaded)
    if upstream is not None:
        listed, troubles = first_listed_model(upstream, environment().get(UPSTREAM_KEY, ""))
        model = listed or model
        warnings += troubles

    def greet(port: int) -> None:
        for warning in warnings:
            click.secho(f"warning: {warning}", err=True, fg="yellow")
        click.echo(greeting(settings, loaded, source, port, model, key), err=True)

    try:
        run_server(settings, greet, create)
    except OSError as error:
        raise click.ClickException(
            f"cannot listen on {settings.host}:{settings.port}: {error.strerror or error}; try another --port or --host"
        ) from error


def _own_addresses(settings: Settings) -> set[str]:
    return {f"{host}:{settings.port}" for host in (*LOOPBACK_HOSTS, settings.host)}


def _no_keys_message(settings: Settings, source: str) -> str:
    danger = f"anybody who reaches {settings.host} could spend your tokens"
    if settings.policy is None or source != settings.policy.name:
        return f"without a policy file there are no `keys`: {danger}. Name a file that has some, or leave --host away."
    return f"{settings.policy} has no `keys`, so {danger}. Add keys to it, or leave --host away."
