"""An engine whose kernels cannot run answers as one on the twins, and says so."""

from __future__ import annotations

import logging
import random
from functools import partial
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed; it is made for Linux")

from backends.engine.engine import Engine
from backends.engine.kv.memory import KVCache, page_dtype
from backends.engine.load import load_parts
from backends.engine.model.decoder import load_decoder
from backends.engine.request import Request, SamplingParams
from backends.engine.step.graphs import DecodeGraphs, TwinsInStep
from kernels.dispatch import Ops, select_ops
from kernels.fallback import Fallbacks
from tests.support.engine.tiny_pair import GREEDY, Pair, answer, make_pair, options

CPU = torch.device("cpu")
SAMPLED = SamplingParams(temperature=0.8, top_p=0.9, presence_penalty=0.3, seed=7, max_tokens=16, ignore_eos=True)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """The models, made once."""
    return make_pair(tmp_path_factory.mktemp("pair"))


def on_kernels(device_type: str, **named: Any) -> Ops:
    """The kernels of a GPU, though here is none: each launch fails in Triton, as without a driver or a compiler."""
    return select_ops("cuda", **named)


def answers(pair: Pair, changes: dict[str, Any], **load: Any) -> tuple[list[list[int]], Engine]:
    """The tokens of a greedy and a sampled request, first together and then one more, and their engine, closed."""
    engine = Engine(options(pair, **changes), load=partial(load_parts, **load), rng=random.Random(1))
    engine.start()
    try:
        prompt = tuple(range(40, 60))
        both = [Request(id=name, prompt=prompt, params=params) for name, params in (("a", GREEDY), ("b", SAMPLED))]
        found = [*answer(engine, both), *answer(engine, [Request(id="c", prompt=prompt[:5], params=GREEDY)])]
        assert all(one.last.error is None for one in found)
        return [one.tokens() for one in found], engine
    finally:
        engine.close()


@pytest.mark.parametrize(
    "changes",
    [{}, {"kv_dtype": "int8"}, {"speculate": "draft"}],
    ids=["plain", "int8-pages", "drafted"],
)
def test_answers_without_kernels_are_those_of_the_twins(
    pair: Pair, changes: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Token by token; no step fails on the way, and each operation is said once for each form of its kernels."""
    expected, plain = answers(pair, changes)
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        found, engine = answers(pair, changes, select=on_kernels)

    assert found == expected
    statistics = engine.statistics()
    assert statistics.steps.num_failed == 0
    assert statistics.kernel_fallbacks.keys() >= {"rms_norm", "rope_store", "paged_attention", "sample"}
    said = [record for record in caplog.records if record.name == "kernels.fallback"]
    assert len(said) == sum(statistics.kernel_fallbacks.values())
    assert plain.statistics().kernel_fallbacks == {}


def test_decode_steps_that_take_twins_are_not_captured(pair: Pair) -> None:
    """Twins look at numbers, which a graph cannot."""
    fallbacks = Fallbacks()
    decoder = load_decoder(pair.target, dtype=torch.float32, device=CPU, ops=select_ops("cuda", fallbacks=fallbacks))
    cache = KVCache(decoder.config, 4, dtype=torch.float32, device=CPU)

    with pytest.raises(TwinsInStep):
        DecodeGraphs(decoder, cache, most=2, max_pages=2, device=CPU, fallbacks=fallbacks)


@pytest.mark.parametrize(
    ("wanted", "capability", "kept"),
    [
        (torch.float8_e4m3fn, (8, 0), torch.int8),
        (torch.float8_e4m3fn, (8, 6), torch.int8),
        (torch.float8_e4m3fn, (8, 9), torch.float8_e4m3fn),
        (torch.float8_e4m3fn, (12, 0), torch.float8_e4m3fn),
        (torch.int8, (8, 0), torch.int8),
        (torch.bfloat16, (8, 0), torch.bfloat16),
    ],
)
def test_float8_pages_become_int8_where_a_gpu_has_no_float8(
    wanted: torch.dtype, capability: tuple[int, int], kept: torch.dtype, caplog: pytest.LogCaptureFixture
) -> None:
    """Said and counted where it happens."""
    fallbacks = Fallbacks()

    assert page_dtype(wanted, capability, fallbacks) == kept
    assert fallbacks.given_up == ({} if kept == wanted else {"kv_dtype": 1})
    assert ("say kv_dtype: int8" in caplog.text) == (kept != wanted)
