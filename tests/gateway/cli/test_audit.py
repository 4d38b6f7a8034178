"""`slipstream audit timing` on a real gateway: routes that tell, that have nothing to tell, and that hide it."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.support.cli import Run
from tests.support.gateway import Gateway, running_gateway

KEYS = {"RED_KEY": "sk-red-0123456789", "BLUE_KEY": "sk-blue-0123456789"}
MODELS = {
    "open": {"scope": "global"},
    "apart": {"scope": "tenant"},
    "hidden": {"scope": "global", "pacing": "recorded"},
}
NUM_QUESTIONS = 40


def _policy() -> str:
    random = Random(4)
    # Each step has a tempo of its own: what comes from the upstream varies as a real one's answers do.
    script = [{"reply": "word", "delay": f"{random.randint(2, 12)}ms"} for _ in range(97)]
    return json.dumps(
        {
            "version": 1,
            "backends": {"up": {"type": "scripted", "script": script}},
            "keys": [
                {"name": "red", "key": "env:RED_KEY", "tenant": "red"},
                {"name": "blue", "key": "env:BLUE_KEY", "tenant": "blue"},
            ],
            "routes": [
                {"name": name, "match": {"models": [name]}, "backends": [{"ref": "up"}], "cache": cache}
                for name, cache in MODELS.items()
            ],
        }
    )


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    """One gateway for all of these tests."""
    with running_gateway(_policy(), environ=KEYS) as gateway:
        yield gateway


def audit(run: Run, gateway: Gateway, model: str, *more: str) -> Any:
    """Audit one route."""
    arguments = ("--model", model, "--key-a", "env:RED_KEY", "--key-b", "env:BLUE_KEY")
    count = ("--questions", NUM_QUESTIONS)
    return run("audit", "timing", gateway.url, *arguments, *count, *more, environ=dict(KEYS))


@pytest.mark.alone
@pytest.mark.parametrize("form", [[], ["--whole"]], ids=["stream", "whole"])
def test_route_for_everybody_tells_everything(run: Run, gateway: Gateway, form: list[str]) -> None:
    """By the clock and by the header: exit code 1, and each sign with its limits."""
    result = audit(run, gateway, "open", "--json", *form)
    shown = json.loads(result.stdout)
    signs = {sign["sign"]: sign for sign in shown["signs"]}

    assert result.exit_code == 1
    assert {"first byte", "last byte"} <= set(shown["tells"])
    assert signs["last byte"]["auc"] > 0.9
    assert signs["last byte"]["lower95"] > 0.75
    assert signs["last byte"]["asked_before"]["p50"] < signs["last byte"]["never_asked"]["p50"]
    # One header says it outright: "x-cache: hit", or one that only a new answer has.
    assert shown["signs"][-1]["auc"] in (0.0, 1.0)


@pytest.mark.parametrize(
    ("model", "form", "num_hits"),
    [("apart", "--json", 0), ("hidden", "--json", NUM_QUESTIONS), ("hidden", "--whole", NUM_QUESTIONS)],
)
def test_route_that_shares_nothing_or_hides_it_tells_nothing(
    run: Run, gateway: Gateway, model: str, form: str, num_hits: int
) -> None:
    """Neither by the clock nor by date or header, though the one serves from its cache whatever was asked before."""
    before = _num_hits(gateway, model)
    result = audit(run, gateway, model, "--json", "--tolerance", "0.15", form)
    shown = json.loads(result.stdout)

    assert shown["tells"] == []
    assert result.exit_code == 0
    assert [sign["sign"] for sign in shown["signs"][:3]] == ["first byte", "last byte", "date"]
    assert shown["signs"][3]["auc"] == 0.5
    assert _num_hits(gateway, model) - before == num_hits


def _num_hits(gateway: Gateway, route: str) -> float:
    metrics = asyncio.run(gateway.metrics())
    return metrics.value("slipstream_cache_lookups_total", route=route, layer="exact", outcome="hit")


def test_text_is_a_table_and_a_verdict(run: Run, gateway: Gateway) -> None:
    """For people."""
    result = audit(run, gateway, "open", "--whole", "--questions", "20")

    assert "20 questions that another key had asked before" in result.stdout
    assert "AUC" in result.stdout
    # How long things took may drown on a busy machine; how old an answer is does not.
    assert re.search(r"^What another key asked shows in: (.*, )?age\b", result.stdout, re.MULTILINE)


@pytest.mark.parametrize(
    ("url", "key", "said"),
    [
        ("http://127.0.0.1:9", "env:BLUE_KEY", "the gateway does not answer"),
        (None, "env:OTHER_KEY", "answered with 401"),
    ],
)
def test_gateway_that_does_not_answer_is_no_finding(
    run: Run, gateway: Gateway, url: str | None, key: str, said: str
) -> None:
    """Exit code 2, and why."""
    arguments = ("--model", "open", "--key-a", "env:RED_KEY", "--key-b", key)
    result = run("audit", "timing", url or gateway.url, *arguments, environ={**KEYS, "OTHER_KEY": "sk-nobody"})

    assert result.exit_code == 2
    assert said in result.stderr


@pytest.mark.parametrize(
    ("url", "key", "said"),
    [
        ("127.0.0.1:8080", "env:BLUE_KEY", "like http://127.0.0.1:8080"),
        ("http://127.0.0.1:8080", "sk-blue-0123456789", "env:NAME or file:PATH"),
        ("http://127.0.0.1:8080", "env:MISSING", "MISSING is not set"),
        ("http://127.0.0.1:8080", "env:RED_KEY", "both keys are the same"),
    ],
)
def test_wrong_usage_is_said_without_the_key(run: Run, url: str, key: str, said: str) -> None:
    """A key that was pasted is not repeated."""
    result = run("audit", "timing", url, "--model", "m", "--key-a", "env:RED_KEY", "--key-b", key, environ=dict(KEYS))

    assert result.exit_code == 2
    assert said in result.stderr
    assert "sk-" not in result.stderr


def test_key_may_lie_in_a_file(run: Run, gateway: Gateway, tmp_path: Path) -> None:
    """As in a policy."""
    path = tmp_path / "key"
    path.write_text(KEYS["BLUE_KEY"] + "\n", encoding="utf-8")
    arguments = ("--model", "open", "--key-a", "env:RED_KEY", "--key-b", f"file:{path}", "--questions", 20)
    result = run("audit", "timing", gateway.url + "/v1", *arguments, environ=dict(KEYS))

    assert result.exit_code == 1
