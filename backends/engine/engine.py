"""The engine: a thread that owns the model, a queue into it, events out of it.

Requests come in from any thread and are refused at once where they cannot be answered. What the thread does with them
is `engine_core.py`; where even a step of nothing fails, the engine stops and tells everybody.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import takewhile
from queue import SimpleQueue

import torch

from backends.engine.calls import Sink
from backends.engine.choosing.grammar import GrammarFactory
from backends.engine.choosing.sampling import check_params
from backends.engine.choosing.sampling_params import check_emitted
from backends.engine.engine_core import EngineCore
from backends.engine.errors import EngineStopped, RequestRefused
from backends.engine.load import EngineParts, load_parts
from backends.engine.model.config import ModelConfig
from backends.engine.options import EngineOptions
from backends.engine.request import Request
from backends.engine.statistics import EngineStatistics
from backends.engine.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)


class Engine:
    """One model at work. `start` it, `submit` requests, `close` it.

    `load` makes the parts, in the engine's thread; `now` reads a clock in seconds; `rng` draws the seeds of requests
    that bring none.
    """

    def __init__(
        self,
        options: EngineOptions,
        *,
        load: Callable[[EngineOptions, Callable[[], float]], EngineParts] = load_parts,
        now: Callable[[], float] = time.perf_counter,
        rng: random.Random | None = None,
    ) -> None:
        self._options = options
        self._load = load
        self._now = now
        self._rng = random.Random() if rng is None else rng
        self._core: EngineCore | None = None
        self._thread: threading.Thread | None = None
        self._commands: SimpleQueue[Callable[[EngineCore], None]] = SimpleQueue()
        self._is_closing = False
        # Guards the two below, which any thread may look at.
        self._lock = threading.Lock()
        self._in_hand: set[str] = set()
        self._stopped: EngineStopped | None = EngineStopped("the engine was not started")

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's; to be asked for once the engine is started."""
        return self._started.parts.tokenizer

    @property
    def config(self) -> ModelConfig:
        """The model's; to be asked for once the engine is started."""
        return self._started.parts.config

    @property
    def grammars(self) -> GrammarFactory:
        """What makes grammars for requests, each compiled once; any thread may use it, once the engine is started."""
        return self._started.parts.grammars

    @property
    def max_context(self) -> int:
        """Tokens of prompt and answer together, as far as the model and the cache reach."""
        return self._started.parts.max_context

    def start(self) -> None:
        """Loads the model and begins to work; waits until it is ready. Raises ModelError, OutOfMemory."""
        assert self._thread is None, "an engine starts once"
        ready: Future[EngineParts] = Future()
        self._thread = threading.Thread(target=self._main, args=(ready,), name="engine", daemon=True)
        self._thread.start()
        ready.result()

    def submit(self, request: Request, sink: Sink) -> None:
        """Takes a request; `sink` gets its events, from the engine's thread, once a step. Does not wait.

        Raises RequestRefused, also where too many are in hand (code "engine_full"), and EngineStopped.
        """
        with self._lock:
            if self._stopped is not None:
                raise self._stopped
        self._check(request)
        with self._lock:
            if self._stopped is not None:
                raise self._stopped
            if request.id in self._in_hand:
                raise RequestRefused(f"a request {request.id!r} is in hand already; give each an id of its own")
            if len(self._in_hand) >= self._options.max_requests:
                raise RequestRefused(
                    f"{len(self._in_hand)} requests are in hand, which is as many as are taken; try again later",
                    code="engine_full",
                )
            self._in_hand.add(request.id)
            self._commands.put(partial(EngineCore.admit, request=request, sink=sink, submitted_s=self._now()))

    def abort(self, request_id: str) -> None:
        """Gives a request up; it ends with the reason "abort". Nothing happens where it is over."""
        self._commands.put(partial(EngineCore.abort, request_id=request_id))

    def push(self, request_id: str, start: int, tokens: Sequence[int], most_kept: int) -> None:
        """Hands over a guess of a request's tokens from `start` on, its prompt counted. The coming steps verify what
        its text agrees with; `most_kept` of them wait at most. Nothing happens where it is over.
        """
        vocab_size = self._started.parts.config.vocab_size
        known = list(takewhile(lambda token: 0 <= token < vocab_size, tokens))
        self._commands.put(
            partial(EngineCore.push, request_id=request_id, start=start, tokens=known, most_kept=most_kept)
        )

    def go_on(self, request_id: str, *, freely: bool) -> None:
        """Lets a request that goes by rounds make a step, or `freely` all of them; nothing happens where it is over."""
        self._commands.put(partial(EngineCore.go_on, request_id=request_id, freely=freely))

    def close(self) -> None:
        """Stops after the running step and waits for it; what is in hand ends with EngineStopped."""
        self._commands.put(self._stop)
        if self._thread is not None:
            self._thread.join()

    def statistics(self) -> EngineStatistics:
        """The engine at this moment, from any thread."""
        failure = str(self._stopped) if self._stopped and self._stopped.__cause__ else None
        return self._started.statistics(num_requests=len(self._in_hand), failure=failure)

    @property
    def _started(self) -> EngineCore:
        if self._core is None:
            raise EngineStopped("the engine was not started")
        return self._core

    def _check(self, request: Request) -> None:
        """Refuses what could never be answered."""
        parts = self._started.parts
        vocab_size, num_prompt = parts.config.vocab_size, len(request.prompt)
        if not num_prompt:
            raise RequestRefused("the prompt is empty; send at least one token", param="prompt")
        if min(request.prompt) < 0 or max(request.prompt) >= vocab_size:
            raise RequestRefused(f"the prompt holds a token outside of 0..{vocab_size - 1}", param="prompt")
        if request.n < 1:
            raise RequestRefused(f"n is {request.n}; it must be at least 1", param="n")
        if request.best_of is not None and request.best_of < request.n:
            raise RequestRefused(f"best_of is {request.best_of}; it must be at least n ({request.n})", param="best_of")
        if request.adapter is not None:
            raise RequestRefused(f"there is no adapter {request.adapter!r}", param="model")
        if request.params.grammar is not None:
            parts.grammars.check(request.params.grammar)
        check_params(request.params, vocab_size=vocab_size, max_context=parts.max_context, num_prompt=num_prompt)
        check_emitted(request, vocab_size=vocab_size, max_context=parts.max_context)

    # From here on everything runs in the engine's thread.

    def _main(self, ready: Future[EngineParts]) -> None:
        try:
            if self._options.threads is not None:
                torch.set_num_threads(self._options.threads)
            parts = self._load(self._options, self._now)
        except BaseException as error:  # the caller of `start` waits for it
            ready.set_exception(error)
            return
        core = self._core = EngineCore(parts, on_over=self._over, now=self._now, rng=self._rng)
        self._stopped = None
        ready.set_result(parts)
        stopped = EngineStopped("the engine is closed")
        try:
            with torch.inference_mode():
                while not self._is_closing:
                    self._take_commands(core)
                    if core.has_work:
                        core.step()
                    core.deliver()
        except BaseException as error:  # the thread's border: it never dies silently
            logger.exception("the engine stops")
            stopped = EngineStopped(f"the engine stopped because of an error: {error}")
            stopped.__cause__ = error
        self._end_all(core, stopped)
        core.close()

    def _take_commands(self, core: EngineCore) -> None:
        """Carries out what has come in; waits for something to do where there is nothing."""
        if not core.has_work:
            self._commands.get()(core)
        while not self._commands.empty():
            self._commands.get()(core)

    def _end_all(self, core: EngineCore, stopped: EngineStopped) -> None:
        """Nobody comes in any more; who is in hand, or still in the queue, hears why."""
        with self._lock:
            self._stopped = stopped
        while not self._commands.empty():
            try:
                self._commands.get()(core)
            except Exception:  # what is broken must not keep the others from hearing of it
                logger.exception("a command fails while the engine stops")
        core.end_all(stopped)

    def _stop(self, _: EngineCore) -> None:
        self._is_closing = True

    def _over(self, request_id: str) -> None:
        with self._lock:
            self._in_hand.discard(request_id)
