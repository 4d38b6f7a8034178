"""Parameters of the commands that call a running gateway: its address, and references to API keys."""

from __future__ import annotations

from urllib.parse import urlsplit

import click
from pydantic import SecretStr, TypeAdapter, ValidationError

from backends.config import Secret
from gateway.settings import environment

_SECRET: TypeAdapter[SecretStr] = TypeAdapter(Secret)


class KeyReference(click.ParamType[str]):
    """An API key, given by a reference to the place where it is stored."""

    name = "env:NAME|file:PATH"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Read the key. Raises: BadParameter, which does not repeat the value, since it may be a key."""
        try:
            return _SECRET.validate_python(value, context={"environ": environment()}).get_secret_value()
        except ValidationError as error:
            # The message is worded for policy files, but here the key would stand in the command.
            problem = error.errors()[0]["msg"].removeprefix("Value error, ").replace("the file itself", "the command")
            self.fail(problem, param, ctx)


def gateway_address(context: click.Context, parameter: click.Parameter, url: str | None) -> str | None:
    """The callback of an address option. Raises: BadParameter."""
    del context, parameter
    if url is not None and (urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).netloc):
        raise click.BadParameter("a gateway's address is like http://127.0.0.1:8080")
    return url
