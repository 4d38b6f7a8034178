"""Host milliseconds of schedule + commit in a decode step, drafts and prompts of any length aside from the model.

    python -m tests.benchmarks.engine.scheduler_cost --sequences 64 --steps 2000

Runs the real scheduler with tokens from nowhere. Prints the median and the 99th percentile of a step over all steps,
page growth and page names included, with and without room for drafts; then what admitting one long prompt costs.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

from backends.engine.kv.pages import PagePool, pages_for
from backends.engine.step.scheduler import Scheduler
from tests.support.engine.paged_engine import make_sequence, numbers

_PROMPT = 200


def _decoding(num_sequences: int, num_steps: int, draft_room: int) -> Scheduler:
    """A scheduler whose sequences have computed their prompts."""
    context = _PROMPT + num_steps + 10
    pool = PagePool(num_sequences * pages_for(context))
    scheduler = Scheduler(
        pool,
        max_batch_tokens=num_sequences * max(_PROMPT, 1 + draft_room),
        max_sequences=num_sequences,
        max_context=context,
    )
    for order in range(num_sequences):
        scheduler.add(make_sequence(numbers(_PROMPT, order), order=order))
    _step(scheduler, 0)
    return scheduler


def _step(scheduler: Scheduler, draft_room: int) -> None:
    for part in scheduler.schedule(draft_room).slices:
        scheduler.commit(part, [7] if part.samples else [])


def _times_ms(action: Callable[[], None], repeats: int) -> list[float]:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        action()
        times.append((time.perf_counter() - start) * 1e3)
    return sorted(times)


def _admit(num_tokens: int) -> Callable[[], None]:
    def admit() -> None:
        scheduler = Scheduler(
            PagePool(pages_for(num_tokens)), max_batch_tokens=8192, max_sequences=1, max_context=num_tokens
        )
        scheduler.add(make_sequence(prompt, order=0))
        scheduler.schedule()

    prompt = numbers(num_tokens)
    return admit


def main() -> None:
    """Prints one line a case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sequences", type=int, default=64)
    parser.add_argument("--steps", type=int, default=2000)
    options = parser.parse_args()
    for draft_room in (0, 4):
        scheduler = _decoding(options.sequences, options.steps, draft_room)
        times = _times_ms(lambda scheduler=scheduler, room=draft_room: _step(scheduler, room), options.steps)  # type: ignore[misc]
        print(
            f"decode {options.sequences} sequences, draft room {draft_room}: "
            f"median {statistics.median(times):.3f} ms, p99 {times[int(len(times) * 0.99)]:.3f} ms"
        )
    for num_tokens in (2_000, 128_000):
        times = _times_ms(_admit(num_tokens), 9)
        print(f"first step of a prompt of {num_tokens} tokens: median {statistics.median(times):.2f} ms")


if __name__ == "__main__":
    main()
