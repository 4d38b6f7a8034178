"""What HTTP backends are told of their quotas: their keys, and what they may be asked in a minute."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import BeforeValidator, Field, SecretStr

from backends.config import Config, Duration, Secret
from backends.headers import is_field_value

_MAX_KEYS = 1000
_MAX_RATE = 10**12
BURST_S = 6.0


class QuotaConfig(Config):
    """What a backend may be asked in a minute, with all of its keys together."""

    rpm: int | None = Field(None, ge=1, le=_MAX_RATE, description="Requests.")
    tpm: int | None = Field(None, ge=1, le=_MAX_RATE, description="Tokens, of prompts and answers together.")
    burst: Duration = Field(
        BURST_S,
        ge=0.01,
        le=30,
        description="The quota of so long may be asked at once. No minute sees more than a minute's, so this much of "
        "it stays unused where calls always wait: a tenth by default.",
    )

    def describe(self) -> str:
        """What is kept to, for `slipstream explain`."""
        rates = [
            f"{rate:,} {what}" for rate, what in ((self.rpm, "requests"), (self.tpm, "tokens")) if rate is not None
        ]
        return f"at most {' and '.join(rates) or 'what its keys may'} a minute"


class ApiKeyConfig(Config):
    """A key with a quota of its own."""

    key: Secret = Field(description="The key.")
    rpm: int | None = Field(None, ge=1, le=_MAX_RATE, description="Requests a minute.")
    tpm: int | None = Field(None, ge=1, le=_MAX_RATE, description="Tokens a minute.")


def _written_out(value: object) -> object:
    return {"key": value} if isinstance(value, str) else value


ApiKeys = Annotated[
    tuple[Annotated[ApiKeyConfig, BeforeValidator(_written_out, json_schema_input_type=Secret | ApiKeyConfig)], ...]
    | None,
    Field(
        min_length=1,
        description="Several keys in place of `api_key`, each a secret, or `{key, rpm, tpm}` where it has a quota of "
        "its own. Each call takes the one with most left, and one that the upstream refuses is left out.",
    ),
]
SharesObjects = Annotated[
    bool,
    Field(
        description="Whether each of `api_keys` finds what was made with another one: files, stored responses. Without "
        "it, calls about these take the first key only."
    ),
]
Quota = Annotated[
    QuotaConfig | None,
    Field(description="What it may be asked in a minute; no more is sent. Without this only its own refusals say."),
]


def check_keys(api_key: SecretStr | None, api_keys: Sequence[ApiKeyConfig] | None, quota: QuotaConfig | None) -> None:
    """Raises: ValueError for both of them, too many, one twice, or one that cannot be sent; no key is shown in it.

    And for a `quota` that nothing is to be kept to by.
    """
    rates = [(each.rpm, each.tpm) for each in api_keys or ()]
    if quota is not None and not any((quota.rpm, quota.tpm, *map(any, rates))):
        raise ValueError("quota has neither rpm nor tpm, and no key has")
    if api_key is not None and api_keys is not None:
        raise ValueError("set api_key or api_keys, not both")
    if api_key is not None and not is_field_value(api_key.get_secret_value()):
        raise ValueError("the key of api_key has a character that no header can carry")
    if api_keys is not None and len(api_keys) > _MAX_KEYS:
        raise ValueError(f"api_keys has {len(api_keys)} keys; at most {_MAX_KEYS} are chosen from")
    seen: dict[str, int] = {}
    for number, given in enumerate(api_keys or (), 1):
        text = given.key.get_secret_value()
        if not is_field_value(text):
            raise ValueError(f"key {number} of api_keys has a character that no header can carry")
        if text in seen:
            raise ValueError(f"keys {seen[text]} and {number} of api_keys are the same")
        seen[text] = number


def given_keys(api_key: SecretStr | None, api_keys: Sequence[ApiKeyConfig] | None) -> tuple[ApiKeyConfig, ...]:
    """Whichever was set."""
    return tuple(api_keys) if api_keys is not None else (ApiKeyConfig(key=api_key),) if api_key is not None else ()
