"""Draft tokens that are pushed onto running answers: they make steps fewer, and change no token."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from backends.engine.engine import Engine
from backends.engine.request import Event, Request, SamplingParams
from tests.support.engine.tiny_pair import GREEDY, Answered, Listener, Pair, answer, make_pair, running

SAMPLED = SamplingParams(temperature=0.8, top_p=0.95, max_tokens=24, seed=7, ignore_eos=True)
LENGTHS = (1, 5, 63, 64, 65, 130)
Guess = Callable[[Sequence[int], int], tuple[int, list[int]]]
"""From a whole answer and how much of it is known to where a guess begins, and its tokens."""


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """The models, made once."""
    return make_pair(tmp_path_factory.mktemp("pair"))


def requests(params: SamplingParams) -> list[Request]:
    """A random prompt of each length, with a seed of its own."""
    rng = random.Random(3)
    return [
        Request(
            id=str(number),
            prompt=tuple(rng.randrange(256) for _ in range(length)),
            params=replace(params, seed=None if params.seed is None else params.seed + number),
        )
        for number, length in enumerate(LENGTHS)
    ]


class Pusher(Listener):
    """Pushes a guess of what comes whenever tokens come. `whole`: the answers as they are without any."""

    def __init__(self, engine: Engine, made: list[Request], whole: list[list[int]], guess: Guess) -> None:
        super().__init__()
        self._engine = engine
        self._made = {request.id: (request, tokens) for request, tokens in zip(made, whole, strict=True)}
        self._guess = guess

    def __call__(self, events: list[Event]) -> None:
        super().__call__(events)
        for event in events:
            request, whole = self._made[event.request_id]
            known = len(self.answers[event.request_id].tokens())
            at, tokens = self._guess(whole, known)
            self._engine.push(event.request_id, len(request.prompt) + at, tokens, 64)


def pushed_answers(engine: Engine, made: list[Request], whole: list[list[int]], guess: Guess) -> list[Answered]:
    """The answers of all requests together, with guesses."""
    pusher = Pusher(engine, made, whole, guess)
    for request in made:
        engine.submit(request, pusher)
    return [pusher.wait(request.id) for request in made]


_rng = random.Random(9)
GUESSES: dict[str, Guess] = {
    "right": lambda whole, known: (known, list(whole[known : known + 12])),
    "overlapping": lambda whole, known: (known // 2, list(whole[known // 2 : known + 6])),
    "half right": lambda whole, known: (known, [*whole[known : known + 2], 0, 0, 0]),
    "wrong": lambda whole, known: (known, [token ^ 1 for token in whole[known : known + 8]]),
    "random": lambda whole, known: (_rng.randrange(40), [_rng.randrange(256) for _ in range(200)]),
    "not of the vocabulary": lambda whole, known: (known, [*whole[known : known + 1], 2**31 - 1, -1]),
    "empty": lambda whole, known: (known, []),
}


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "drawn"])
@pytest.mark.parametrize("kind", GUESSES)
def test_answers_with_pushed_drafts_are_the_same(pair: Pair, kind: str, params: SamplingParams) -> None:
    """Whatever is pushed, and whether tokens are drawn or not."""
    made = requests(params)
    with running(pair) as engine:
        whole = [one.tokens() for one in answer(engine, made)]
        steps = engine.statistics().steps.num_steps
        found = pushed_answers(engine, made, whole, GUESSES[kind])
        statistics = engine.statistics()

    assert [one.tokens() for one in found] == whole
    accepted = statistics.speculation.accepted["remote"]
    assert accepted == sum(one.usage.draft_accepted for one in found)
    if kind in ("right", "overlapping"):
        assert accepted > 60
        assert statistics.steps.num_steps - steps < steps / 1.5
    if kind in ("wrong", "random", "empty"):
        assert accepted < 5


def test_pushed_drafts_beside_drafts_of_the_engines_own_change_nothing(pair: Pair) -> None:
    """Each step takes whoever promises more."""
    made = requests(GREEDY)
    with running(pair) as engine:
        whole = [one.tokens() for one in answer(engine, made)]
    with running(pair, speculate="auto", max_draft=2) as engine:
        found = pushed_answers(engine, made, whole, GUESSES["right"])
        speculation = engine.statistics().speculation

    assert [one.tokens() for one in found] == whole
    assert speculation.accepted["remote"] > 0


def test_a_push_for_an_answer_that_is_over_or_never_was_does_nothing(pair: Pair) -> None:
    """Nothing is kept for it either: pages are free, and the next answer is as it should be."""
    [request, *_] = requests(GREEDY)
    with running(pair) as engine:
        [first] = answer(engine, [request])
        engine.push(request.id, 1, [1, 2, 3], 64)
        engine.push("never", 0, [1, 2, 3], 64)
        [again] = answer(engine, [replace(request, id="again")])
        proposed = engine.statistics().speculation.proposed["remote"]

    assert again.tokens() == first.tokens()
    assert proposed == 0
