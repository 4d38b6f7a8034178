"""The `batching` part of the policy file: how calls may share an upstream call."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from backends.config import ByteSize, Config, Duration, format_duration
from policies.policy_file.units import format_size


class BatchingPolicy(Config):
    """Embedding calls of many callers in one upstream call, while the backends are busy."""

    mode: Literal["idle_release"] = Field(
        "idle_release",
        description="`idle_release`: an idle backend gets a call at once; what comes while it is busy goes together as "
        "soon as it is free.",
    )
    max_batch: int = Field(64, ge=2, le=2048, description="Inputs of one upstream call.")
    max_bytes: ByteSize = Field(
        256 * 1024, ge=1024, description="Bytes of one upstream call; larger calls go by themselves."
    )
    max_in_flight: int | None = Field(
        None,
        ge=1,
        le=1000,
        description="Upstream calls at once, of those that may share one. Default: one for each backend in rotation.",
    )
    max_waiting: int = Field(
        2048, ge=1, le=1_000_000, description="Inputs that wait to share a call; one more is refused with 429."
    )
    patience: Duration = Field(
        1.0, gt=0, description="An upstream call that takes longer keeps nobody waiting: the next goes beside it."
    )

    def describe(self) -> str:
        """What becomes of calls, in the words of `slipstream explain`."""
        at_once = f", {self.max_in_flight} at once" if self.max_in_flight is not None else ""
        return (
            f"at once while a backend is free, else with others: up to {self.max_batch} inputs and "
            f"{format_size(self.max_bytes)} a call{at_once}, nobody waits for one that takes over "
            f"{format_duration(self.patience)}"
        )
