"""How the offline commands read a policy file, and how they report one that they cannot use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import click

from backends.config import Config
from backends.errors import ConfigurationError
from backends.registry import Registry
from gateway.settings import environment
from policies.policy_file.load import LoadedPolicy, load_policy

file_argument = click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
format_option = click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Text for people, JSON for programs.",
)
no_env_option = click.option(
    "--no-env", is_flag=True, help="Accept secrets whose environment variable is not set: look at the structure only."
)


class FileProblem(click.ClickException):
    """The policy file cannot be used: exit code 1, one problem a line on standard error."""

    exit_code = 1

    def show(self, file: object = None) -> None:
        """Print the problems without a prefix: each line begins with its position in the file."""
        click.echo(self.message, err=True)


class _AnyEnvironment(Mapping[str, str]):
    """An environment in which every variable is set: those that are not get a placeholder as their value."""

    def __init__(self, known: Mapping[str, str]) -> None:
        self._known = known

    def __getitem__(self, name: str) -> str:
        return self._known.get(name) or f"(value of {name})"

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)


def read_policy(file: Path, *, no_env: bool) -> LoadedPolicy:
    """Load and check a policy file; with `no_env` a missing environment variable is no problem.

    Raises: ConfigurationError.
    """
    registry = Registry()

    def settings_of(kind: str) -> type[Config]:
        return registry.kind(kind).config

    environ = environment()
    return load_policy(file, _AnyEnvironment(environ) if no_env else environ, settings_of)


def read_policy_or_exit(file: Path, *, no_env: bool) -> LoadedPolicy:
    """Like `read_policy`, for commands that end with exit code 1 if the policy cannot be used.

    Raises: FileProblem.
    """
    try:
        return read_policy(file, no_env=no_env)
    except ConfigurationError as error:
        raise FileProblem(error.message) from error
