"""What a backend that runs a model in this process can tell of it: the words between the engine and the metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

import msgspec


class ModelStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """What a model in this process is doing, and its totals since the start, in tokens where nothing else is said.

    `kv_usage` is the used share of the room for keys and values, 0..1. `places` is how many answers one step can hold.
    `queue_s` is the summed wait of `started` requests for their first step, `queue_times` the waits of the latest ones,
    in order. `operations` and bytes are counted over the models' steps; peaks are the device's, 0 where not measured.
    """

    model: str
    running: int = 0
    waiting: int = 0
    places: int = 0
    kv_usage: float = 0.0
    preemptions: int = 0
    evicted_pages: int = 0
    prefix_queried: int = 0
    prefix_hits: int = 0
    prompt: int = 0
    generated: int = 0
    drafted: int = 0
    accepted: int = 0
    accepted_predicted: int = 0
    started: int = 0
    queue_s: float = 0.0
    queue_times: Sequence[float] = ()
    steps: int = 0
    step_answers: int = 0
    step_tokens: int = 0
    busy_s: float = 0.0
    operations: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    peak_operations_per_s: float = 0.0
    peak_bytes_per_s: float = 0.0
    finished: Mapping[str, int] = {}
    """Answers by the way they ended."""
    kernel_fallbacks: Mapping[str, int] = {}
    """Kernels that the machine cannot run, by operation."""
    failure: str | None = None
    """Why it will not answer any more, where nothing short of a new process makes it."""


class AnswerTimes(msgspec.Struct, frozen=True):
    """One call that a model answered: seconds to its first token and to its last, and its tokens."""

    first_token_s: float
    total_s: float
    num_tokens: int


@runtime_checkable
class ModelServer(Protocol):
    """A backend that runs a model in this process, and can tell how that goes."""

    def model_statistics(self) -> ModelStatistics | None:
        """A snapshot; None while no model is loaded."""

    def take_answer_times(self) -> list[AnswerTimes]:
        """Those of the calls answered since the last time, as far as they were kept."""
