"""The benchmark: its model, its turns and its report. Speed itself is measured by running it."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from transformers import AutoModelForCausalLM

from backends.engine.benchmark.contender import Contender, peer
from backends.engine.benchmark.figure import (
    BenchmarkFigure,
    MeasurementSetting,
    PeerMissing,
    at_least,
    at_most,
    ratio,
    skipped,
    take_turns,
)
from backends.engine.benchmark.gguf_export import _interleaved
from backends.engine.benchmark.made_model import make_model, random_prompts
from backends.engine.benchmark.overhead import overhead
from backends.engine.benchmark.own import own_engine
from backends.engine.benchmark.peers import Generate, _module
from backends.engine.benchmark.plain_loop import PlainLlama
from backends.engine.benchmark.report import as_json, as_text, machine
from backends.engine.benchmark.side_by_side import StepTimes, side_by_side
from backends.engine.errors import RequestRefused
from backends.engine.model.decoder import load_decoder
from backends.engine.options import EngineOptions
from kernels.dispatch import select_ops

SMALL: dict[str, object] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "torch_dtype": "float32",
}
SETTING = MeasurementSetting(folder=Path(), pair=None, threads=1, num_rounds=4, seconds=60.0, say=lambda line: None)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model of the benchmark's kind."""
    made = tmp_path_factory.mktemp("made")
    make_model(made, config=SMALL)
    return made


def test_made_model_is_read_by_engine_and_transformers_alike(folder: Path) -> None:
    """The engine and transformers choose the same tokens, so that all are measured on one model."""
    (prompt,) = random_prompts(1, 70, seed=3)
    theirs: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    expected = theirs.generate(torch.tensor([prompt]), max_new_tokens=6, do_sample=False, pad_token_id=0)

    with own_engine(EngineOptions(model=folder, device="cpu", dtype="float32", speculate="off")) as own:
        tokens, first_s, seconds = own.answer(prompt, num_tokens=6, salt=b"")

    assert tokens == expected[0, len(prompt) :].tolist()
    assert 0 < first_s <= seconds


def test_plain_loop_computes_what_the_model_says(folder: Path) -> None:
    """The loop that the engine is compared with does the whole work: its logits are those of transformers."""
    ids = torch.tensor(random_prompts(2, 9, seed=5))
    with torch.inference_mode():
        model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        theirs = model(ids).logits[:, -1]
        decoder = load_decoder(folder, dtype=torch.float32, device=torch.device("cpu"), ops=select_ops("cpu"))
        plain = PlainLlama(decoder)
        cache = torch.zeros(2, 2, 2, 2, 9, 16)
        plain.logits(ids[:, :8], 0, cache)
        ours = plain.logits(ids[:, 8:], 8, cache)

    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)


def test_side_by_side_makes_each_step_once_and_chooses_what_the_engine_alone_does(folder: Path) -> None:
    """The engine's steps and the loop's are as many as tokens, and both choose the tokens of the model."""
    prompts = random_prompts(3, 60, seed=4)
    options = EngineOptions(model=folder, device="cpu", dtype="float32", speculate="off")
    chosen: list[list[int]] = []
    with ExitStack() as stack, torch.inference_mode():
        run = side_by_side(options, stack)
        times = run(prompts, 8)
        decoder = load_decoder(folder, dtype=torch.float32, device=torch.device("cpu"), ops=select_ops("cpu"))
        chosen += PlainLlama(decoder).steps(prompts, 8)
    with own_engine(options) as own:
        answers = [own.answer(prompt, num_tokens=8, salt=b"")[0] for prompt in prompts]

    assert [len(times.engine), len(times.loop)] == [8, 8]
    assert min(times.engine + times.loop) > 0
    assert [list(answer) for answer in zip(*chosen, strict=True)] == answers


def test_side_by_side_tells_what_fails(folder: Path) -> None:
    """A prompt that the engine refuses is an error, and the engine goes on with the next."""
    options = EngineOptions(model=folder, device="cpu", dtype="float32", speculate="off")
    with ExitStack() as stack:
        run = side_by_side(options, stack)
        with pytest.raises(RequestRefused):
            run([[5, 10**6]], 2)

        assert len(run([[5, 6]], 2).engine) == 2


def test_overhead_counts_steps_by_their_length_and_leaves_a_stalled_one_out() -> None:
    """A prompt's step of 30 at 1.1 and a token's of 10 at 1.5 come to 1.2, whatever one round of three met."""
    usual = StepTimes(engine=[33.0, 15.0], loop=[30.0, 10.0])
    slow = StepTimes(engine=[66.0, 30.0], loop=[60.0, 20.0])
    stalled = StepTimes(engine=[33.0, 900.0], loop=[300.0, 10.0])

    assert overhead([usual, stalled, usual]) == pytest.approx(1.2)
    assert overhead([usual, slow, usual]) == pytest.approx(1.2)


def test_take_turns_warms_up_and_takes_turns() -> None:
    """Contenders are measured in turn, round by round, and the first round is left out."""
    calls: list[str] = []

    def run(name: str) -> float:
        calls.append(name)
        return float(len(calls))

    results = take_turns(SETTING, {name: partial(run, name) for name in ("a", "b")}, say="")

    assert calls == ["a", "b"] * 5
    assert results == {"a": [3, 5, 7, 9], "b": [4, 6, 8, 10]}


def test_take_turns_out_of_time_stops_after_two_rounds() -> None:
    """The time is a bound on rounds begun, and two are made in any case."""
    results = take_turns(replace(SETTING, seconds=0.0), {"a": lambda: 1.0}, say="")

    assert results == {"a": [1.0, 1.0]}


def test_ratio_is_the_median_of_the_rounds() -> None:
    """A slow round of the machine meets both and leaves the ratio alone."""
    assert ratio({"a": [10.0, 1.0, 12.0], "b": [5.0, 0.5, 4.0]}, "a", "b") == 2.0


@pytest.mark.parametrize(
    ("figure", "holds"),
    [
        (at_least("a", 1.2, 1.2), True),
        (at_least("a", 1.2, 1.19), False),
        (at_most("a", 1.15, 1.15), True),
        (at_most("a", 1.15, 1.16), False),
        (skipped("a", ">= 1 x", "why"), None),
    ],
)
def test_figure_holds_at_its_bound(figure: BenchmarkFigure, holds: bool | None) -> None:
    """A bound belongs to what is allowed; what could not be measured neither holds nor fails."""
    assert figure.holds is holds


def test_report_tells_machine_asked_and_measured() -> None:
    """The table has a line a figure, the JSON the same with numbers."""
    figures = [at_least("one", 1.2, 1.5, "own 3, other 2 tok/s"), skipped("two", ">= 1 x", "pip install it")]
    on = machine(2)

    text, parsed = as_text(figures, on), json.loads(as_json(figures, on))

    assert "2 threads" in text
    assert "torch" in text
    assert [line.split() for line in text.splitlines() if line.startswith("one")] == [
        ["one", ">=", "1.2", "x", "1.50", "x", "holds"]
    ]
    assert "pip install it" in text
    assert parsed["figures"][0]["value"] == 1.5
    assert parsed["machine"]["threads"] == 2


def test_gguf_rows_are_interleaved_within_each_head() -> None:
    """Number i of a head and number i + D / 2, which turn together, become neighbours."""
    weight = torch.arange(8.0).unsqueeze(1)

    assert _interleaved(weight, 2).flatten().tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


def test_contender_that_is_missing_says_how_to_get_it() -> None:
    """What a contender's process cannot import is told to the one who started it."""
    make = cast("Callable[[], Generate]", partial(_module, "no_such_package"))

    with pytest.raises(PeerMissing, match="pip install no_such_package"):
        Contender(peer(make), threads=1)
