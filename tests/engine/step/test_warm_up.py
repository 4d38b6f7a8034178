"""What is run at the start leaves no variant of a kernel for a request to wait for, and nothing else behind."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed; it is made for Linux")

from backends.engine.choosing.sampling import Sampler
from backends.engine.kv.memory import KVCache
from backends.engine.kv.pages import pages_for
from backends.engine.model.decoder import Decoder, load_decoder
from backends.engine.request import Request, SamplingParams
from backends.engine.sequence import Sequence, Slice
from backends.engine.step.flatten import Span, build_batch
from backends.engine.step.warm_up import warm_up_decoder, warm_up_sampler
from tests.support.engine.tiny_models import save_tiny_model, tiny_config
from tests.support.kernels.kernel_variants import noting_ops

CPU = torch.device("cpu")
VOCAB = 40
NUM_PAGES = 4
MAX_TOKENS, MAX_SEQUENCES, MAX_CONTEXT = 96, 6, 1400


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose context is longer than a split of the decode kernel."""
    path = tmp_path_factory.mktemp("model")
    save_tiny_model(path, tiny_config("Qwen3", max_position_embeddings=MAX_CONTEXT))
    return path


def make_decoder(folder: Path, seen: set[str]) -> tuple[Decoder, KVCache]:
    """The model with operations that note what they launch, and room for a few pages."""
    decoder = load_decoder(folder, dtype=None, device=CPU, ops=noting_ops(seen))
    return decoder, KVCache(decoder.config, NUM_PAGES, dtype=decoder.dtype, device=CPU)


def warm_up(decoder: Decoder, cache: KVCache) -> None:
    """For an engine of these sizes."""
    warm_up_decoder(decoder, cache, CPU, max_tokens=MAX_TOKENS, max_sequences=MAX_SEQUENCES, max_context=MAX_CONTEXT)


def random_spans(chooser: random.Random) -> list[Span]:
    """A step of answers, verified drafts and pieces of prompts."""
    spans = []
    room = MAX_TOKENS
    for _ in range(chooser.randint(1, MAX_SEQUENCES)):
        count = chooser.choice([1, 1, 1, chooser.randint(2, 8), chooser.randint(9, 80)])
        if count > room:
            break
        start = chooser.randrange(MAX_CONTEXT - count) if chooser.random() < 0.5 else chooser.randrange(100)
        pages = [chooser.randrange(NUM_PAGES) for _ in range(pages_for(start + count))]
        spans.append(Span([chooser.randrange(VOCAB) for _ in range(count)], start, pages))
        room -= count
    return spans


def test_steps_need_no_variant_that_was_not_warmed_up(folder: Path) -> None:
    """Of attention, rotation, norms and activations, whatever a step is made of."""
    seen: set[str] = set()
    decoder, cache = make_decoder(folder, seen)
    warm_up(decoder, cache)
    known = set(seen)

    chooser = random.Random(3)
    for _ in range(60):
        spans = random_spans(chooser)
        rows = range(sum(len(span.tokens) for span in spans))
        decoder.logits(decoder.forward(build_batch(spans, rows, CPU), cache.layers))

    assert known
    assert seen - known == set()


def test_warm_up_stores_nothing(folder: Path) -> None:
    """The pages hold what they held."""
    decoder, cache = make_decoder(folder, set())
    for layer in cache.layers:
        layer.keys.fill_(7.0)

    warm_up(decoder, cache)

    assert all(bool((layer.keys == 7.0).all()) for layer in cache.layers)


def random_params(chooser: random.Random) -> dict[str, Any]:
    """Of a request that asks for anything that does not need a grammar."""
    choices: dict[str, list[Any]] = {
        "temperature": [0.0, 0.7, 1.0],
        "top_k": [0, 0, 1, 5],
        "top_p": [1.0, 1.0, 0.9],
        "min_p": [0.0, 0.0, 0.1],
        "presence_penalty": [0.0, 0.0, 0.5],
        "repetition_penalty": [1.0, 1.0, 1.2],
        "logprobs": [None, None, 0, 3],
        "logit_bias": [{}, {}, {3: 1.0}],
        "seed": [None, 4],
    }
    return {name: chooser.choice(values) for name, values in choices.items()}


@pytest.mark.parametrize("has_draft", [False, True], ids=["alone", "with_draft"])
def test_choices_need_no_variant_that_was_not_warmed_up(has_draft: bool) -> None:
    """Of all that draws and verifies, whatever the requests of a step ask for."""
    seen: set[str] = set()
    sampler = Sampler(VOCAB, CPU, ops=noting_ops(seen))
    warm_up_sampler(sampler, VOCAB, CPU, has_draft=has_draft)
    known = set(seen)

    chooser = random.Random(5)
    for number in range(300):
        sequences = [
            Sequence(
                Request(id="r", prompt=(1, 2), params=SamplingParams(**random_params(chooser))), 0, 0, [1, 2, 3], number
            )
            for _ in range(chooser.randint(1, 9))
        ]
        probs: dict[Sequence, torch.Tensor] = {}
        for depth in range(chooser.randint(1, 3) if has_draft else 0):
            tokens, drawn = sampler.draft(torch.randn(len(sequences), VOCAB), sequences, depth)
            for index, sequence in enumerate(sequences):
                sequence.draft.append(int(tokens[index]))
                if drawn is not None and sampler.is_judged(sequence):
                    probs[sequence] = torch.cat((probs.get(sequence, drawn[:0]), drawn[index : index + 1]))
        slices = [Slice(sequence, 2, 1, len(sequence.draft), True) for sequence in sequences]
        sampler.choose(torch.randn(sum(1 + part.num_draft for part in slices), VOCAB), slices, probs)

    assert len(known) > 20
    assert seen - known == set()
