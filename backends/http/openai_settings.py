"""Settings of `type: openai`, and the presets of known servers."""

from __future__ import annotations

from importlib import resources
from typing import Annotated, Any, Self

import yaml
from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from backends.config import ByteSize, Config, Duration, Secret
from backends.errors import ConfigurationError
from backends.headers import ForwardedHeader, is_field_value
from backends.health import HealthConfig
from backends.http.continuing import ContinuesBy
from backends.http.origin import parse_origin
from backends.kv_events import KvEventsConfig
from backends.priorities.asked import FirstPriority
from backends.quotas.settings import ApiKeyConfig, ApiKeys, Quota, SharesObjects, check_keys, given_keys


def presets() -> dict[str, dict[str, Any]]:
    """The known servers, by name."""
    text = resources.files("backends.http").joinpath("presets.yaml").read_text(encoding="utf-8")
    known: dict[str, dict[str, Any]] = yaml.safe_load(text)
    return known


class OpenAIConfig(Config):
    """Settings of `type: openai`."""

    preset: str | None = Field(
        None, description="A known server, whose settings are the defaults: vllm, sglang, openai, groq, ..."
    )
    base_url: str = Field(description="Where its API begins, usually ending in /v1.", pattern=r"^https?://[^/\s]+")
    api_key: Secret | None = Field(None, description="The key to present to it. Clients' own keys are never sent on.")
    api_keys: ApiKeys = None
    shares_objects: SharesObjects = False
    quota: Quota = None
    auth_header: str = Field(
        "authorization", pattern=r"^[A-Za-z0-9-]+$", description="The header that carries the key."
    )
    auth_scheme: str = Field("Bearer", description="What stands before the key; empty for the bare key.")
    headers: dict[str, str] = Field(
        {}, description="Further headers for every request. A client's own of the same name stay behind."
    )
    forward_headers: tuple[ForwardedHeader, ...] = Field(
        ("openai-beta", "anthropic-version", "anthropic-beta"),
        description="Headers of clients that are sent on, by name or with `*`. Callers who differ in one of them share "
        "no cached answer. No others travel but those of traces and, where a call only passes through, of its content.",
    )
    root_paths: tuple[Annotated[str, Field(pattern=r"^/[!-~]*$", max_length=256)], ...] = Field(
        (), description="Paths of its API that lie at the root of the server: below `base_url` without its `/v1`."
    )
    max_connections: int = Field(
        1000, ge=1, le=100_000, description="Connections open at once; more calls wait in line."
    )
    keep_idle: Duration | None = Field(
        None,
        gt=0,
        le=3600,
        description="How long an idle connection is kept for another call; shorter than the server keeps it. Without "
        "this, 4s over http and 55s over https.",
    )
    max_answer: ByteSize = Field(64 * 1024**2, ge=1024, description="The largest answer that is read whole.")
    stream_usage: bool = Field(
        True,
        description="Ask for the usage of streamed answers; it is taken out again where the client did not ask.",
    )
    first_priority: FirstPriority = Field(
        "lowest",
        description="Which `priority` of a body it takes first. One by which a call would go before those that name "
        "none is sent as 0, unless its key has `priority: high`.",
    )
    health: HealthConfig | None = Field(None, description="Asking it how it is; without this section nobody does.")
    kv_events: KvEventsConfig | None = Field(
        None, description="What it tells of the prompts it keeps; without this section that is guessed."
    )
    continues: ContinuesBy | None = Field(
        None,
        description="How it goes on with an answer that broke off elsewhere, on routes with `resume`: an engine behind "
        "another `slipstream`, a server that reads `continue_final_message`, or one that takes a last message of the "
        "assistant as a `prefill` unasked. Without this it does not.",
    )
    transport: str | None = Field(
        None,
        pattern=r"^[\w.]+:[\w.]+$",
        description="Another httpx transport, as module:factory, for HTTP/2, proxies or special TLS.",
    )

    @model_validator(mode="before")
    @classmethod
    def _fill_from_preset(cls, values: Any) -> Any:
        name = values.get("preset") if isinstance(values, dict) else None
        if name is None:
            return values
        known = presets()
        if not isinstance(name, str) or name not in known:
            # A complaint about this field, and not about the section, nor about what the preset would have said.
            listed = ", ".join(f"'{each}'" for each in sorted(known))
            wrong = InitErrorDetails(
                type=PydanticCustomError("literal_error", "one of {expected}", {"expected": listed}),
                loc=("preset",),
                input=name,
            )
            raise ValidationError.from_exception_data(cls.__name__, [wrong])
        return {**known[name], **values}

    @field_validator("base_url")
    @classmethod
    def _without_trailing_slash(cls, value: str) -> str:
        if "@" in value.split("/")[2] or "?" in value or "#" in value:
            raise ValueError("base_url takes no credentials, query or fragment; use api_key and headers")
        if not value.isascii() or value.split() != [value]:
            raise ValueError("base_url is ASCII without blanks; write others as %-escapes or xn-- names")
        try:
            parse_origin(value)
        except ConfigurationError as error:
            raise ValueError(error.message) from error
        return value.rstrip("/")

    @model_validator(mode="after")
    def _headers_are_sendable(self) -> Self:
        for name, value in self.headers.items():
            if not name.isascii() or not is_field_value(name) or not is_field_value(value):
                raise ValueError(f"the header {name!r} cannot be sent")
        if not is_field_value(self.auth_scheme):
            raise ValueError("auth_scheme has a character that no header can carry")
        check_keys(self.api_key, self.api_keys, self.quota)
        return self

    @property
    def keys(self) -> tuple[ApiKeyConfig, ...]:
        """All that it presents."""
        return given_keys(self.api_key, self.api_keys)
