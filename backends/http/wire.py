"""What an HTTP leaf needs from whatever carries its bytes: one request out, one exchange back.

Our own transport and the adapter for any httpx transport both provide it; leaves know nothing else of HTTP.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from backends.answer_budget import HeldAnswer
from backends.protocol import Headers, Statistics
from backends.stream import Receive


class TimeLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Time limits of one exchange.

    `connect_s` bounds waiting for a connection and opening it, `first_byte_s` the wait for the answer's first
    byte, `idle_s` every later silence (all in seconds); `deadline` bounds the whole (monotonic seconds).
    """

    connect_s: float
    first_byte_s: float
    idle_s: float
    deadline: float


class WireExchange(Protocol):
    """One answer whose head has arrived. Also a `Source`: whoever holds it closes it."""

    idle_s: float
    """The silence that `read` bears from now on, in seconds; begins as `TimeLimits.idle_s` and may be changed."""

    @property
    def status(self) -> int:
        """The HTTP status."""

    @property
    def headers(self) -> Headers:
        """Every field of the answer, names in lower case."""

    async def read(self) -> bytes:
        """Bytes that arrived since the last call, at least one; b"" at the end.

        Raises: UpstreamCut, StreamStalled, TotalTimeout.
        """

    async def forward(self, receive: Receive) -> bool:
        """Hand pieces to `receive` as they arrive, until it asks for a pause (True) or the end (False).

        Raises: as `read`.
        """

    async def body(self, max_bytes: int, held: HeldAnswer | None = None) -> bytes:
        """Everything to the end; `held` grows with it.

        Raises: as `read` and `HeldAnswer.grow`, and UpstreamGarbage where it is longer than `max_bytes`.
        """

    async def aclose(self) -> None:
        """Give the connection back if the answer is whole, else close it at once."""


class Wire(Protocol):
    """Carries requests to one origin."""

    async def open(self) -> None:
        """Acquire what sending needs."""

    async def send(
        self, method: str, target: bytes, headers: Sequence[tuple[bytes, bytes]], body: bytes, limits: TimeLimits
    ) -> WireExchange:
        """Send one request and wait for the head of its answer.

        `target` is the path with its query; `headers` are complete but for host and content-length.
        Raises: ConnectFailed, ConnectTimeout, PoolTimeout (nothing was sent), FirstTokenTimeout, TotalTimeout,
        UpstreamCut, UpstreamGarbage. Cancelling closes the connection at once.
        """

    async def aclose(self) -> None:
        """Close every connection. Safe to call twice."""

    def statistics(self) -> Statistics:
        """A snapshot of the counters."""
