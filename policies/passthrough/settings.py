"""The `passthrough` section of a route: what goes on to a backend without being understood here."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from backends.config import Config

PassPattern = Annotated[
    str, Field(pattern=r"^(defaults|\*|((GET|POST|PUT|PATCH|DELETE|\*) )?/[!-~]*)$", max_length=256)
]


class PassthroughPolicy(Config):
    """Calls of the API that the gateway does not know; nothing passes that is not listed."""

    allow: tuple[PassPattern, ...] = Field(
        ("defaults",),
        description="What passes: `METHOD PATH`, or `PATH` for every method, with globs (`GET /v1/audio/voices`, "
        "`/skills/*`); `*` for all; `defaults` for the gateway's own list.",
    )
    objects: Literal["owned", "shared"] = Field(
        "owned",
        description="Who may name what an upstream keeps (responses, files, batches, ...): `owned` for the tenant that "
        "made it, `shared` for everybody. With one tenant there is no difference.",
    )
