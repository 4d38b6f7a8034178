"""Each one that is compared works in a process of its own, so that no thread pool gets in another's way.

Threads of a second pool in one process make OpenMP put its own to sleep between products, which halves its speed.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Generic, Self, TypeVar

import torch

from backends.engine.benchmark.figure import PeerMissing
from backends.engine.benchmark.own import own_engine
from backends.engine.benchmark.peers import Generate
from backends.engine.options import EngineOptions

Found = TypeVar("Found")
Make = Callable[[ExitStack], Callable[[Sequence[Sequence[int]], int], Found]]
"""Loads a contender, in its process; what has to be closed goes on the stack. Must be picklable."""


class Contender(Generic[Found]):
    """A contender at work; what it finds goes from process to process. Raises PeerMissing where it is not installed."""

    def __init__(self, make: Make[Found], *, threads: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_work, args=(theirs, make, threads), daemon=True)
        self._process.start()
        theirs.close()
        self._receive()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()
        self._process.join()

    def generate(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> Found:
        """`num_tokens` greedy tokens for each of all prompts at once; most contenders find tokens a second.

        Raises what went wrong there.
        """
        self._connection.send((prompts, num_tokens))
        return self._receive()

    def _receive(self) -> Found:
        answer: Found | Exception = self._connection.recv()
        if isinstance(answer, Exception):
            raise answer
        return answer


def engine(options: EngineOptions) -> Make[float]:
    """Our engine as a contender."""
    return partial(_make_engine, options)


def peer(make: Callable[[], Generate]) -> Make[float]:
    """One of the peers as a contender."""
    return partial(_make_peer, make)


def _make_engine(options: EngineOptions, stack: ExitStack) -> Generate:
    return stack.enter_context(own_engine(options)).generate


def _make_peer(make: Callable[[], Generate], stack: ExitStack) -> Generate:
    del stack
    return make()


def _work(connection: Connection, make: Make[object], threads: int) -> None:
    """What the process does until nobody asks any more."""
    with ExitStack() as stack:
        try:
            torch.set_num_threads(threads)
            generate = make(stack)
            connection.send(None)
            while True:
                connection.send(generate(*connection.recv()))
        except EOFError:
            return
        except PeerMissing as missing:
            connection.send(missing)
        except Exception as error:  # the process's border: told to the one who asked
            connection.send(RuntimeError(f"{type(error).__name__}: {error}"))
