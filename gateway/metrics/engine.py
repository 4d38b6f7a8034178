"""Metrics of models that run in this process, under vLLM's names where it has one, so that its panels work here too.

Totals are copied from the backends' snapshots when somebody looks. `docs/metrics.md` describes each of them; a test
compares the two.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from backends.model_server import AnswerTimes, ModelServer, ModelStatistics
from gateway.metrics.group import MetricGroup, Step, drop_series

if TYPE_CHECKING:
    from gateway.runtime import Runtime

_FIRST_TOKEN_BUCKETS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_TOKEN_BUCKETS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
_TOTAL_BUCKETS = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)


class EngineMetrics(MetricGroup):
    """Every metric of such models. `engine` is the backend's name."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry, "", "model_name", "engine")
        counter, gauge, histogram = self.counter, self.gauge, self.histogram
        self.running = gauge("vllm:num_requests_running", "Answers that the model works on.")
        self.waiting = gauge("vllm:num_requests_waiting", "Answers that wait for the model.")
        self.kv_usage = gauge(
            "vllm:kv_cache_usage_perc", "Used share of the room for keys and values, 0 to 1.", workers="livemax"
        )
        self.places = gauge("slipstream_engine_places", "Answers that one step can hold.")
        self.success = counter("vllm:request_success", "Answers by the way they ended.", "finished_reason")
        self.kernel_fallbacks = counter(
            "slipstream_engine_kernel_fallbacks", "Kernels that the machine cannot run, done without.", "operation"
        )
        self.first_token = histogram(
            "vllm:time_to_first_token_seconds", "From a call's start to its first token.", buckets=_FIRST_TOKEN_BUCKETS
        )
        self.per_token = histogram(
            "vllm:request_time_per_output_token_seconds", "A call's mean time per token.", buckets=_TOKEN_BUCKETS
        )
        self.decode = histogram(
            "vllm:request_decode_time_seconds", "From a call's first token to its last.", buckets=_TOTAL_BUCKETS
        )
        self.total = histogram(
            "vllm:e2e_request_latency_seconds", "From a call's start to its last token.", buckets=_TOTAL_BUCKETS
        )
        self.queue = histogram(
            "vllm:request_queue_time_seconds", "From a prompt's arrival to its first step.", buckets=_TOTAL_BUCKETS
        )
        self.peak_operations = gauge(
            "slipstream_engine_peak_operations_per_second",
            "What the device reaches, where measured.",
            workers="livemax",
        )
        self.peak_bytes = gauge(
            "slipstream_engine_peak_bytes_per_second",
            "What the device's memory reaches, where measured.",
            workers="livemax",
        )
        self._totals = {field: counter(name, meaning) for field, name, meaning in _TOTALS}
        self._last: dict[str, ModelStatistics] = {}

    def refresh(self, runtime: Runtime) -> Iterator[Step]:
        """A step for each backend with a model."""
        for name, leaf in runtime.leaves.items():
            if isinstance(leaf, ModelServer):
                yield partial(self.refresh_server, name, leaf)

    def retire(self, previous: Runtime, runtime: Runtime) -> Iterator[Step]:
        """A step for each backend that is another one now, or gone."""
        for name, leaf in previous.leaves.items():
            if runtime.leaves.get(name) is not leaf:
                yield partial(self.retire_server, name)

    def failures(self) -> list[str]:
        """Which models will not answer any more, and why."""
        return [f"backend {name}: {last.failure}" for name, last in self._last.items() if last.failure is not None]

    def refresh_server(self, name: str, server: ModelServer) -> None:
        """Bring one backend's metrics up to date."""
        now = server.model_statistics()
        if now is None:
            return
        last = self._last.get(name)
        if last is None or last.model != now.model or last.steps > now.steps:
            # Another engine took the name over, and counts from nothing.
            last = ModelStatistics(model=now.model)
        labels = (now.model, name)
        self.running.labels(*labels).set(now.running)
        self.waiting.labels(*labels).set(now.waiting)
        self.kv_usage.labels(*labels).set(now.kv_usage)
        self.places.labels(*labels).set(now.places)
        for field, counter in self._totals.items():
            counter.labels(*labels).inc(max(0, getattr(now, field) - getattr(last, field)))
        for reason, number in now.finished.items():
            self.success.labels(*labels, reason).inc(max(0, number - last.finished.get(reason, 0)))
        for operation, number in now.kernel_fallbacks.items():
            known = last.kernel_fallbacks.get(operation, 0)
            self.kernel_fallbacks.labels(*labels, operation).inc(max(0, number - known))
        for wait_s in _waits(now, last):
            self.queue.labels(*labels).observe(wait_s)
        if now.peak_operations_per_s:
            self.peak_operations.labels(*labels).set(now.peak_operations_per_s)
            self.peak_bytes.labels(*labels).set(now.peak_bytes_per_s)
        for times in server.take_answer_times():
            self._observe(labels, times)
        self._last[name] = now

    def retire_server(self, name: str) -> None:
        """Take away the gauges that a backend leaves behind, if it had some."""
        last = self._last.pop(name, None)
        if last is None:
            return
        gauges = [self.running, self.waiting, self.kv_usage, self.places]
        if last.peak_operations_per_s:
            gauges += [self.peak_operations, self.peak_bytes]
        for gauge in gauges:
            drop_series(gauge, last.model, name)

    def _observe(self, labels: tuple[str, str], times: AnswerTimes) -> None:
        self.first_token.labels(*labels).observe(times.first_token_s)
        self.total.labels(*labels).observe(times.total_s)
        if times.num_tokens > 1:
            decode_s = times.total_s - times.first_token_s
            self.decode.labels(*labels).observe(decode_s)
            self.per_token.labels(*labels).observe(decode_s / (times.num_tokens - 1))


def _waits(now: ModelStatistics, last: ModelStatistics) -> list[float]:
    """Those of the requests that started since `last`; what is no longer known one by one counts with its mean."""
    num_started = now.started - last.started
    known = list(now.queue_times)[-num_started:] if num_started > 0 else []
    num_others = num_started - len(known)
    if num_others > 0:
        known += [max(0.0, now.queue_s - last.queue_s - sum(known)) / num_others] * num_others
    return known


_TOTALS = (
    ("prompt", "vllm:prompt_tokens", "Tokens of prompts."),
    ("generated", "vllm:generation_tokens", "Tokens of answers."),
    ("prefix_queried", "vllm:prefix_cache_queries", "Prompt tokens that were looked for in the prefix cache."),
    ("prefix_hits", "vllm:prefix_cache_hits", "Prompt tokens that were found there."),
    ("preemptions", "vllm:num_preemptions", "Answers that had to give their room up and wait again."),
    ("drafted", "vllm:spec_decode_num_draft_tokens", "Tokens that were proposed."),
    ("accepted", "vllm:spec_decode_num_accepted_tokens", "Proposed tokens that the model would have said too."),
    ("accepted_predicted", "slipstream_engine_accepted_predicted_tokens", "Those of them that a prediction proposed."),
    ("evicted_pages", "slipstream_engine_evicted_pages", "Cached pages given up for others."),
    ("steps", "slipstream_engine_steps", "Steps of the model."),
    ("step_answers", "slipstream_engine_step_answers", "Answers in those steps, summed: the batch fill."),
    ("step_tokens", "slipstream_engine_step_tokens", "Tokens in those steps, drafts included."),
    ("busy_s", "slipstream_engine_busy_seconds", "Time spent in steps."),
    ("operations", "vllm:estimated_flops_per_gpu", "Operations of the models' steps, counted from their shapes."),
    ("read_bytes", "vllm:estimated_read_bytes_per_gpu", "Weights, keys and values read in those steps."),
    ("written_bytes", "vllm:estimated_write_bytes_per_gpu", "Keys and values written in those steps."),
)
"""Fields of `ModelStatistics` that only grow, the name of each metric without `_total`, and its meaning."""
