"""What the runner reads of prompts, scores and embeddings, against another implementation of the model."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from backends.engine.engine import Engine
from backends.engine.load import EngineParts, load_parts
from backends.engine.request import Request
from backends.engine.sequence import Sequence, Slice
from backends.engine.step.graphs import graph_sizes
from tests.support.engine.tiny_pair import GREEDY, Pair, answer, make_pair, options

PROMPT = tuple(random.Random(6).randrange(256) for _ in range(150))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """The models, made once."""
    return make_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="module")
def reference(pair: Pair) -> tuple[Tensor, Tensor]:
    """Log-probabilities [tokens, vocab] and normed hidden states [tokens, hidden] of the prompt."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(pair.target)
    with torch.inference_mode():
        found = model(torch.tensor([PROMPT]), output_hidden_states=True)
    return found.logits[0].log_softmax(-1), found.hidden_states[-1][0]


@pytest.fixture(params=[17, 64, 256], ids=lambda size: f"chunks_of_{size}")
def engine(request: pytest.FixtureRequest, pair: Pair) -> Iterator[Engine]:
    """One that reads prompts in chunks."""
    engine = Engine(options(pair, max_batch_tokens=request.param))
    engine.start()
    yield engine
    engine.close()


@pytest.mark.parametrize("first", [0, 1, 64, 65, 149])
def test_prompt_logprobs_in_chunks_are_those_of_the_model(
    engine: Engine, reference: tuple[Tensor, Tensor], first: int
) -> None:
    """Each token's own log-probability and the likeliest others, from `first` on, also behind a cached prefix."""
    for name in ("cold", "warm"):
        request = Request(id=name, prompt=PROMPT, params=GREEDY, prompt_logprobs=3, prompt_logprobs_from=first)
        [answered] = answer(engine, [request])
        [found] = [event.prompt_logprobs for event in answered.events if event.prompt_logprobs is not None]

        start = max(first, 1)
        assert found[:start] == (None,) * start
        assert len(found) == len(PROMPT)
        for position, entry in enumerate(found[start:], start=start):
            assert entry is not None
            values, ids = reference[0][position - 1].topk(3)
            assert entry.token == PROMPT[position]
            assert entry.logprob == pytest.approx(reference[0][position - 1, entry.token].item(), abs=1e-4)
            assert [token for token, _ in entry.top] == ids.tolist()
            assert [value for _, value in entry.top] == pytest.approx(values.tolist(), abs=1e-4)
        assert len(answered.tokens()) == 24
    assert answered.usage.cached_tokens == max(first - 1, 0) // 64 * 64


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_embedding_of_a_prompt_in_chunks_is_that_of_the_model(
    engine: Engine, reference: tuple[Tensor, Tensor], pooling: str
) -> None:
    """The pooled hidden states, of length 1; twice, since a cached prefix must not be left out of the mean."""
    states = reference[1].mean(0) if pooling == "mean" else reference[1][-1]
    expected = (states / states.norm()).tolist()

    for name in ("cold", "warm"):
        [answered] = answer(engine, [Request(id=name, prompt=PROMPT, pooling=pooling)])  # type: ignore[arg-type]
        [event] = answered.events
        assert event.embedding == pytest.approx(expected, abs=1e-5)
        assert (event.finish_reason, event.is_last, event.tokens) == ("stop", True, ())


@pytest.fixture
def parts(pair: Pair) -> EngineParts:
    """An engine's parts, without its thread."""
    return load_parts(options(pair), lambda: 0.0)


def test_run_of_a_step_again_chooses_the_same(parts: EngineParts) -> None:
    """A step that was not committed leaves nothing behind but the keys and values that it writes again."""
    made = [Sequence(Request(id=str(n), prompt=(n, 1, 2), params=GREEDY), 0, n, [n, 1, 2], n) for n in range(3)]
    for sequence in made:
        parts.scheduler.add(sequence)
    slices = parts.scheduler.schedule().slices

    first = parts.runner.run(slices)
    apart = [parts.runner.run([part])[0] for part in slices]
    again = parts.runner.run(slices)

    assert first == again == apart


def test_probe_stores_nothing(pair: Pair) -> None:
    """The step of nothing runs while pages are in use, so it must not write to any."""
    parts = load_parts(options(pair), lambda: 0.0)
    sequence = Sequence(Request(id="a", prompt=(1, 2, 3), params=GREEDY), 0, 0, [1, 2, 3], 1)
    parts.scheduler.add(sequence)
    [part] = parts.scheduler.schedule().slices
    [choice] = parts.runner.run([part])
    assert choice is not None
    parts.scheduler.commit(part, choice.tokens)
    following = Slice(sequence, 3, 1, 0, True)
    expected = parts.runner.run([following])

    parts.runner.probe()

    assert parts.runner.run([following]) == expected


@pytest.mark.parametrize(
    ("most", "sizes"),
    [(1, [1]), (3, [1, 2, 4]), (8, [1, 2, 4, 8]), (9, [1, 2, 4, 8, 16]), (40, [1, 2, 4, 8, 16, 32, 48])],
)
def test_graph_sizes_end_with_the_first_that_holds_all(most: int, sizes: list[int]) -> None:
    """1, 2, 4, 8 and every 16."""
    assert graph_sizes(most) == sizes
