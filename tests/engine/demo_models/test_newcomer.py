"""What a newcomer asks first: training never met the prompts, the packaged weights answer them, and own up if not."""

from __future__ import annotations

import re
from random import Random

import pytest
from click import Context

from backends.engine.demo_models.generator import training_conversation
from backends.engine.demo_models.newcomer import FIRST_SET, HONEST, KEPT_OUT, SETS, NewcomerQuestion, plain, verdict
from backends.engine.demo_models.newcomer_score import ask, main
from backends.engine.demo_models.quality import TARGET
from backends.engine.demo_models.tasks.slipstream_tasks import FACTS
from backends.engine.demo_models.tasks.unknown_tasks import NOT_KNOWN
from gateway.cli.greeting import TRIAL_PROMPTS
from gateway.cli.main import cli
from tests.support.docs import ROOT

needs_weights = pytest.mark.skipif(not (TARGET / "model.safetensors").exists(), reason="no weights exported yet")
MUST_PASS = {"first": 17, "second": 17, "third": 15}
"""Of the twenty questions of a set: at least one fewer than were measured, for another CPU rounds otherwise."""


@pytest.mark.parametrize("name", SETS)
def test_newcomer_set_is_twenty_different_prompts(name: str) -> None:
    """A share of a set means the same everywhere."""
    assert len({plain(question.prompt) for question in SETS[name]}) == 20


def test_newcomer_prompts_are_kept_out_of_training() -> None:
    """What judges the model has not taught it, however the prompt is written."""
    rng = Random(31)
    trained = {plain(turn.prompt) for _ in range(6000) for turn in training_conversation(rng).turns}

    assert trained.isdisjoint(KEPT_OUT)


@needs_weights
@pytest.mark.parametrize("name", SETS)
def test_newcomer_set_packaged_target_is_right_or_honest(name: str) -> None:
    """So many of twenty answers at least are right, or say that the model does not know."""
    told = ask(TARGET, SETS[name])

    failed = [
        (question.prompt, answer)
        for question, (found, answer) in zip(SETS[name], told, strict=True)
        if found == "wrong"
    ]
    assert len(failed) <= len(SETS[name]) - MUST_PASS[name], failed


@needs_weights
def test_newcomer_set_behind_a_system_message_is_answered_as_well() -> None:
    """Clients that send one get no worse answers."""
    told = ask(TARGET, FIRST_SET, system="You are a helpful assistant.")

    assert sum(found != "wrong" for found, _ in told) >= MUST_PASS["first"]


@needs_weights
def test_newcomer_command_prints_answers_and_score(capsys: pytest.CaptureFixture[str]) -> None:
    """A line a question, and a line a set with what passed."""
    main([])

    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == sum(len(questions) + 1 for questions in SETS.values())
    assert [line.partition(":")[0] for line in lines if "pass" in line] == [f"{name} set" for name in SETS]


def test_verdict_of_answers() -> None:
    """Right is right; owning up passes, and is the only right answer to what cannot be known."""
    known, unknown = NewcomerQuestion("12+30", r"\b42\b"), NewcomerQuestion("Why?")

    assert [verdict(known, answer) for answer in ("It is 42.", "420", NOT_KNOWN)] == ["right", "wrong", "honest"]
    assert [verdict(unknown, answer) for answer in (NOT_KNOWN, "Because.")] == ["right", "wrong"]


def test_not_knowing_names_prompts_that_the_greeting_promises() -> None:
    """The way out that is offered is one that works; the greeting's are tested on the running gateway."""
    assert NOT_KNOWN.startswith(HONEST)
    assert set(re.findall(r'"(.+?)"', NOT_KNOWN)) <= set(TRIAL_PROMPTS)


@pytest.mark.parametrize("answer", [answer for _, answer in FACTS])
def test_facts_name_pages_and_commands_that_exist(answer: str) -> None:
    """The model is taught nothing about Slipstream that a user could not do."""
    for page in re.findall(r"docs/[\w/.-]+\.md", answer):
        assert (ROOT / page).exists(), page
    for name in re.findall(r"slipstream ([a-z]+)", answer):
        command = cli.get_command(Context(cli), name)
        assert command is not None, name
        known = {option for parameter in command.params for option in parameter.opts}
        assert set(re.findall(r"--[a-z-]+", answer)) <= known, name
