"""Our engine as the benchmark uses it: requests in, times out, as any client sees them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from threading import Event as Signal

from backends.engine.engine import Engine
from backends.engine.load import EngineParts, load_parts
from backends.engine.options import EngineOptions
from backends.engine.request import Event, Request, SamplingParams


class OwnEngine:
    """A started engine. Every prompt is computed anew, unless it comes with the salt of another."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._numbers = count()

    def generate(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> float:
        """Tokens a second over all prompts at once, `num_tokens` greedy ones for each."""
        began = time.perf_counter()
        salt = str(next(self._numbers)).encode()
        params = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True)
        listener = _Listener(len(prompts))
        for prompt in prompts:
            request = Request(id=str(next(self._numbers)), prompt=tuple(prompt), params=params, salt=salt)
            self.engine.submit(request, listener.take)
        listener.wait()
        return len(prompts) * num_tokens / (time.perf_counter() - began)

    def answer(self, prompt: Sequence[int], *, num_tokens: int, salt: bytes) -> tuple[list[int], float, float]:
        """(the greedy answer of at most `num_tokens`, seconds to its first token, seconds to its end)."""
        began = time.perf_counter()
        params = SamplingParams(temperature=0, max_tokens=num_tokens)
        listener = _Listener(1)
        request = Request(id=str(next(self._numbers)), prompt=tuple(prompt), params=params, salt=salt)
        self.engine.submit(request, listener.take)
        listener.wait()
        return listener.tokens, listener.first_s - began, time.perf_counter() - began


@contextmanager
def own_engine(
    options: EngineOptions, *, load: Callable[[EngineOptions, Callable[[], float]], EngineParts] = load_parts
) -> Iterator[OwnEngine]:
    """An engine that is closed at the end; `load` as it takes it. Raises ModelError, OutOfMemory."""
    engine = Engine(options, load=load)
    engine.start()
    try:
        yield OwnEngine(engine)
    finally:
        engine.close()


class _Listener:
    """Waits for the last events of `num_requests`."""

    def __init__(self, num_requests: int) -> None:
        self.tokens: list[int] = []
        self.first_s = 0.0
        self._num_left = num_requests
        self._over = Signal()
        self._error: Exception | None = None

    def take(self, events: list[Event]) -> None:
        """The engine's sink."""
        self.first_s = self.first_s or time.perf_counter()
        for event in events:
            self.tokens += event.tokens
            self._error = self._error or event.error
            self._num_left -= event.is_last
        if not self._num_left:
            self._over.set()

    def wait(self) -> None:
        """Until all are over. Raises what failed."""
        self._over.wait()
        if self._error is not None:
            raise self._error
