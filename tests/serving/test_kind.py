"""`type: engine` as a policy file sees it."""

from __future__ import annotations

import subprocess
import sys

import pytest
from pydantic import ValidationError

from backends.serving.settings import EngineConfig


def test_kind_is_loaded_without_pytorch() -> None:
    """Reading a policy, or checking one, takes no seconds and no hundred megabytes."""
    program = (
        "import sys; from backends.registry import Registry; Registry().kind('engine');"
        "print([name for name in ('torch', 'numpy', 'tokenizers', 'transformers') if name in sys.modules])"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=30)

    assert done.stdout.strip() == "[]"


def test_settings_a_draft_that_is_asked_for_must_be_there() -> None:
    """It would otherwise be found out when the model is loaded."""
    with pytest.raises(ValidationError, match="needs a draft model"):
        EngineConfig(model="x", speculate="draft")


@pytest.mark.parametrize(
    "settings",
    [
        {"model": ""},
        {"model": "x", "max_sequences": 0},
        {"model": "x", "memory": "12"},
        {"model": "x", "dtype": "int4"},
    ],
    ids=["no-model", "no-places", "no-unit", "no-type"],
)
def test_settings_out_of_bounds_are_refused(settings: dict[str, object]) -> None:
    """Every field has its bounds."""
    with pytest.raises(ValidationError):
        EngineConfig.model_validate(settings)
