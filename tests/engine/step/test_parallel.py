"""Two ranks of one model, the second in a process of its own: the same tokens as one, and the same end for all."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from backends.engine.engine import Engine
from backends.engine.errors import EngineStopped, ModelError
from backends.engine.request import Request, SamplingParams
from tests.support.engine.tiny_pair import GREEDY, Listener, Pair, answer, make_pair, options

pytestmark = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds child processes by /proc")
LENGTHS = (56, 57, 58, 57, 56, 130)
LONG = SamplingParams(temperature=0.0, max_tokens=400, ignore_eos=True)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """The models, made once."""
    return make_pair(tmp_path_factory.mktemp("pair"))


@contextmanager
def running(pair: Pair, **changes: Any) -> Iterator[Engine]:
    """An engine whose clock stands still, so that as much is drafted as there is room for."""
    engine = Engine(options(pair, **changes), now=lambda: 0.0, rng=random.Random(1))
    engine.start()
    try:
        yield engine
    finally:
        engine.close()


def children() -> set[int]:
    """Processes that this one has started and that have not ended."""
    found = set[int]()
    for task in Path("/proc/self/task").iterdir():
        # Threads and processes may end while we look.
        with suppress(FileNotFoundError, ProcessLookupError):
            for number in (task / "children").read_text().split():
                if " Z " not in Path(f"/proc/{number}/stat").read_text():
                    found.add(int(number))
    return found


def requests(lengths: tuple[int, ...] = LENGTHS) -> list[Request]:
    """Greedy ones, to random prompts."""
    rng = random.Random(3)
    return [
        Request(id=str(number), prompt=tuple(rng.randrange(256) for _ in range(length)), params=GREEDY)
        for number, length in enumerate(lengths)
    ]


def tokens(engine: Engine, made: list[Request]) -> list[list[int]]:
    """What is answered."""
    return [one.tokens() for one in answer(engine, made)]


def test_two_ranks_answer_as_one_whatever_happens(pair: Pair) -> None:
    """With prefixes from the cache and from main memory, preemptions, and tokens that a draft on rank 0 has proposed;
    and after a ^C, which in a terminal reaches every process.
    """
    with running(pair, speculate="draft") as engine:
        expected = tokens(engine, requests())
        page_bytes = engine.statistics().page_bytes
    before = children()

    # Target and draft have pages of one size, and a rank has half of the target's.
    page_bytes = page_bytes // 4 * 3
    few = {"kv_bytes": 5 * page_bytes, "host_bytes": 8 * page_bytes, "max_context": 192}
    with running(pair, tensor_parallel=2, speculate="draft", **few) as engine:
        (follower,) = children() - before
        assert engine.statistics().page_bytes == page_bytes
        assert tokens(engine, requests()) == expected
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(follower, number)
        again = answer(engine, requests())
        statistics = engine.statistics()

    assert [one.tokens() for one in again] == expected
    assert sum(one.usage.cached_tokens for one in again) > 0
    assert sum(one.usage.draft_accepted for one in again) > 0
    assert statistics.scheduler.num_preemptions > 0
    assert statistics.scheduler.pool.num_host_hits > 0
    assert statistics.scheduler.pool.num_used == 0
    assert statistics.steps.num_failed == 0
    assert children() == before


@pytest.mark.parametrize("is_working", [True, False], ids=["at-work", "idle"])
def test_killed_rank_ends_every_request_and_the_engine(pair: Pair, is_working: bool) -> None:
    """All of them hear within seconds which rank is gone; later ones are refused for the same reason."""
    before = children()
    with running(pair, tensor_parallel=2) as engine:
        (follower,) = children() - before
        listener = Listener()
        made = [Request(id=str(n), prompt=(1, 2, n), params=LONG) for n in range(3)]
        if is_working:
            for request in made:
                engine.submit(request, listener)
            listener.wait("0", num_events=2)
        os.kill(follower, signal.SIGKILL)
        began = time.monotonic()
        if not is_working:
            engine.submit(made[0], listener)
        ended = [listener.wait(request.id).last for request in (made if is_working else made[:1])]

        assert time.monotonic() - began < 10
        for event in ended:
            assert isinstance(event.error, EngineStopped)
            assert "rank 1 of 2 has ended (exit code -9)" in str(event.error)
        with pytest.raises(EngineStopped, match="rank 1 of 2 has ended"):
            engine.submit(Request(id="late", prompt=(1,), params=GREEDY), listener)
    assert children() == before


def test_model_that_cannot_be_loaded_leaves_no_process(pair: Pair, tmp_path: Path) -> None:
    """What is wrong is told as for one rank, and the rank that was started is gone; or it was not started at all."""
    before = children()
    torn = tmp_path / "torn"
    shutil.copytree(pair.target, torn)
    (torn / "model.safetensors").write_bytes((pair.target / "model.safetensors").read_bytes()[:2000])

    for model, count, message in ((torn, 2, "is torn or no safetensors"), (pair.target, 3, "does not divide num_att")):
        with pytest.raises(ModelError, match=message):
            Engine(options(pair, model=model, tensor_parallel=count)).start()

        assert children() == before
