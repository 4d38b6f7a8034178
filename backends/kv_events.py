"""What engines tell of the prompts they keep: how a backend's feed of such events is configured, and who has one."""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import Literal, Protocol, runtime_checkable

from pydantic import Field, field_validator

from backends.config import Config
from backends.protocol import Call

SALT_FIELD = "cache_salt"
_ENDPOINT = re.compile(r"tcp://[^\s/*]+:\d{1,5}|ipc:///\S+")


class KvEventsConfig(Config):
    """The engine's own feed of what its prompt cache holds (`--kv-events-config` of vLLM and SGLang, over ZeroMQ)."""

    endpoint: str = Field(
        description="Where the engine publishes, as seen from here: `tcp://host:5557`. Each data-parallel rank has a "
        "port of its own, and needs a backend of its own.",
    )
    replay: str | None = Field(
        None,
        description="Its `replay_endpoint`: asked for what was missed, and at the start for all that it still has.",
    )
    topic: str = Field("", max_length=256, description="Only events of topics that begin so; empty for all.")
    tokenizer: str = Field(
        min_length=1,
        description="A folder with the model's `tokenizer.json`, `tokenizer_config.json` and chat template: events "
        "speak of tokens, and prompts are text.",
    )
    scope: Literal["tenant", "global"] = Field(
        "tenant",
        description="Whose calls find each other's prompts there. `tenant` sends a `cache_salt` of the tenant with "
        "each call, so that the engine keeps them apart; `global` sends none.",
    )

    @field_validator("endpoint", "replay")
    @classmethod
    def _can_be_reached(cls, value: str | None) -> str | None:
        if value is not None and not _ENDPOINT.fullmatch(value):
            raise ValueError(
                "where it is reached from here: tcp://host:port or ipc:///path, with a host and not with *"
            )
        return value

    def salt(self, call: Call) -> str:
        """What keeps the call's prompt apart in the engine's cache; empty where nothing does."""
        own = call.body.get(SALT_FIELD) if call.body is not None else None
        given = own if isinstance(own, str) else ""
        if self.scope == "global":
            return given
        return blake2b(f"{call.tenant}\0{given}".encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


@runtime_checkable
class KvPublisher(Protocol):
    """A backend whose engine may publish what its prompt cache holds."""

    @property
    def kv_events(self) -> KvEventsConfig | None:
        """Where it does so; None if it does not."""
