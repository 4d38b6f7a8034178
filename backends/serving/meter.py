"""Counts what a served model has done, answers, tokens and times, and puts the engine's own numbers beside it."""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING

from backends.charges.usage import Usage
from backends.model_server import AnswerTimes, ModelStatistics
from backends.protocol import Facts

if TYPE_CHECKING:
    from backends.engine.statistics import EngineStatistics

_MAX_TIMES = 10_000
"""Kept until somebody asks, which is every few seconds."""


class Meter:
    """One per backend. `label` names the model in metrics, `places` are the answers that a step can hold."""

    def __init__(self, label: str, places: int) -> None:
        self._label = label
        self._places = places
        self._finished: Counter[str] = Counter()
        self._prompt = 0
        self._generated = 0
        self._times: deque[AnswerTimes] = deque(maxlen=_MAX_TIMES)

    def finished(self, reason: str) -> None:
        """An answer ended."""
        self._finished[reason] += 1

    def answered(self, usage: Usage, facts: Facts, now: float) -> None:
        """A call has its whole answer; `now` is on the clock of its facts."""
        self._prompt += usage.prompt_tokens
        self._generated += usage.completion_tokens
        if facts.sent_at is not None and facts.first_token_at is not None:
            first_s = facts.first_token_at - facts.sent_at
            self._times.append(AnswerTimes(first_s, now - facts.sent_at, usage.completion_tokens))

    def take_times(self) -> list[AnswerTimes]:
        """The times of the calls answered since the last time."""
        times = list(self._times)
        self._times.clear()
        return times

    def statistics(self, engine: EngineStatistics) -> ModelStatistics:
        """Everything at this moment."""
        scheduler, steps, speculation = engine.scheduler, engine.steps, engine.speculation
        pool, compute, peaks = scheduler.pool, engine.compute, engine.peaks
        return ModelStatistics(
            model=self._label,
            running=scheduler.num_running,
            waiting=scheduler.num_waiting,
            places=self._places,
            kv_usage=pool.num_used / pool.num_pages if pool.num_pages else 0.0,
            preemptions=scheduler.num_preemptions,
            evicted_pages=pool.num_evictions,
            prefix_queried=scheduler.queried_tokens,
            prefix_hits=scheduler.hit_tokens,
            prompt=self._prompt,
            generated=self._generated,
            drafted=sum(speculation.proposed.values()),
            accepted=sum(speculation.accepted.values()),
            accepted_predicted=speculation.accepted["prediction"],
            started=engine.num_started,
            queue_s=engine.queue_s,
            queue_times=engine.queue_times,
            steps=steps.num_steps,
            step_answers=steps.num_sequences,
            step_tokens=steps.num_computed,
            busy_s=steps.busy_s,
            operations=compute.operations,
            read_bytes=compute.read_bytes,
            written_bytes=compute.written_bytes,
            peak_operations_per_s=peaks.operations_per_s if peaks is not None else 0.0,
            peak_bytes_per_s=peaks.bytes_per_s if peaks is not None else 0.0,
            finished=dict(self._finished),
            kernel_fallbacks=engine.kernel_fallbacks,
            failure=engine.failure,
        )
