"""One question after the health of an HTTP upstream, on the connections that its calls use."""

from __future__ import annotations

from collections.abc import Sequence

from backends.clock import Clock
from backends.errors import UpstreamGarbage
from backends.health import HealthConfig
from backends.http.wire import TimeLimits, Wire

_MAX_ANSWER_BYTES = 1024**2


async def ask_health(wire: Wire, config: HealthConfig, headers: Sequence[tuple[bytes, bytes]], clock: Clock) -> None:
    """Ask once; connecting and answering have `timeout` each. Raises: UpstreamError unless it answers with 2xx."""
    limits = TimeLimits(
        connect_s=config.timeout,
        first_byte_s=config.timeout,
        idle_s=config.timeout,
        deadline=clock.now() + 2 * config.timeout,
    )
    exchange = await wire.send("GET", config.path.encode("ascii"), headers, b"", limits)
    try:
        if not 200 <= exchange.status < 300:
            raise UpstreamGarbage(f"{config.path} answered with status {exchange.status}")
        # Read to its end, or the connection could not be used again.
        await exchange.body(_MAX_ANSWER_BYTES)
    finally:
        await exchange.aclose()
