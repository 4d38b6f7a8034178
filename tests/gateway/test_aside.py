"""Long work beside the event loop: what it makes is of no concern to the collector."""

from __future__ import annotations

import gc

from gateway.process.aside import run_aside


class _Part:
    def __init__(self) -> None:
        self.others: list[_Part] = []


async def test_result_is_left_out_of_later_collections() -> None:
    """A pass over a policy with thousands of routes stopped calls for a tenth of a second."""
    thresholds = gc.get_threshold()
    made = await run_aside(lambda: [_Part() for _ in range(5000)])
    frozen = gc.get_freeze_count()
    seen = {id(each) for each in gc.get_objects()}
    gc.unfreeze()

    assert frozen >= len(made)
    assert not any(id(part) in seen for part in made)
    assert gc.get_threshold() == thresholds
