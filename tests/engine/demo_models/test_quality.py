"""What rounding costs the embedded target: exact answers on held-out prompts, through the engine."""

from __future__ import annotations

import pytest

from backends.engine.demo_models.quality import TARGET, exact_share, main

needs_weights = pytest.mark.skipif(not (TARGET / "model.safetensors").exists(), reason="no weights exported yet")
COUNT = 48
MOST_LOST = {"int8": 0.01, "int4": 0.03, "kv int8": 0.01, "kv fp8": 0.01}
"""As shares of the answers."""
CHANCE = 2 / COUNT
"""So few questions tell points apart no better; `python -m backends.engine.demo_models.quality` asks hundreds."""


@pytest.fixture(scope="module")
def unrounded() -> float:
    """The share of the model as it is."""
    return exact_share(TARGET, "as it is", count=COUNT, threads=1)


@needs_weights
@pytest.mark.parametrize("form", MOST_LOST)
def test_quality_of_rounded_weights_and_caches_stays(form: str, unrounded: float) -> None:
    """One point at most is lost to eight bits, and three to four."""
    assert exact_share(TARGET, form, count=COUNT, threads=1) >= unrounded - MOST_LOST[form] - CHANCE


@needs_weights
def test_quality_command_compares_forms(capsys: pytest.CaptureFixture[str]) -> None:
    """A line a form, the first one being what the others are compared with."""
    main(["--count", "2", "--threads", "1", "--form", "as it is", "--form", "nf4"])

    lines = capsys.readouterr().out.splitlines()
    assert [line[:10].strip() for line in lines] == ["as it is", "nf4"]
    assert lines[0].endswith("+0.00 points")
