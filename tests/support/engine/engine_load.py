"""Random requests of every kind for an engine, a third of them aborted, with every ending checked."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable

from backends.engine.engine import Engine
from backends.engine.request import Request, SamplingParams
from tests.support.engine.tiny_pair import Listener

_IN_HAND = 50
_SHARE_ABORTED = 1 / 3


def random_request(rng: random.Random, number: int) -> Request:
    """Short, so that thousands take seconds: answers, embeddings, scores; greedy and drawn, with seeds and without.

    Some prompts come again, and some grow into a further page.
    """
    length = rng.choice((1, 3, 30, 61, 64, 100, 124))
    words = random.Random(rng.randrange(30))
    return Request(
        id=str(number),
        prompt=tuple(words.randrange(4) for _ in range(length)),
        params=SamplingParams(
            max_tokens=rng.choice((0, 1, 2, 6, 6, 6, 6, 100)),
            temperature=rng.choice((0.0, 1.0)),
            top_p=rng.choice((1.0, 0.9)),
            presence_penalty=rng.choice((0.0, 0.0, 1.0)),
            logprobs=rng.choice((None, None, 2)),
            seed=rng.choice((None, number)),
            stop=("a",),
        ),
        n=rng.choice((1, 1, 2)),
        pooling=rng.choice((None, None, None, "mean", "last")),
        prompt_logprobs=rng.choice((None, None, 1)),
        salt=rng.choice((b"", b"tenant")),
        priority=rng.randrange(3),
    )


def run_load(
    engine: Engine, count: int, *, seed: int, each: Callable[[int], None] = lambda number: None
) -> Counter[str]:
    """Submits `count` requests, some fifty in hand at once, and counts how they ended; `each` is told every number.

    Raises AssertionError where a request fails, ends twice, or says something behind its end.
    """
    rng, listener = random.Random(seed), Listener()
    in_hand: deque[str] = deque()
    endings: Counter[str] = Counter()

    def take() -> None:
        answered = listener.wait(in_hand[0])
        assert sum(event.is_last for event in answered.events) == 1
        assert answered.last.is_last
        assert answered.last.error is None
        endings[str(answered.last.finish_reason)] += 1
        # What it says from here on would make a new entry.
        del listener.answers[in_hand.popleft()]
        listener.batches.clear()

    for number in range(count):
        engine.submit(random_request(rng, number), listener)
        in_hand.append(str(number))
        if rng.random() < _SHARE_ABORTED:
            engine.abort(rng.choice(in_hand))
        if len(in_hand) > _IN_HAND:
            take()
        each(number)
    while in_hand:
        take()
    assert not listener.answers
    return endings
