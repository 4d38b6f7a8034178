"""`slipstream config`: a policy as the gateway understands it, and the JSON Schema of the format."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args, get_origin

import click
import yaml
from pydantic import BaseModel, SecretStr

from gateway.cli.config.reference import docs
from gateway.cli.config.schema import schema
from gateway.cli.loading import file_argument, no_env_option, read_policy_or_exit
from policies.policy_file.load import LoadedPolicy
from policies.policy_file.locate import Document, Place
from policies.policy_file.problems import is_secret_word
from policies.policy_file.units import unit_of, with_unit, without_wrapping

_HIDDEN = "**********"


@click.group()
def config() -> None:
    """Show a policy as the gateway understands it, or the schema of the format."""


@config.command()
@file_argument
@click.option("--effective", is_flag=True, help="Fill in every default, and what routes take over from `defaults`.")
@no_env_option
def show(file: Path, effective: bool, no_env: bool) -> None:
    """Print the policy in FILE as YAML. Secrets appear as references or as **********.

    \b
    Example:
      slipstream config show --effective policy.yaml
    """
    loaded = read_policy_or_exit(file, no_env=no_env)
    written = effective_policy(loaded) if effective else written_policy(loaded)
    click.echo(yaml.safe_dump(written, sort_keys=False, allow_unicode=True, width=120), nl=False)


config.add_command(schema)
config.add_command(docs)


def effective_policy(loaded: LoadedPolicy) -> dict[str, Any]:
    """The policy as it would have to be written in a file if there were no defaults."""
    written: dict[str, Any] = _written(loaded.policy, type(loaded.policy), (), (), loaded.document)
    for name, (kind, settings) in loaded.backends.items():
        section = _written(settings, type(settings), (), ("backends", name), loaded.document)
        # What every type has, such as a price, and what only this one has.
        written["backends"][name] = {**written["backends"][name], "type": kind, **section}
    # The included sections are part of it already.
    return {name: section for name, section in written.items() if name != "include"}


def written_policy(loaded: LoadedPolicy) -> dict[str, Any]:
    """The policy as it is written, with what it includes, and without secrets."""
    data: dict[str, Any] = _without_secrets(loaded.document.data)
    return {name: section for name, section in data.items() if name != "include"}


def _written(value: Any, annotation: Any, metadata: tuple[Any, ...], place: Place, document: Document) -> Any:
    """A value as it is written in a policy file: with its unit, and a reference in place of a secret."""
    if isinstance(value, SecretStr):
        reference = document.value(place)
        return reference if isinstance(reference, str) else _HIDDEN
    if isinstance(value, BaseModel):
        return {
            name: _written(getattr(value, name), field.annotation, tuple(field.metadata), (*place, name), document)
            for name, field in type(value).model_fields.items()
        }
    annotation, inner = without_wrapping(annotation)
    metadata = (*metadata, *inner)
    if isinstance(value, dict):
        item = get_args(annotation)[1] if get_origin(annotation) is dict else None
        return {
            key: _HIDDEN if _is_open_secret(key, entry) else _written(entry, item, (), (*place, key), document)
            for key, entry in value.items()
        }
    if isinstance(value, tuple | list):
        item = get_args(annotation)[0] if get_args(annotation) else None
        return [_written(entry, item, (), (*place, index), document) for index, entry in enumerate(value)]
    unit = unit_of(annotation, metadata)
    return with_unit(value, unit) if unit is not None and value is not None else value


def _without_secrets(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: _HIDDEN if _is_open_secret(key, entry) else _without_secrets(entry) for key, entry in value.items()
        }
    return [_without_secrets(entry) for entry in value] if isinstance(value, list) else value


def _is_open_secret(key: str, value: object) -> bool:
    """Whether this looks like a secret that is written in the file itself, for instance in a fixed header."""
    return is_secret_word(key) and isinstance(value, str) and not value.startswith(("env:", "file:"))
