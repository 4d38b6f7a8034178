"""A call with a stack as large as it is told, for libraries whose recursion follows what a client has nested."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

Result = TypeVar("Result")

_SIZE_OF_STACKS = threading.Lock()
"""Who holds it may change the size of new threads' stacks, which is the whole process's."""


def on_deep_stack(work: Callable[[], Result], stack_bytes: int) -> Future[Result]:
    """Begins `work` in a thread of its own, which ends with it.

    Raises: RuntimeError where there is no room for such a stack.
    """
    done: Future[Result] = Future()
    thread = threading.Thread(target=_run, args=(work, done), name="deep-stack", daemon=True)
    with _SIZE_OF_STACKS:
        before = threading.stack_size(stack_bytes)
        try:
            thread.start()
        finally:
            threading.stack_size(before)
    return done


def _run(work: Callable[[], Result], done: Future[Result]) -> None:
    try:
        done.set_result(work())
    except BaseException as error:  # who waits for it is told
        done.set_exception(error)
