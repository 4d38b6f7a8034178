"""Answers that are held after each step: token for token those that run through, and never in the others' way."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from backends.engine.engine import Engine
from backends.engine.request import Event, Request, SamplingParams
from tests.support.engine.tiny_pair import GREEDY, Answered, Listener, Pair, answer, make_pair, running

PAGE_BYTES = 2 * 2 * 2 * 8 * 4 * 64
"""Of the model: layers, keys and values, heads, width, bytes, tokens."""
SAMPLED = SamplingParams(temperature=0.8, top_p=0.95, max_tokens=24, seed=7, ignore_eos=True)
Propose = Callable[[list[int], int], list[int]]
"""From a whole answer and how much of it is known to what a round proposes."""


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """The models, made once."""
    return make_pair(tmp_path_factory.mktemp("pair"))


def requests(params: SamplingParams, *, lengths: tuple[int, ...] = (1, 5, 63, 64, 65, 130)) -> list[Request]:
    """A random prompt of each length, with a seed of its own."""
    rng = random.Random(3)
    return [
        Request(
            id=str(number),
            prompt=tuple(rng.randrange(256) for _ in range(length)),
            params=replace(params, seed=None if params.seed is None else params.seed + number),
        )
        for number, length in enumerate(lengths)
    ]


class Rounds(Listener):
    """Lets every answer go on with a guess when its last round is over; alone from `free_at` tokens on."""

    def __init__(self, engine: Engine, whole: dict[str, list[int]], propose: Propose, free_at: int) -> None:
        super().__init__()
        self._engine = engine
        self._whole = whole
        self._propose = propose
        self._free_at = free_at
        self.num_rounds = 0

    def __call__(self, events: list[Event]) -> None:
        super().__call__(events)
        for event in events:
            if event.is_last:
                continue
            known = self.answers[event.request_id].tokens()
            start = len(next(each for each in self.made if each.id == event.request_id).prompt) + len(known)
            guess = self._propose(self._whole[event.request_id], len(known))
            self._engine.push(event.request_id, start, guess, 64)
            self._engine.go_on(event.request_id, freely=len(known) >= self._free_at)
            self.num_rounds += 1

    def run(self, made: list[Request]) -> list[Answered]:
        """The answers to all."""
        self.made = made
        for request in made:
            self._engine.submit(replace(request, by_rounds=True), self)
        return [self.wait(request.id) for request in made]


def right(whole: list[int], known: int) -> list[int]:
    """What will come."""
    return whole[known : known + 8]


def wrong(whole: list[int], known: int) -> list[int]:
    """Never what will come."""
    return [(token + 1) % 256 for token in whole[known : known + 8]]


def nothing(whole: list[int], known: int) -> list[int]:
    """Not a word."""
    return []


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "seeded"])
@pytest.mark.parametrize("propose", [right, wrong, nothing])
@pytest.mark.parametrize(("free_at", "num_pages"), [(9, 100), (1000, 100), (1000, 10)])
def test_answers_by_rounds_are_those_that_run_through(
    pair: Pair, params: SamplingParams, propose: Propose, free_at: int, num_pages: int
) -> None:
    """Also where the pool has too few pages for all, so that who is held gives its own up."""
    made = requests(params)
    with running(pair, kv_bytes=num_pages * PAGE_BYTES, max_context=300) as engine:
        whole = [each.tokens() for each in answer(engine, made)]
        rounds = Rounds(engine, {each.id: tokens for each, tokens in zip(made, whole, strict=True)}, propose, free_at)
        found = [each.tokens() for each in rounds.run(made)]

    assert found == whole
    # Who gave its pages up reads them anew, in a step without guesses.
    assert propose is not right or (free_at, num_pages) != (1000, 100) or rounds.num_rounds <= len(made) * 8


def test_held_answers_keep_others_from_nothing_and_leave_no_page(pair: Pair) -> None:
    """Twenty are held for ever: another fills the whole pool meanwhile; when they are given up nothing is left."""
    held = [replace(each, by_rounds=True) for each in requests(GREEDY, lengths=(64,) * 20)]
    long = Request(id="long", prompt=tuple(range(200)) * 2, params=replace(GREEDY, max_tokens=60))
    with running(pair, kv_bytes=8 * PAGE_BYTES, max_context=460) as engine:
        listener = Listener()
        for request in held:
            engine.submit(request, listener)
        for request in held:
            listener.wait(request.id, 1)
        statistics = engine.statistics().scheduler
        alone = answer(engine, [long])[0].tokens()
        for request in held:
            engine.abort(request.id)
            listener.wait(request.id)

    assert (statistics.num_held, statistics.num_running) == (20, 0)
    assert statistics.pool.num_used <= 2
    assert len(alone) == 60
