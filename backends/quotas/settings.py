"""What HTTP backends are told of their keys: one, or several to choose from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field, SecretStr

from backends.config import Secret
from backends.headers import is_field_value

ApiKeys = Annotated[
    tuple[Secret, ...] | None,
    Field(
        min_length=1,
        description="Several keys in place of `api_key`. Each call takes the one with most left, and one that the "
        "upstream refuses is left out.",
    ),
]
SharesObjects = Annotated[
    bool,
    Field(
        description="Whether each of `api_keys` finds what was made with another one: files, stored responses. Without "
        "it, calls about these take the first key only."
    ),
]

_MAX_KEYS = 64


def check_keys(api_key: SecretStr | None, api_keys: Sequence[SecretStr] | None) -> None:
    """Raises: ValueError for both of them, too many, one twice, or one that cannot be sent; no key is shown in it."""
    if api_key is not None and api_keys is not None:
        raise ValueError("set api_key or api_keys, not both")
    if api_key is not None and not is_field_value(api_key.get_secret_value()):
        raise ValueError("the key of api_key has a character that no header can carry")
    if api_keys is not None and len(api_keys) > _MAX_KEYS:
        raise ValueError(f"api_keys has {len(api_keys)} keys; at most {_MAX_KEYS} are chosen from")
    seen: dict[str, int] = {}
    for number, key in enumerate(api_keys or (), 1):
        text = key.get_secret_value()
        if not is_field_value(text):
            raise ValueError(f"key {number} of api_keys has a character that no header can carry")
        if text in seen:
            raise ValueError(f"keys {seen[text]} and {number} of api_keys are the same")
        seen[text] = number


def given_keys(api_key: SecretStr | None, api_keys: Sequence[SecretStr] | None) -> tuple[SecretStr, ...]:
    """Whichever was set."""
    return tuple(api_keys) if api_keys is not None else (api_key,) if api_key is not None else ()
