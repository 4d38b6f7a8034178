"""When work goes, whatever the work: the window alone, without time."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from policies.batching.window import BatchLimits, BatchWindow

LIMITS = BatchLimits(max_batch=8, max_bytes=100, max_in_flight=2, max_waiting=20)


@dataclass(eq=False)
class Work:
    """Something with a size."""

    size: int = 1
    num_bytes: int = 1
    is_late: bool = False


def _release(window: BatchWindow[Work]) -> tuple[list[Work], list[Work]]:
    return window.release(lambda work: work.is_late)


def test_window_idle_lets_work_go_at_once() -> None:
    """There is nothing to wait for."""
    window: BatchWindow[Work] = BatchWindow(LIMITS)
    work = Work()
    window.add(work)

    assert _release(window) == ([work], [])
    assert (window.in_flight, window.num_waiting) == (1, 0)


def test_window_busy_gathers_until_a_place_is_free() -> None:
    """What comes meanwhile goes together."""
    window: BatchWindow[Work] = BatchWindow(BatchLimits(max_batch=8, max_bytes=100, max_in_flight=1, max_waiting=20))
    window.add(Work())
    _release(window)
    gathered = [Work(), Work(2)]
    for work in gathered:
        window.add(work)

    assert _release(window) == ([], [])
    window.free_slot()
    assert _release(window) == (gathered, [])


def test_window_fills_past_what_is_late() -> None:
    """A batch is not the smaller for those who are dropped."""
    window: BatchWindow[Work] = BatchWindow(BatchLimits(max_batch=2, max_bytes=100, max_in_flight=1, max_waiting=20))
    late, *good = [Work(is_late=True), Work(), Work()]
    for work in (late, *good):
        window.add(work)

    assert _release(window) == (good, [late])
    assert window.num_waiting == 0


def test_window_sends_what_is_too_large_alone() -> None:
    """Its turn comes like any other's."""
    window: BatchWindow[Work] = BatchWindow(LIMITS)
    large, small = Work(num_bytes=1000), Work()
    window.add(large)
    window.add(small)

    assert _release(window) == ([large], [])
    assert _release(window) == ([small], [])


@given(st.data())
def test_window_random_life_agrees_with_the_model(data: st.DataObject) -> None:
    """Order, limits, room and emptiness are those of a plain list, and nothing waits beside a free place."""
    window: BatchWindow[Work] = BatchWindow(LIMITS)
    queue: list[Work] = []
    cut: deque[list[Work]] = deque()
    out: list[list[Work]] = []
    for _ in range(data.draw(st.integers(1, 40))):
        step = data.draw(st.sampled_from(["add", "free slot", "remove", "put back"]))
        if step == "add":
            work = Work(data.draw(st.integers(1, 8)), data.draw(st.integers(1, 60)), data.draw(st.booleans()))
            waiting = sum(each.size for each in (*queue, *(each for batch in cut for each in batch)))
            assert window.has_room(work.size) == (not waiting or waiting + work.size <= LIMITS.max_waiting)
            window.add(work)
            queue.append(work)
        elif step == "remove" and queue:
            window.remove(queue.pop(data.draw(st.integers(0, len(queue) - 1))))
        elif step == "remove" and (left := [batch for batch in cut if batch]):
            window.remove(left[-1].pop())
        elif out:
            batch = out.pop(data.draw(st.integers(0, len(out) - 1)))
            if step == "put back":
                halves = [half for half in (batch[: len(batch) // 2], batch[len(batch) // 2 :]) if half]
                cut.extend([*half] for half in halves)
                window.put_back(halves)
            window.free_slot()
        while True:
            batch, late = _release(window)
            assert [work for work in queue if work.is_late][: len(late)] == late
            queue = [work for work in queue if work not in late]
            if not batch:
                break
            while cut and not cut[0]:
                cut.popleft()
            if cut:
                assert batch == cut.popleft()
            else:
                assert batch == queue[: len(batch)]
                assert len(batch) == 1 or sum(work.size for work in batch) <= LIMITS.max_batch
                assert len(batch) == 1 or sum(work.num_bytes for work in batch) <= LIMITS.max_bytes
                queue = queue[len(batch) :]
            out.append(batch)
        waiting = sum(each.size for each in (*queue, *(each for batch in cut for each in batch)))
        assert (window.num_waiting, window.in_flight) == (waiting, len(out))
        assert len(out) == LIMITS.max_in_flight or not waiting
        assert window.is_empty == (not out and not waiting)
