"""What commands that ask a running gateway take: its address, and keys named by where they are."""

from __future__ import annotations

from urllib.parse import urlsplit

import click
from pydantic import SecretStr, TypeAdapter, ValidationError

from backends.config import Secret
from gateway.settings import environment

_SECRET: TypeAdapter[SecretStr] = TypeAdapter(Secret)


class KeyReference(click.ParamType[str]):
    """A key, named by where it is."""

    name = "env:NAME|file:PATH"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The key itself. Raises: BadParameter, which does not repeat what was given."""
        try:
            return _SECRET.validate_python(value, context={"environ": environment()}).get_secret_value()
        except ValidationError as error:
            # The rule speaks of policy files: on a command line a key is seen by every process of the machine.
            said = error.errors()[0]["msg"].removeprefix("Value error, ").replace("the file itself", "the command")
            self.fail(said, param, ctx)


def gateway_address(context: click.Context, parameter: click.Parameter, url: str | None) -> str | None:
    """The callback of an address; wrong usage where it is none."""
    del context, parameter
    if url is not None and (urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).netloc):
        raise click.BadParameter("a gateway's address is like http://127.0.0.1:8080")
    return url
