"""Section `cache` of a route, and where answers are kept."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from backends.config import ByteSize, Config, Duration, Name, Secret
from policies.cache.semantic.settings import SemanticPolicy

CacheScope = Literal["user", "key", "tenant", "global"]
ClientControl = Literal["no-cache", "no-store", "max-age"]


class ExactCachePolicy(Config):
    """Same call, same answer."""

    enabled: bool = Field(True, description="Turns the exact cache on for this route.")
    ttl: Duration = Field(86400.0, gt=0, description="How long an answer may be served.")
    coalesce: Literal["off", "wait", "join_stream"] = Field(
        "join_stream",
        description="Identical calls in flight share one upstream call: they `wait` for the whole answer, or "
        "`join_stream` to follow it live.",
    )
    max_entry: ByteSize = Field(1024**2, ge=1024, description="Answers larger than this are not stored.")


class CachePolicy(Config):
    """What may be answered from memory, and for whom."""

    scope: CacheScope = Field(
        "tenant",
        description="Who shares entries. `user` is the body's `user` field; a call without one is not cached.",
    )
    epoch: str = Field("", max_length=64, description="Change it to invalidate everything this route has stored.")
    client_control: tuple[ClientControl, ...] = Field(
        ("no-cache", "no-store", "max-age"), description="Which `cache-control` directives of a client are honoured."
    )
    pacing: Literal["off", "recorded"] = Field(
        "off",
        description="`recorded` hides from clients what was stored: an answer takes as long as it took at first, and "
        "nothing in it shows that it is not new. Calls in flight are not shared then.",
    )
    exact: ExactCachePolicy = Field(default_factory=ExactCachePolicy, description="The exact cache.")
    semantic: SemanticPolicy | None = Field(
        None, description="The semantic cache, behind the exact one; without this section there is none."
    )

    @model_validator(mode="after")
    def _has_one_pace(self) -> Self:
        if self.pacing == "off" or self.semantic is None:
            return self
        if self.semantic.replay_tps is not None:
            raise ValueError("give pacing or semantic.replay_tps, not both")
        return self


class RedisStore(Config):
    """Redis as the shared store of every replica."""

    url: Secret = Field(description="redis://... or rediss://..., as env:NAME or file:PATH.")
    timeout: Duration = Field(0.005, gt=0, le=5, description="A look-up that takes longer is a miss.")
    prefix: Name = Field("slipstream", description="Begins every key written.")


class MemoryStore(Config):
    """Memory of one process."""

    max_size: ByteSize = Field(
        256 * 1024**2, ge=1024**2, description="All entries together; the least recently used go first."
    )
