"""Settings of keys: one or several, each once, and never repeated in a message."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from backends.http.anthropic.messages import AnthropicConfig
from backends.http.openai_settings import OpenAIConfig

ENVIRON = {"A": "sk-secret-a", "B": "sk-secret-b", "A_TOO": "sk-secret-a", "BROKEN": "sk-secret\n-c"}


@pytest.mark.parametrize("config", [OpenAIConfig, AnthropicConfig])
@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"api_key": "env:A", "api_keys": ["env:B"]}, "set api_key or api_keys, not both"),
        ({"api_keys": ["env:A", "env:B", "env:A_TOO"]}, "keys 1 and 3 of api_keys are the same"),
        ({"api_keys": ["env:A", "env:BROKEN"]}, "key 2 of api_keys has a character that no header can carry"),
        ({"api_key": "env:BROKEN"}, "the key of api_key has a character that no header can carry"),
        ({"api_keys": []}, "at least 1 item"),
        ({"api_keys": ["env:A"], "quota": {"burst": "1s"}}, "quota has neither rpm nor tpm, and no key has"),
        ({"quota": {"rpm": 0}}, "greater than or equal to 1"),
        ({"quota": {"tpm": -5}}, "greater than or equal to 1"),
        ({"quota": {"rpm": 1.5}}, "valid integer"),
        ({"quota": {"rpm": 1, "burst": "2m"}}, "less than or equal to 30"),
        ({"api_keys": [{"key": "env:A", "rpm": 0}]}, "greater than or equal to 1"),
        ({"api_keys": [{"rpm": 5}]}, "Field required"),
        ({"api_keys": ["sk-secret-pasted"]}, "written as env:NAME or file:PATH"),
        ({"api_keys": ["env:MISSING"]}, "the environment variable MISSING is not set"),
        (
            {"api_keys": [f"env:K{number}" for number in range(1001)]},
            "api_keys has 1001 keys; at most 1000 are chosen from",
        ),
    ],
)
def test_keys_that_cannot_be_used_are_said_without_showing_them(
    config: Any, keys: dict[str, Any], message: str
) -> None:
    """By their place."""
    environ = ENVIRON | {f"K{number}": f"sk-secret-{number}" for number in range(1001)}
    with pytest.raises(ValidationError) as caught:
        config.model_validate({"base_url": "http://h/v1", **keys}, context={"environ": environ})

    assert message in str(caught.value)
    assert "sk-secret" not in str(caught.value)


@pytest.mark.parametrize("config", [OpenAIConfig, AnthropicConfig])
def test_keys_are_all_that_is_given(config: Any) -> None:
    """One, several or none."""

    def keys(**given: Any) -> list[str]:
        settings = config.model_validate({"base_url": "http://h/v1", **given}, context={"environ": ENVIRON})
        return [each.key.get_secret_value() for each in settings.keys]

    assert keys() == []
    assert keys(api_key="env:A") == ["sk-secret-a"]
    assert keys(api_keys=["env:B", {"key": "env:A", "rpm": 5}]) == ["sk-secret-b", "sk-secret-a"]
