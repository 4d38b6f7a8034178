"""An engine and a plain loop on its weights that make their steps in turn, in one thread.

Whoever takes the engine's events makes the loop's next step before the engine goes on. So both have the same weights
in the same memory, the same threads, and whatever else the machine does at that moment.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from threading import Event as Signal
from types import TracebackType
from typing import Self

from backends.engine.benchmark.own import own_engine
from backends.engine.benchmark.plain_loop import PlainLlama
from backends.engine.engine import Engine
from backends.engine.load import EngineParts, load_parts
from backends.engine.options import EngineOptions
from backends.engine.request import Event, Request, SamplingParams


@dataclass(slots=True)
class StepTimes:
    """Seconds of each step of an answer, the prompt's first."""

    engine: list[float] = field(default_factory=list)
    loop: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        """The engine's whole time over the loop's."""
        return sum(self.engine) / sum(self.loop)


def side_by_side(options: EngineOptions, stack: ExitStack) -> Callable[[Sequence[Sequence[int]], int], StepTimes]:
    """Both as one contender, whose prompts are all of one length."""
    loops: list[PlainLlama] = []

    def load(options: EngineOptions, now: Callable[[], float]) -> EngineParts:
        parts = load_parts(options, now)
        loops.append(PlainLlama(parts.decoder))
        return parts

    own = stack.enter_context(own_engine(options, load=load))
    return partial(_in_turn, own.engine, loops[0])


def _in_turn(engine: Engine, loop: PlainLlama, prompts: Sequence[Sequence[int]], num_tokens: int) -> StepTimes:
    turns = _Turns(loop.steps(prompts, num_tokens), len(prompts))
    salt = str(time.perf_counter()).encode()

    def submit(name: str, prompt: Sequence[int], num_tokens: int, sink: Callable[[list[Event]], None]) -> None:
        params = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True)
        engine.submit(Request(id=name, prompt=tuple(prompt), params=params, salt=salt), sink)

    with _Gate() as gate:
        # While the engine waits, so that all prompts are in its first step as they are in the loop's.
        submit("gate", prompts[0][:1], 1, gate.take)
        gate.reached.wait()
        for number, prompt in enumerate(prompts):
            submit(str(number), prompt, num_tokens, turns.take)
        turns.begin()
    return turns.wait()


class _Gate:
    """Keeps the engine's thread from going on."""

    def __init__(self) -> None:
        self.reached = Signal()
        self._opened = Signal()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened.set()

    def take(self, _: list[Event]) -> None:
        """The engine's sink."""
        self.reached.set()
        self._opened.wait()


class _Turns:
    """Takes the events of each of the engine's steps, and makes one of the loop's."""

    def __init__(self, steps: Iterator[list[int]], num_requests: int) -> None:
        self._steps = steps
        self._num_left = num_requests
        self._times = StepTimes()
        self._since = 0.0
        self._over = Signal()
        self._error: Exception | None = None

    def begin(self) -> None:
        """The engine may go on from here."""
        self._since = time.perf_counter()

    def take(self, events: list[Event]) -> None:
        """The engine's sink."""
        came = time.perf_counter()
        self._times.engine.append(came - self._since)
        for event in events:
            self._error = self._error or event.error
            self._num_left -= event.is_last
        if next(self._steps, None) is not None:
            self._times.loop.append(time.perf_counter() - came)
        if not self._num_left:
            self._over.set()
        self._since = time.perf_counter()

    def wait(self) -> StepTimes:
        """Until the engine is through. Raises what failed."""
        self._over.wait()
        if self._error is not None:
            raise self._error
        return self._times
