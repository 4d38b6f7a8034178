"""Answers that broke off and go on behind their tokens: as if they never had, wherever they broke."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from typing import Any

import pytest

from backends.engine.engine import Engine
from backends.engine.errors import RequestRefused
from backends.engine.request import Event, Request, SamplingParams
from tests.support.engine.tiny_pair import MAX_CONTEXT, VOCAB_SIZE, Answered, Listener, Pair, answer, make_pair, options

PROMPT = tuple(range(40, 60))
NUM_TOKENS = 14
SEEDED = SamplingParams(temperature=1.0, seed=11, max_tokens=NUM_TOKENS, ignore_eos=True)
GREEDY = replace(SEEDED, temperature=0.0, seed=None)
SCHEMA = {"type": "object", "properties": {"a": {"enum": ["xyz", "uvw"]}}, "required": ["a"]}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """The models, made once."""
    return make_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="module", params=["off", "draft", "ngram"])
def engine(pair: Pair, request: pytest.FixtureRequest) -> Iterator[Engine]:
    """One engine for each way to speculate."""
    engine = Engine(options(pair, speculate=request.param), rng=random.Random(1))
    engine.start()
    yield engine
    assert engine.statistics().scheduler.pool.num_used == 0
    engine.close()


def told(events: list[Event]) -> list[Any]:
    """Everything that a client could see of these, but for how it was cut into steps, and rounding."""
    logprobs = [each for event in events for each in event.logprobs or ()]
    end = events[-1]
    usage = end.usage
    assert usage is not None
    return [
        "".join(event.text for event in events),
        [token for event in events for token in event.tokens],
        [(each.token, pytest.approx(each.logprob, abs=1e-4)) for each in logprobs],
        [[token for token, _ in each.top] for each in logprobs],
        (end.finish_reason, end.stop_reason, usage.prompt_tokens, usage.completion_tokens),
    ]


def resumed(engine: Engine, request: Request, emitted: list[int]) -> Answered:
    """The answer that goes on behind these tokens."""
    [found] = answer(engine, [replace(request, id=f"{request.id}+{len(emitted)}", emitted=tuple(emitted))])
    return found


CASES = {
    "greedy": GREEDY,
    "seeded": SEEDED,
    "narrow": replace(SEEDED, top_p=0.8, top_k=20, min_p=0.02),
    "penalties": replace(SEEDED, presence_penalty=1.5, frequency_penalty=1.0, repetition_penalty=1.3),
    "greedy with penalties": replace(GREEDY, frequency_penalty=2.0),
    "log-probabilities": replace(SEEDED, logprobs=2),
    "at least": replace(SEEDED, ignore_eos=False, min_tokens=9, logit_bias={256: 30.0}),
}


@pytest.mark.parametrize("name", CASES)
def test_answer_resumed_at_every_token_is_the_unbroken_one(engine: Engine, name: str) -> None:
    """Text, tokens, log-probabilities, end and usage: those told again and those told now are the whole."""
    request = Request(id=name, prompt=PROMPT, params=CASES[name])
    [whole] = answer(engine, [request])
    tokens = whole.tokens()

    for num_emitted in range(1, len(tokens)):
        parts = [list(part) for _, part in groupby(resumed(engine, request, tokens[:num_emitted]).events, _is_replayed)]

        assert [event.tokens[0] for event in parts[0]] == tokens[:num_emitted]
        assert not any(event.logprobs for event in parts[0])
        expected = told(whole.events)
        if request.params.logprobs is not None:
            expected[2:4] = expected[2][num_emitted:], expected[3][num_emitted:]
        assert told([*parts[0], *parts[1]]) == expected, num_emitted


def _is_replayed(event: Event) -> bool:
    return event.is_replayed


def test_stop_string_across_the_break_is_found_and_held_text_comes_once(engine: Engine) -> None:
    """What was held back since it may become a stop string is neither lost nor told twice."""
    open_ended = Request(id="open", prompt=PROMPT, params=SEEDED)
    [free] = answer(engine, [open_ended])
    text = free.text()
    stops = {text[3:7], text[8:11]}

    for stop in stops:
        request = Request(id=f"stop {stop}", prompt=PROMPT, params=replace(SEEDED, stop=(stop, stop[:1] + "never")))
        [whole] = answer(engine, [request])
        tokens = whole.tokens()
        for num_emitted in range(1, len(tokens)):
            found = resumed(engine, request, tokens[:num_emitted])

            assert told(found.events) == told(whole.events), (stop, num_emitted)
            assert found.last.stop_reason == whole.last.stop_reason == stop


def test_answer_held_to_a_schema_goes_on_in_its_grammar(engine: Engine) -> None:
    """The grammar is where it was, in the middle of a word too."""
    params = replace(SEEDED, ignore_eos=False, max_tokens=60, grammar=engine.grammars.json_schema(SCHEMA))
    request = Request(id="schema", prompt=PROMPT, params=params)
    [whole] = answer(engine, [request])
    tokens = whole.tokens()

    assert whole.text().startswith("{")
    for num_emitted in range(1, len(tokens)):
        assert told(resumed(engine, request, tokens[:num_emitted]).events) == told(whole.events), num_emitted


def test_resumed_tokens_in_the_cache_are_no_cached_prompt(engine: Engine) -> None:
    """The engine that computed them may resume them: usage tells of the prompt alone."""
    request = Request(id="cached", prompt=PROMPT * 4, params=replace(GREEDY, max_tokens=100))
    [whole] = answer(engine, [request])

    usage = resumed(engine, request, whole.tokens()[:90]).usage

    assert (usage.prompt_tokens, usage.completion_tokens) == (80, 100)
    assert usage.cached_tokens <= 80


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"emitted": (VOCAB_SIZE,)}, "outside of"),
        ({"emitted": (-1,)}, "outside of"),
        ({"emitted": (1, 2), "n": 2}, "single answer"),
        ({"emitted": (1,), "pooling": "last"}, "single answer"),
        ({"emitted": (1,) * NUM_TOKENS}, "nothing is left"),
        ({"emitted": (1,) * MAX_CONTEXT, "params": replace(SEEDED, max_tokens=None)}, "nothing is left"),
    ],
)
def test_what_cannot_go_on_is_refused(engine: Engine, changes: dict[str, Any], why: str) -> None:
    """Before the engine's thread ever sees it."""
    with pytest.raises(RequestRefused, match=why):
        engine.submit(replace(Request(id="bad", prompt=PROMPT, params=SEEDED), **changes), Listener())
