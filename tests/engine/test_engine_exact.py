"""No shortcut changes anything: batching, chunks, the prefix cache, preemption, speculation against a plain run."""

from __future__ import annotations

import json
import random
import shutil
import statistics
from dataclasses import replace
from pathlib import Path

import pytest

from backends.engine.request import Request, SamplingParams
from kernels.paging import PAGE_SIZE
from tests.support.engine.tiny_pair import GREEDY, MAX_CONTEXT, Answered, Pair, answer, make_pair, running

LENGTHS = (1, 5, 63, 64, 65, 130, 200)
SAMPLED = SamplingParams(temperature=0.8, top_p=0.95, max_tokens=24, seed=7, ignore_eos=True)

HOT = SamplingParams(temperature=1.0, max_tokens=24, seed=7, ignore_eos=True)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """The models, made once."""
    return make_pair(tmp_path_factory.mktemp("pair"))


def prompts(lengths: tuple[int, ...] = LENGTHS) -> list[tuple[int, ...]]:
    """Random prompts, the second half of each a copy of the first so that there is something to look up."""
    rng = random.Random(3)
    found = []
    for length in lengths:
        half = [rng.randrange(256) for _ in range((length + 1) // 2)]
        found.append(tuple((half + half)[:length]))
    return found


def requests(params: SamplingParams) -> list[Request]:
    """One request a prompt."""
    return [Request(id=str(number), prompt=prompt, params=params) for number, prompt in enumerate(prompts())]


def tokens(answered: list[Answered]) -> list[list[int]]:
    """What was answered, as tokens."""
    return [one.tokens() for one in answered]


@pytest.fixture(scope="module")
def alone(pair: Pair) -> dict[str, list[list[int]]]:
    """Each request by itself, one after the other, without a shared page: the plain run."""
    found: dict[str, list[list[int]]] = {}
    with running(pair) as engine:
        for name, params in (("greedy", GREEDY), ("sampled", SAMPLED)):
            answers = [answer(engine, [request])[0] for request in _salted(requests(params))]
            found[name] = tokens(answers)
    assert all(len(one) == 24 for one in found["greedy"])
    return found


def _salted(made: list[Request]) -> list[Request]:
    return [replace(request, salt=str(number).encode()) for number, request in enumerate(made)]


def test_plain_run_is_what_transformers_finds_likeliest(pair: Pair, alone: dict[str, list[list[int]]]) -> None:
    """The reference of every test here agrees with another implementation."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(pair.target)
    expected = []
    for prompt, answered in zip(prompts(), alone["greedy"], strict=True):
        with torch.inference_mode():
            logits = model(torch.tensor([[*prompt, *answered]])).logits[0]
        expected.append(logits[len(prompt) - 1 : -1].argmax(-1).tolist())

    assert alone["greedy"] == expected


@pytest.mark.parametrize("kind", ["greedy", "sampled"])
def test_answers_of_a_batch_are_those_of_each_alone(pair: Pair, alone: dict[str, list[list[int]]], kind: str) -> None:
    """Neighbours change nothing, whether tokens are drawn or not."""
    with running(pair) as engine:
        together = answer(engine, requests(GREEDY if kind == "greedy" else SAMPLED))

    assert tokens(together) == alone[kind]


def test_answers_in_another_order_are_the_same(pair: Pair, alone: dict[str, list[list[int]]]) -> None:
    """Who came first changes nothing either."""
    with running(pair) as engine:
        together = answer(engine, reversed(requests(SAMPLED)))

    assert tokens(together)[::-1] == alone["sampled"]


@pytest.mark.parametrize("size", [8, 17, 64, 100])
def test_answers_with_prompts_in_chunks_are_the_same(pair: Pair, alone: dict[str, list[list[int]]], size: int) -> None:
    """A prompt may be read in any pieces, between other answers' tokens."""
    with running(pair, max_batch_tokens=size) as engine:
        together = answer(engine, requests(GREEDY))

    assert tokens(together) == alone["greedy"]


def test_answers_with_cached_prefixes_are_the_same(pair: Pair, alone: dict[str, list[list[int]]]) -> None:
    """The second round finds its pages, and says so."""
    with running(pair) as engine:
        first = answer(engine, requests(GREEDY))
        second = answer(engine, requests(GREEDY))

    assert tokens(first) == tokens(second) == alone["greedy"]
    assert [one.usage.cached_tokens for one in second] == [(length - 1) // PAGE_SIZE * PAGE_SIZE for length in LENGTHS]


@pytest.mark.parametrize("speculate", ["off", "auto"])
def test_answers_with_too_few_pages_are_the_same(pair: Pair, speculate: str) -> None:
    """All grow into a second page at once, so some are preempted and computed anew; seeds survive that."""
    lengths = (60, 61, 62, 63, 62, 60)
    params = [GREEDY if number % 2 else SAMPLED for number in range(len(lengths))]
    made = [
        Request(id=str(number), prompt=prompt, params=params[number]) for number, prompt in enumerate(prompts(lengths))
    ]
    with running(pair) as engine:
        plenty = tokens(answer(engine, made))
    with running(pair, speculate=speculate, max_context=128, kv_bytes=_pages(5, speculate)) as engine:
        few = tokens(answer(engine, made))
        num_preemptions = engine.statistics().scheduler.num_preemptions

    assert num_preemptions > 0
    assert few == plenty


def test_answers_with_a_host_tier_are_the_same(pair: Pair, alone: dict[str, list[list[int]]]) -> None:
    """Evicted pages come back from host memory, of both models."""
    few = _pages(6, "draft")
    with running(pair, speculate="draft", max_context=256, kv_bytes=few, host_bytes=10 * few) as engine:
        rounds = [tokens(answer(engine, requests(GREEDY))) for _ in range(3)]
        num_host_hits = engine.statistics().scheduler.pool.num_host_hits

    assert num_host_hits > 0
    assert rounds == [alone["greedy"]] * 3


@pytest.mark.parametrize("kv_dtype", ["int8", "fp8"])
def test_answers_with_quantized_keys_and_values_stay_close_and_lose_nothing_on_the_host(
    pair: Pair, alone: dict[str, list[list[int]]], kv_dtype: str
) -> None:
    """Log-probabilities of a plain run's answers hardly move; rounds through the host tier are equal to the bit."""
    scored = [
        Request(
            id=f"scored {number}",
            prompt=(*prompt, *answered),
            params=replace(GREEDY, max_tokens=0),
            prompt_logprobs=0,
            salt=b"scored",
        )
        for number, (prompt, answered) in enumerate(zip(prompts(), alone["greedy"], strict=True))
    ]
    with running(pair) as engine:
        exact = _scores(answer(engine, scored))
    few = _pages(6, "off") // 2
    with running(pair, kv_dtype=kv_dtype, max_context=256, kv_bytes=few, host_bytes=10 * few) as engine:
        close = _scores(answer(engine, scored))
        rounds = [tokens(answer(engine, requests(GREEDY))) for _ in range(3)]
        num_host_hits = engine.statistics().scheduler.pool.num_host_hits

    assert exact != close
    assert statistics.correlation(exact, close) >= 0.999
    assert num_host_hits > 0
    assert rounds == [rounds[0]] * 3


def _scores(answered: list[Answered]) -> list[float]:
    return [entry.logprob for one in answered for entry in one.events[-1].prompt_logprobs or () if entry is not None]


@pytest.mark.parametrize("length", [1, 2, 3, 6])
@pytest.mark.parametrize("speculate", ["ngram", "draft", "auto"])
def test_answers_with_drafts_are_the_same(
    pair: Pair, alone: dict[str, list[list[int]]], speculate: str, length: int
) -> None:
    """Whoever proposes, and however much."""
    with running(pair, speculate=speculate, max_draft=length) as engine:
        together = answer(engine, requests(GREEDY))
        speculation = engine.statistics().speculation

    assert tokens(together) == alone["greedy"]
    assert sum(speculation.proposed.values()) > 0
    assert sum(one.usage.draft_accepted for one in together) == sum(speculation.accepted.values())


def test_drawn_answers_with_lookup_are_the_same(pair: Pair, alone: dict[str, list[list[int]]]) -> None:
    """What is looked up is proposed with certainty, so a seed draws the same tokens with it and without."""
    made = [
        replace(request, prediction=tuple(drawn))
        for request, drawn in zip(requests(SAMPLED), alone["sampled"], strict=True)
    ]
    with running(pair, speculate="ngram") as engine:
        together = answer(engine, made)
        num_accepted = engine.statistics().speculation.accepted["prediction"]

    assert num_accepted > 50
    assert tokens(together) == alone["sampled"]


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 6])
def test_drawn_answers_with_a_seed_are_the_same_whatever_the_draft_model_says(
    pair: Pair, hot: list[list[int]], length: int
) -> None:
    """Alone, and in a batch with others whose drafts are judged in another way."""
    made = requests(HOT)
    with running(pair, speculate="draft", max_draft=length) as engine:
        apart = [answer(engine, [request])[0] for request in made]
        num_accepted = engine.statistics().speculation.accepted["draft"]
        others = [replace(request, id=f"other {request.id}", params=replace(HOT, seed=None)) for request in made]
        among = answer(engine, [request for both in zip(made, others, strict=True) for request in both])[::2]

    assert tokens(apart) == hot
    assert tokens(among) == hot
    assert num_accepted > 0


@pytest.fixture(scope="module")
def hot(pair: Pair) -> list[list[int]]:
    """The plain run at temperature 1."""
    with running(pair) as engine:
        return [answer(engine, [request])[0].tokens() for request in _salted(requests(HOT))]


@pytest.mark.parametrize("speculate", ["ngram", "draft"])
def test_answers_held_to_a_grammar_with_drafts_are_the_same(pair: Pair, speculate: str) -> None:
    """Drafts that the grammar refuses are rejected, and the answer ends where the grammar does."""
    found = []
    for mode in ("off", speculate):
        with running(pair, speculate=mode) as engine:
            params = SamplingParams(temperature=0.0, max_tokens=60, grammar=engine.grammars.regex("([ab]{2}c){12}!"))
            made = [
                Request(id=str(number), prompt=tuple(b"abcabc" * number + b"ab"), params=params) for number in range(4)
            ]
            found.append([(one.text(), one.last.finish_reason) for one in answer(engine, made)])
            num_accepted = sum(engine.statistics().speculation.accepted.values())

    assert found[0] == found[1]
    assert all(len(text) == 37 and text.endswith("c!") and reason == "stop" for text, reason in found[0])
    assert num_accepted > 0


def test_answers_with_a_draft_that_always_agrees_take_fewer_steps(
    pair: Pair, alone: dict[str, list[list[int]]]
) -> None:
    """The target as its own draft: every proposal is accepted, so its cache never lags or goes stale."""
    with running(pair, speculate="draft", draft=pair.target, max_draft=3) as engine:
        together = answer(engine, requests(GREEDY))
        found = engine.statistics()

    assert tokens(together) == alone["greedy"]
    # The last draft of an answer may reach past its end.
    assert found.speculation.accepted["draft"] == found.speculation.proposed["draft"] > 0


def test_answers_with_a_prediction_that_comes_true_count_it(pair: Pair, alone: dict[str, list[list[int]]]) -> None:
    """What was predicted is proposed, and told apart from other drafts."""
    request = Request(id="a", prompt=prompts()[3], params=GREEDY, prediction=tuple(alone["greedy"][3]))
    with running(pair, speculate="ngram") as engine:
        [answered] = answer(engine, [request])

    assert answered.tokens() == alone["greedy"][3]
    assert answered.usage.prediction_accepted > 8


def test_answers_up_to_the_end_of_the_context_are_the_same(pair: Pair) -> None:
    """The last position of the context is reached with drafts and without, and never passed."""
    prompt = prompts((MAX_CONTEXT - 20,))[0]
    params = SamplingParams(temperature=0.0, ignore_eos=True)
    found = []
    for speculate in ("off", "auto"):
        with running(pair, speculate=speculate) as engine:
            found.append(answer(engine, [Request(id="a", prompt=prompt, params=params)])[0])

    assert found[0].tokens() == found[1].tokens()
    assert [(len(one.tokens()), one.last.finish_reason) for one in found] == [(20, "length")] * 2


def test_answers_longer_than_the_draft_models_context_are_the_same(
    pair: Pair, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The draft proposes as far as it reaches, and then no more."""
    short = tmp_path / "short"
    shutil.copytree(pair.draft, short)
    config = json.loads((short / "config.json").read_text())
    (short / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 96}))
    request = Request(id="a", prompt=prompts((80,))[0], params=replace(GREEDY, max_tokens=200))
    with running(pair) as engine:
        [plain] = answer(engine, [request])
    with running(pair, speculate="draft", draft=short) as engine:
        [answered] = answer(engine, [request])
        num_proposed = engine.statistics().speculation.proposed["draft"]

    assert answered.tokens() == plain.tokens()
    assert 0 < num_proposed < 100
    assert not caplog.records


def _pages(count: int, speculate: str) -> int:
    """Bytes of so many pages: layers, keys and values, heads, tokens, numbers, float32."""
    num_layers = 2 if speculate == "off" else 4
    return count * num_layers * 2 * 2 * PAGE_SIZE * 8 * 4
