"""Where a Redis is and how to get in, read from the URL of the policy file; and a connection to it, let in."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from ssl import SSLContext
from typing import Any, Self

import msgspec

from backends.errors import ConfigurationError
from policies.limits.redis.replies import Reply, ReplyError
from policies.limits.redis.scripts import pack_command
from policies.limits.redis.wire import LOST, RedisWire

_MOVED = re.compile(r"(?:MOVED|ASK) \d+ (?P<host>.*):(?P<port>\d+)")


class RedisRefused(Exception):
    """Redis does not let anybody in, or does not do what it is there for. Its text is Redis's own."""


class RedisAddress(msgspec.Struct, frozen=True, kw_only=True):
    """A host and a port, or the path of a socket."""

    host: str
    port: int
    path: str | None
    greeting: tuple[bytes, ...]
    """Packed commands that a connection begins with: who we are, which database."""
    tls: SSLContext | None

    @classmethod
    def from_url(cls, url: str) -> Self:
        """As redis-py reads it. Raises: ConfigurationError, which does not repeat the URL."""
        try:
            from redis.asyncio import ConnectionPool
            from redis.asyncio.connection import SSLConnection
            from redis.exceptions import RedisError
        except ImportError as error:
            raise ConfigurationError(
                "stores.redis needs the redis client: pip install 'slipstream-gateway[redis]'"
            ) from error
        try:
            connection: Any = ConnectionPool.from_url(url).make_connection()
            tls = connection.ssl_context.get() if isinstance(connection, SSLConnection) else None
        except (ValueError, TypeError, OSError, RedisError):
            # Not a URL; a parameter that there is not; a file of certificates that there is not.
            raise ConfigurationError("stores.redis.url is not a redis:// or rediss:// URL") from None
        greeting = []
        if connection.password or connection.username:
            user = () if connection.username is None else (connection.username.encode(),)
            greeting.append(pack_command(b"AUTH", *user, (connection.password or "").encode()))
        if connection.db:
            greeting.append(pack_command(b"SELECT", b"%d" % int(connection.db)))
        path = getattr(connection, "path", None)
        return cls(
            host="localhost" if path else connection.host,
            port=0 if path else int(connection.port),
            path=path,
            greeting=tuple(greeting),
            tls=tls,
        )

    def moved(self, reply: ReplyError) -> Self | None:
        """Where a cluster says that our keys are; None where it says something else."""
        found = _MOVED.match(str(reply))
        if found is None:
            return None
        return msgspec.structs.replace(self, host=found["host"] or self.host, port=int(found["port"]), path=None)

    async def connect(self, make: Callable[[], RedisWire]) -> RedisWire:
        """A connection that is let in. Raises: OSError, RedisRefused."""
        loop = asyncio.get_running_loop()
        if self.path is not None:
            _, wire = await loop.create_unix_connection(make, self.path, ssl=self.tls)
        else:
            _, wire = await loop.create_connection(make, self.host, self.port, ssl=self.tls)
        try:
            for command in self.greeting:
                raise_refusal(await wire.ask(command))
        except BaseException:
            wire.abort()
            raise
        return wire


def raise_refusal(reply: Reply) -> None:
    """Raises: ConnectionError where the reply was lost, RedisRefused where it is an error."""
    if reply is LOST:
        raise ConnectionError(str(LOST))
    if isinstance(reply, ReplyError):
        raise RedisRefused(str(reply))
