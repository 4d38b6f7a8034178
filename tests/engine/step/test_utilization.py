"""What a step is counted as, against sums over every layer, query and position; and what an engine makes of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from backends.engine.engine import Engine
from backends.engine.model.config import ModelConfig
from backends.engine.request import Request
from backends.engine.step.flatten import Span
from backends.engine.step.utilization import ComputeCounter, ComputeCounts, Peaks, measure_peaks
from tests.support.engine.tiny_models import save_tiny_model, tiny_config
from tests.support.engine.tiny_pair import GREEDY, Pair, answer, make_pair, options

WEIGHT_BYTES = 1_000_000
NUM_LAYERS = 3
NUM_KV = 2 * 2 * 8
"""Keys and values of a token in one layer: two heads of eight numbers each."""


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """The models, made once."""
    return make_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="module")
def config(pair: Pair) -> ModelConfig:
    """Two layers of the tiny model and one more, which sees 5 positions."""
    return replace(ModelConfig.from_folder(pair.target), num_layers=NUM_LAYERS, windows=(0, 5, 0))


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(1, 12)), min_size=1, max_size=3), st.integers(0, 3))
def test_work_of_a_step_is_that_of_its_queries_and_positions(
    config: ModelConfig, places: list[tuple[int, int]], num_rows: int
) -> None:
    """Brute force: each query of each layer by itself."""
    compute = ComputeCounts()
    counter = ComputeCounter(config, compute, weight_bytes=WEIGHT_BYTES, kv_dtype=torch.float32)
    counter.add([Span([0] * count, start, [0]) for start, count in places], num_rows)
    # Hidden size 32, 4 heads and 2 KV heads of 8, 48 wide, 258 tokens.
    linear = NUM_LAYERS * (32 * 8 * (4 + 2 * 2) + 4 * 8 * 32 + 3 * 32 * 48)
    num_tokens = sum(count for _, count in places)
    pairs, seen = 0, 0
    for window in config.windows:
        for start, count in places:
            found = [range(max(0, at + 1 - window) if window else 0, at + 1) for at in range(start, start + count)]
            pairs += sum(len(one) for one in found)
            seen += len(set().union(*found))

    assert compute.operations == 2 * (num_tokens * linear + num_rows * 32 * 258) + pairs * 2 * 2 * 4 * 8
    assert compute.read_bytes == WEIGHT_BYTES + seen * NUM_KV * 4
    assert compute.written_bytes == num_tokens * NUM_LAYERS * NUM_KV * 4


def test_work_of_an_engine_grows_with_its_steps_and_is_a_share_of_the_peaks(pair: Pair) -> None:
    """Target and draft add up; utilization is between 0 and 1."""
    found = []
    for speculate in ("off", "draft"):
        engine = Engine(options(pair, speculate=speculate, measure_peaks=True))
        engine.start()
        try:
            answer(engine, [Request(id="a", prompt=(1, 2, 3), params=GREEDY)])
            found.append(engine.statistics())
        finally:
            engine.close()
    plain, drafted = found

    assert plain.peaks is not None
    moved_bytes = plain.compute.read_bytes + plain.compute.written_bytes
    assert 0 < plain.compute.operations < plain.steps.run_s * plain.peaks.operations_per_s
    assert 0 < moved_bytes < plain.steps.run_s * plain.peaks.bytes_per_s
    # The last of 24 tokens is never fed to the model again.
    assert plain.compute.written_bytes == (3 + 23) * 2 * NUM_KV * 4
    assert drafted.compute.operations > plain.compute.operations


def test_utilization_of_an_engine_without_peaks_is_unknown(pair: Pair) -> None:
    """They cost time, so they are measured only where somebody asks."""
    engine = Engine(options(pair))
    engine.start()
    try:
        statistics = engine.statistics()
    finally:
        engine.close()

    assert statistics.peaks is None


def test_peaks_of_this_processor_are_of_its_order_of_magnitude() -> None:
    """Between a pocket calculator's and a supercomputer's."""
    peaks = measure_peaks(torch.device("cpu"), torch.float32)

    assert isinstance(peaks, Peaks)
    assert 1e8 < peaks.operations_per_s < 1e15
    assert 1e8 < peaks.bytes_per_s < 1e13


def test_experts_are_read_as_far_as_tokens_hit_them(tmp_path: Path) -> None:
    """One token reads its own experts, many read all of them."""
    save_tiny_model(tmp_path, tiny_config("Mixtral", num_local_experts=4, num_experts_per_tok=2))
    config = ModelConfig.from_folder(tmp_path)
    read = []
    for num_tokens in (1, 500):
        compute = ComputeCounts()
        counter = ComputeCounter(config, compute, weight_bytes=WEIGHT_BYTES, kv_dtype=torch.float32)
        counter.add([Span([0] * num_tokens, 0, [0])], 0)
        read.append(compute.read_bytes - compute.written_bytes)

    assert read[0] < read[1] <= WEIGHT_BYTES
