"""Section `match` of a route: which calls it takes."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from backends.config import Config, Name


class MatchPolicy(Config):
    """Which calls a route takes; every key that is given must hold. The first route that matches wins."""

    models: tuple[Annotated[str, Field(min_length=1, max_length=256)], ...] = Field(
        (), description='Globs over the model name (`*`, `?`, `[...]`). A call without a model matches only "*".'
    )
    paths: tuple[Annotated[str, Field(pattern=r"^/")], ...] = Field(
        (), description="Globs over the path, with or without /v1: `/v1/chat/completions`, `/v1/audio/*`."
    )
    headers: dict[str, str] = Field({}, description="Header name to glob over its value.")
    keys: tuple[Name, ...] = Field((), description="Names of keys.")
    tenants: tuple[Name, ...] = Field((), description="Names of tenants.")
    internal: bool = Field(False, description="Never matches by itself: the route is only a fallback of others.")

    @model_validator(mode="after")
    def _has_a_condition(self) -> Self:
        if not self.internal and not (self.models or self.paths or self.headers or self.keys or self.tenants):
            raise ValueError('give at least one condition, for instance models: ["*"], or internal: true')
        return self
