"""How much may be underway at a backend while the next prompt still begins nearly as soon as it would alone.

More does not make the backend faster, only everybody later. Found as TCP Vegas finds its window (Brakmo and Peterson,
"TCP Vegas: End to End Congestion Avoidance on a Global Internet", 1995; written from the paper): of the prompts that
are underway the share that stands in a queue is the share of delay in the time to a first token. Pure.
"""

from __future__ import annotations

from math import inf

from policies.pool.load.latency_model import MAX_SECONDS

_FORGETTING = 0.99
_MIN_ALONE = 10
"""So many prompts that were nearly alone are to be seen first."""
_FEW = 3
_RIDGE = 0.01
"""Prompts of nearly one length say nothing of what a token costs."""
_QUEUED = 0.75
"""Late is who met more of a prompt than this in the queue: less is the rest of the one that is being computed."""
_STEP_UP, _STEP_DOWN = 0.1, 0.5
"""In prompts: for as many in time as are underway, and for each that was late."""


class ConcurrencyEstimate:
    """Of one backend. A prompt's tokens are here those that are not cached there."""

    __slots__ = ("_count", "_num_alone", "_seconds", "_sum", "_sum_seconds", "_sum_squares", "tokens")

    def __init__(self) -> None:
        self.tokens = inf
        """Of prompts without a first token, the next one's included; infinite until one was late."""
        self._num_alone = 0
        self._count = self._sum = self._sum_squares = 0.0
        self._seconds = self._sum_seconds = 0.0

    def observe(self, ahead: float, own: float, seconds: float) -> None:
        """A first token that came `seconds` after its prompt of `own` tokens went out behind `ahead` others."""
        if not 0 < seconds <= MAX_SECONDS:
            return
        # Where so few are underway a backend may have become slower, and none would ever be quite alone to show it.
        if not ahead or (ahead <= own and self.tokens < _FEW * own):
            self._learn(own, seconds)
        if self._num_alone < _MIN_ALONE:
            return
        # Whoever comes while a prompt is being computed waits for that, and mostly for a long one.
        prompt = max(own, self._sum_squares / self._sum)
        underway = ahead + own
        queued = underway * (1 - self._alone_s(own) / seconds)
        if queued < _QUEUED * prompt:
            if underway + prompt > self.tokens:
                self.tokens += _STEP_UP * prompt * own / self.tokens
        elif self.tokens == inf:
            # It may have met others by chance, so the limit is somewhere above.
            self.tokens = 2 * underway
        elif self.tokens / 2 < underway <= self.tokens:
            self.tokens = max(prompt, self.tokens - _STEP_DOWN * prompt)

    def _alone_s(self, own: float) -> float:
        """What the first token of such a prompt takes alone: a line through those that nearly were."""
        mean, mean_s = self._sum / self._count, self._seconds / self._count
        spread = self._sum_squares / self._count - mean * mean
        slope = (self._sum_seconds / self._count - mean * mean_s) / (spread + _RIDGE * mean * mean)
        return max(0.0, mean_s + max(0.0, slope) * (own - mean))

    def _learn(self, own: float, seconds: float) -> None:
        self._num_alone += 1
        self._count = _FORGETTING * self._count + 1
        self._sum = _FORGETTING * self._sum + own
        self._sum_squares = _FORGETTING * self._sum_squares + own * own
        self._seconds = _FORGETTING * self._seconds + seconds
        self._sum_seconds = _FORGETTING * self._sum_seconds + own * seconds
