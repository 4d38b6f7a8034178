"""What one backend takes to its first token, learned from what a proxy sees of it, and how far to believe that.

Pure arithmetic without a clock: the fleet tells it what it saw, balancing asks it. Six features and recursive least
squares with forgetting (Haykin, "Adaptive Filter Theory", the exponentially weighted form, written from the text).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

Features = tuple[float, float, float, float, float, float]
"""What an attempt meets, in units in which each weight is some hundredths of a second. See `features`."""
Met = tuple[float, float, float, float, float, float]
"""The same as it is counted: the arguments of `features`."""
Doubt = Literal["unseen", "nonsense"]
"""Why a model cannot be asked: too little seen yet, or what it was told made no sense and is forgotten."""

MAX_SECONDS = 3600.0
"""A first token later than this is no observation."""
_MAX_TOKENS = 1e8
_UNITS = (1.0, 1e-3, 5e-8, 5e-3, 1e-5, 5e-5)
_FIRST_WEIGHTS = (0.02, 0.025, 0.02, 0.02, 0.0, 0.02)
"""20 ms, 25 us a token, 1 ns a token squared, 0.1 ms a stream, 0, 1 us a token without room: in the units above."""
_VARIANCE = 0.0025
_MAX_VARIANCE = 100 * _VARIANCE
"""Beyond it nothing more is forgotten: a feature that never moves would make its variance grow without end."""
_FORGETTING = 0.999
_NOISE_S, _NOISE_SHARE = 0.02, 0.2
"""How far one observation is expected to be off: a constant, and a share of the prediction."""
_MAX_SURPRISE = 4.0
"""In expected errors: a stall of seconds says little about the next first token."""
_MIN_OBSERVATIONS = 20
_MAX_NONSENSE = 8
_LATE_TIMES = 4.0
"""Times the residual and the prediction: so late is a first token of a backend that is not the one of before."""
_MAX_LATE = 5
_QUANTILE_STEP = 0.01
_MIN_JUDGED_S = 0.2
"""Residuals of shorter predictions are those of the network and not of a queue."""
_MAX_RESIDUAL = 2.5
_TPOT_STEP, _OUTPUT_STEP = 0.05, 0.01
_FIRST_OUTPUT = 256.0
_MIN_SECONDS_PER_TOKEN = 1e-7
_MAX_NUMBER = 1e6
"""Weights and variances are far below one; beyond this the arithmetic has failed."""


def features(
    queued: float, uncached: float, tokens: float, decoding: float, held: float, lacking: float = 0.0
) -> Features:
    """What a prompt of `tokens`, `uncached` of them, meets at a backend.

    `queued`: uncached tokens of its calls without a first token, `decoding`: its streams past theirs, `held`: tokens
    of all its calls, `lacking`: tokens beyond its room for keys and values.
    """
    return (
        1.0,
        (queued + uncached) * _UNITS[1],
        uncached * (tokens - 0.5 * uncached) * _UNITS[2],
        decoding * _UNITS[3],
        held * _UNITS[4],
        lacking * _UNITS[5],
    )


class LatencyModel:
    """Seconds to the first token, seconds between tokens, tokens of an answer: each as one backend has shown them.

    Not to be asked while `doubt` says why. Observations that cannot be are dropped and counted in `num_nonsense`; after
    8 in a row, or where the arithmetic fails, everything is forgotten.
    """

    __slots__ = (
        "_covariance",
        "_held_tokens",
        "_late_in_row",
        "_nonsense_in_row",
        "_weights",
        "coefficients",
        "doubt",
        "error",
        "is_degraded",
        "num_nonsense",
        "num_observations",
        "output_tokens",
        "residual",
        "seconds_between_tokens",
        "seconds_per_token",
    )

    coefficients: Features
    """The weights for what a proxy counts in plain units: seconds, and seconds per token, token squared, stream, held
    token, lacking token. `predict` without the detour of `features`."""
    doubt: Doubt | None
    """None where predictions can be used."""
    error: float
    """Running median of |observed / predicted - 1|."""
    _late_in_row: int
    is_degraded: bool
    """Five first tokens in a row have come later than four times what was to be expected at worst; one in time ends it.
    Learning takes longer to say as much."""
    residual: float
    """Running 95th percentile of observed / predicted, 1..2.5, of predictions of 0.2 s and more."""
    seconds_per_token: float
    """What one more uncached token in front of it costs a prompt."""
    seconds_between_tokens: float
    """Of a stream past its first token; 0 while none has been seen."""
    output_tokens: float
    """Of an answer, a running mean."""

    def __init__(self) -> None:
        self.num_nonsense = 0
        self.num_observations = 0
        self._nonsense_in_row = 0
        self._reset("unseen")

    def predict(self, x: Features) -> float:
        """Seconds to the first token, 0..3600. Only where `doubt` is None does it mean anything."""
        return min(max(sum(map(float.__mul__, self._weights, x)), 0.0), MAX_SECONDS)

    def observe(self, x: Features, seconds: float) -> None:
        """A first token that came `seconds` after an attempt that met `x`."""
        if not (0.0 <= seconds <= MAX_SECONDS and all(0.0 <= value <= _MAX_TOKENS for value in x)):
            self._note_nonsense()
            return
        self._nonsense_in_row = 0
        predicted = self.predict(x)
        if self.doubt is None:
            self._judge(predicted, seconds)
        self._learn(x, predicted, seconds)
        self.num_observations += 1
        if self.num_observations >= _MIN_OBSERVATIONS:
            self.doubt = None
        if not _are_sane(self._weights):
            self._reset("nonsense")

    def observe_stream(self, num_tokens: int, seconds: float, held_tokens: int) -> None:
        """A stream of `num_tokens` that ended `seconds` after its first, while the backend held so many."""
        if num_tokens < 2 or not 0.0 <= seconds <= MAX_SECONDS:
            return
        gap_s = seconds / (num_tokens - 1)
        step = _TPOT_STEP if self.seconds_between_tokens else 1.0
        self.seconds_between_tokens += step * (gap_s - self.seconds_between_tokens)
        self._held_tokens += step * (held_tokens - self._held_tokens)

    def gap_s(self, held_tokens: float) -> float:
        """Seconds between the tokens of a stream while the backend holds so many: every step reads them all."""
        known = self._held_tokens
        return self.seconds_between_tokens * held_tokens / known if known > 0 else self.seconds_between_tokens

    def observe_output(self, num_tokens: int) -> None:
        """An answer of so many tokens."""
        if 0 < num_tokens <= _MAX_TOKENS:
            self.output_tokens += _OUTPUT_STEP * (num_tokens - self.output_tokens)

    def dump(self) -> dict[str, Any]:
        """Everything learned, as JSON can hold it."""
        return {
            "weights": list(self._weights),
            "covariance": [list(row) for row in self._covariance],
            "observations": self.num_observations,
            "error": self.error,
            "residual": self.residual,
            "seconds_between_tokens": self.seconds_between_tokens,
            "held_tokens": self._held_tokens,
            "output_tokens": self.output_tokens,
        }

    def load(self, saved: Mapping[str, Any]) -> None:
        """Take over what `dump` gave. Raises: ValueError where it is something else; nothing has changed then."""
        try:
            weights = [float(value) for value in saved["weights"]]
            covariance = [[float(value) for value in row] for row in saved["covariance"]]
            observations = int(saved["observations"])
            error, residual = float(saved["error"]), float(saved["residual"])
            gap_s, output = float(saved["seconds_between_tokens"]), float(saved["output_tokens"])
            held = float(saved["held_tokens"])
        except (KeyError, TypeError, ValueError, OverflowError) as cause:
            raise ValueError(f"not a saved latency model: {cause!r}") from cause
        numbers = [*weights, *(value for row in covariance for value in row), error, residual, gap_s, output]
        is_square = len(weights) == len(covariance) == 6 and all(len(row) == 6 for row in covariance)
        is_possible = 0 <= gap_s <= MAX_SECONDS and 0 <= held <= _MAX_TOKENS and min(observations, output) >= 0
        if not (is_square and _are_sane(numbers) and is_possible):
            raise ValueError("not a saved latency model: wrong shape or numbers")
        self._reset("unseen")
        self._weights, self._covariance = weights, covariance
        self.num_observations = observations
        self.doubt = None if observations >= _MIN_OBSERVATIONS else "unseen"
        self.error, self.residual = max(0.0, error), min(max(residual, 1.0), _MAX_RESIDUAL)
        self.seconds_between_tokens, self.output_tokens, self._held_tokens = gap_s, output, held
        self._publish()

    def _learn(self, x: Features, predicted: float, seconds: float) -> None:
        rows = self._covariance
        spread_s = _NOISE_S + _NOISE_SHARE * predicted
        error = min(max(seconds - predicted, -_MAX_SURPRISE * spread_s), _MAX_SURPRISE * spread_s)
        direction = [sum(map(float.__mul__, row, x)) for row in rows]
        total = _FORGETTING * spread_s * spread_s + sum(map(float.__mul__, direction, x))
        gain = [value / total for value in direction]
        self._weights = [weight + part * error for weight, part in zip(self._weights, gain, strict=True)]
        forget = max(row[place] for place, row in enumerate(rows)) < _MAX_VARIANCE
        scale = 1 / _FORGETTING if forget else 1.0
        self._covariance = [
            [(value - part * toward) * scale for value, toward in zip(row, direction, strict=True)]
            for row, part in zip(rows, gain, strict=True)
        ]
        self._publish()

    def _publish(self) -> None:
        a, b, c, d, e, f = (weight * unit for weight, unit in zip(self._weights, _UNITS, strict=True))
        self.coefficients = (a, b, c, d, e, f)
        self.seconds_per_token = max(_MIN_SECONDS_PER_TOKEN, b)

    def _judge(self, predicted: float, seconds: float) -> None:
        ratio = seconds / max(predicted, 1e-3)
        is_late = seconds > _LATE_TIMES * self.residual * max(predicted, _NOISE_S)
        self._late_in_row = self._late_in_row + 1 if is_late else 0
        self.is_degraded = self._late_in_row >= _MAX_LATE
        self.error = max(0.0, self.error + (_QUANTILE_STEP if abs(ratio - 1) > self.error else -_QUANTILE_STEP))
        if predicted >= _MIN_JUDGED_S:
            moved = self.residual + (0.95 if ratio > self.residual else -0.05) * _QUANTILE_STEP
            self.residual = min(max(moved, 1.0), _MAX_RESIDUAL)

    def _note_nonsense(self) -> None:
        self.num_nonsense += 1
        self._nonsense_in_row += 1
        if self._nonsense_in_row >= _MAX_NONSENSE:
            self._reset("nonsense")

    def _reset(self, doubt: Doubt) -> None:
        self.doubt = doubt
        self.num_observations = 0
        self._nonsense_in_row = 0
        self._late_in_row = 0
        self.is_degraded = False
        self._weights = list(_FIRST_WEIGHTS)
        self._covariance = [[_VARIANCE if row == column else 0.0 for column in range(6)] for row in range(6)]
        self.error = 0.0
        self.residual = 1.5
        self.seconds_between_tokens = 0.0
        self._held_tokens = 0.0
        self.output_tokens = _FIRST_OUTPUT
        self._publish()


def _are_sane(numbers: Iterable[float]) -> bool:
    """False for what is not a number, too."""
    return all(-_MAX_NUMBER < number < _MAX_NUMBER for number in numbers)
