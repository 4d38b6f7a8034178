"""Asking a backend whether it works without giving it work: what is configured for it, and what answers that."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from pydantic import Field

from backends.config import Config, Duration


class HealthConfig(Config):
    """A path of the backend's server that is asked from time to time, whether there are calls or not."""

    path: str = Field(
        "/health",
        pattern=r"^/[!-~]*$",
        max_length=1024,
        description="What is asked for, from the root of the server and not below `base_url`; 2xx is well.",
    )
    interval: Duration = Field(5.0, gt=0, le=3600, description="The wait between two questions, a fifth more or less.")
    timeout: Duration = Field(1.0, gt=0, le=60, description="An answer that takes longer is none.")
    failures: int = Field(2, ge=1, le=100, description="Bad answers in a row that take the backend out of rotation.")


@runtime_checkable
class Probed(Protocol):
    """A backend that can be asked how it is."""

    @property
    def name(self) -> str:
        """The configured name."""

    @property
    def health(self) -> HealthConfig | None:
        """How it wants to be asked; None if it does not."""

    async def check_health(self) -> None:
        """Ask once.

        Raises: PoolTimeout where all its connections are in use, another UpstreamError where it does not work.
        """
