"""Work on a deep stack is as if it were done here."""

from __future__ import annotations

import threading

import pytest

from backends.engine.choosing.deep_stack import on_deep_stack


def test_deep_stack_gives_what_the_work_gives_and_leaves_other_threads_as_they_are() -> None:
    """Results and errors; the size of stacks is the process's, and is what it was."""

    def fail() -> None:
        raise LookupError("not there")

    before = threading.stack_size()
    assert on_deep_stack(lambda: threading.current_thread().name, 2**26).result() == "deep-stack"
    with pytest.raises(LookupError, match="not there"):
        on_deep_stack(fail, 2**26).result()

    assert threading.stack_size() == before
