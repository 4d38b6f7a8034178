"""How much may be underway at a backend: found from first tokens alone, whatever the backend is like."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.pool.load.concurrency_estimate import ConcurrencyEstimate

PROMPT = 100


class Server:
    """Computes prompts one after the other, and has `rest_s` more to each first token. Some always wait to be sent."""

    def __init__(self, prompt_s: float, rest_s: float) -> None:
        self.prompt_s = prompt_s
        self.rest_s = rest_s
        self._now = 0.0
        self._free_at = 0.0
        self._underway: deque[tuple[float, float, int]] = deque()

    def run(self, estimate: ConcurrencyEstimate, seconds: float) -> float:
        """As many underway as the estimate says, 100 at most; the share of the time in which there was work to do."""
        end, num_answered = self._now + seconds, 0
        while self._now < end:
            waiting = PROMPT * len(self._underway)
            if not waiting or waiting + PROMPT <= min(estimate.tokens, 100 * PROMPT):
                self._free_at = max(self._now, self._free_at) + self.prompt_s
                self._underway.append((self._free_at + self.rest_s, self._now, waiting))
            else:
                self._now, sent_at, ahead = self._underway.popleft()
                estimate.observe(ahead, PROMPT, self._now - sent_at)
                num_answered += 1
        return num_answered * self.prompt_s / seconds


def estimate_of(server: Server) -> ConcurrencyEstimate:
    """One that has seen what the server takes for prompts that are alone."""
    estimate = ConcurrencyEstimate()
    for _ in range(10):
        estimate.observe(0, PROMPT, server.prompt_s + server.rest_s)
    return estimate


@pytest.mark.parametrize(("prompt_s", "rest_s"), [(0.04, 0.2), (0.04, 0.02), (0.1, 0.5)])
def test_estimate_of_a_busy_server_keeps_it_busy_without_a_queue(prompt_s: float, rest_s: float) -> None:
    """What is underway settles at what can be computed in one first token's time, give or take two prompts."""
    server = Server(prompt_s, rest_s)
    estimate = estimate_of(server)
    server.run(estimate, 120.0)

    busy = server.run(estimate, 60.0)

    assert busy >= 0.8
    assert estimate.tokens / PROMPT <= (prompt_s + rest_s) / prompt_s + 2


def test_estimate_of_a_server_that_has_become_slower_moves() -> None:
    """With less underway some are nearly alone, and show what a first token takes now."""
    server = Server(0.04, 0.2)
    estimate = estimate_of(server)
    server.run(estimate, 60.0)
    server.prompt_s, server.rest_s = 0.06, 0.3
    server.run(estimate, 120.0)

    assert server.run(estimate, 60.0) >= 0.5


def test_concurrency_estimate_before_anything_was_late_is_nowhere() -> None:
    """Prompts in time say that more may be underway; before ten were nearly alone none can be said to be late."""
    estimate = ConcurrencyEstimate()
    estimate.observe(50 * PROMPT, PROMPT, 9.0)
    for _ in range(10):
        assert estimate.tokens == float("inf")
        estimate.observe(0, PROMPT, 0.2)
    estimate.observe(5 * PROMPT, PROMPT, 0.2)
    assert estimate.tokens == float("inf")

    estimate.observe(5 * PROMPT, PROMPT, 0.4)

    assert estimate.tokens == 12 * PROMPT


def test_concurrency_estimate_long_prompt_is_not_late_for_its_length() -> None:
    """What a prompt takes alone follows from its length."""
    estimate = ConcurrencyEstimate()
    for tokens in [100, 1000] * 20:
        estimate.observe(0, tokens, 0.1 + tokens / 1000)

    estimate.observe(2000, 1000, 1.15)
    assert estimate.tokens == float("inf")
    estimate.observe(2000, 100, 1.15)
    assert estimate.tokens == 4200


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 10**6), st.floats())))
def test_concurrency_estimate_whatever_it_is_told_leaves_room_for_a_prompt(seen: list[tuple[int, int, float]]) -> None:
    """Never nothing, never no number: a backend is not closed by nonsense."""
    estimate = ConcurrencyEstimate()
    for ahead, own, seconds in seen:
        estimate.observe(ahead, own, seconds)

        assert estimate.tokens >= 1
