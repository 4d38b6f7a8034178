"""The `passthrough` section of a route: what goes on to a backend without being understood here."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, field_validator

from backends.config import Config
from backends.operations import BY_PATH
from policies.passthrough.paths import plainest

PassPattern = Annotated[
    str, Field(pattern=r"^(defaults|\*|((GET|POST|PUT|PATCH|DELETE|\*) )?/[!-~]*)$", max_length=256)
]


_PICO_PER_DOLLAR = 10**12


def pico_of_call(dollars: float) -> int:
    """Whole pico-dollars, of the number as it is written. Raises: ValueError where it is no whole number."""
    pico = Decimal(repr(dollars)) * _PICO_PER_DOLLAR
    if pico != int(pico):
        raise ValueError("a price for a call has at most twelve decimals")
    return int(pico)


def _exact(dollars: float) -> float:
    pico_of_call(dollars)
    return dollars


FlatPrice = Annotated[float, Field(ge=0, le=10_000), AfterValidator(_exact)]
FlatPattern = Annotated[str, Field(pattern=r"^(GET|POST|PUT|PATCH|DELETE|\*) /[!-~]*$", max_length=256)]


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
    flat_usd: dict[FlatPattern, FlatPrice] = Field(
        {},
        description="What a call takes in dollars that only passes through, whatever it uses: `POST /v1/audio/speech: "
        "0.015`, with globs; the first that fits counts. 0 says that it costs nothing. Other calls cost what their "
        "answers tell, and budgets refuse those of which nobody knows.",
    )

    @field_validator("flat_usd")
    @classmethod
    def _are_of_calls_that_pass(cls, value: dict[str, float]) -> dict[str, float]:
        for pattern in value:
            method, _, path = pattern.partition(" ")
            if method in ("POST", "*") and plainest(path) in BY_PATH:
                raise ValueError(f"{pattern} does not pass through: what it costs is a `price` of the backend")
        return value
