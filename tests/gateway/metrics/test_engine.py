"""Metrics of models in this process: copied from snapshots, right across reloads."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from backends.model_server import AnswerTimes, ModelStatistics
from gateway.metrics.engine import EngineMetrics

LABELS = {"model_name": "m", "engine": "local"}


class Server:
    """A backend that says what it is told to."""

    def __init__(self, statistics: ModelStatistics | None, times: list[AnswerTimes] | None = None) -> None:
        self.statistics = statistics
        self.times = times or []

    def model_statistics(self) -> ModelStatistics | None:
        return self.statistics

    def take_answer_times(self) -> list[AnswerTimes]:
        times, self.times = self.times, []
        return times


@pytest.fixture
def registry() -> CollectorRegistry:
    """A registry of this test's own."""
    return CollectorRegistry()


def test_totals_are_added_once(registry: CollectorRegistry) -> None:
    """Two looks at the same numbers count them once, and a third what was added."""
    metrics = EngineMetrics(registry)
    server = Server(ModelStatistics(model="m", prompt=5, running=2, kv_usage=0.5, finished={"stop": 1}))

    metrics.refresh_server("local", server)
    metrics.refresh_server("local", server)
    server.statistics = ModelStatistics(model="m", prompt=7, running=1, finished={"stop": 1, "length": 2})
    metrics.refresh_server("local", server)

    assert registry.get_sample_value("vllm:prompt_tokens_total", LABELS) == 7
    assert registry.get_sample_value("vllm:num_requests_running", LABELS) == 1
    assert registry.get_sample_value("vllm:request_success_total", {**LABELS, "finished_reason": "length"}) == 2


def test_times_become_histograms(registry: CollectorRegistry) -> None:
    """First token, whole call, and the time per token behind the first."""
    metrics = EngineMetrics(registry)
    statistics = ModelStatistics(model="m", started=2, queue_s=0.5, queue_times=(0.1, 0.4))
    server = Server(statistics, [AnswerTimes(0.25, 1.25, 11), AnswerTimes(0.25, 0.25, 1)])

    metrics.refresh_server("local", server)

    def value(name: str) -> float | None:
        return registry.get_sample_value(name, LABELS)

    assert value("vllm:time_to_first_token_seconds_count") == 2
    assert value("vllm:e2e_request_latency_seconds_sum") == 1.5
    assert value("vllm:request_time_per_output_token_seconds_sum") == pytest.approx(0.1)
    assert value("vllm:request_decode_time_seconds_count") == 1
    assert (value("vllm:request_queue_time_seconds_count"), value("vllm:request_queue_time_seconds_sum")) == (2, 0.5)
    assert registry.get_sample_value("vllm:request_queue_time_seconds_bucket", {**LABELS, "le": "0.3"}) == 1


def test_kernels_that_cannot_run_are_counted_by_operation(registry: CollectorRegistry) -> None:
    """Each once, also those that are found while the engine works."""
    metrics = EngineMetrics(registry)
    for fallbacks in ({"rope_store": 1}, {"rope_store": 1}, {"rope_store": 2, "w8": 1}):
        metrics.refresh_server("local", Server(ModelStatistics(model="m", kernel_fallbacks=fallbacks)))

    def value(operation: str) -> float | None:
        return registry.get_sample_value("slipstream_engine_kernel_fallbacks_total", {**LABELS, "operation": operation})

    assert (value("rope_store"), value("w8"), value("sample")) == (2, 1, None)


def test_waits_that_are_no_longer_known_one_by_one_count_with_their_mean(registry: CollectorRegistry) -> None:
    """Number and sum stay right however rarely somebody looks; what was counted is not counted again."""
    metrics = EngineMetrics(registry)
    metrics.refresh_server("local", Server(ModelStatistics(model="m", started=1, queue_s=9.0, queue_times=(9.0,))))
    later = ModelStatistics(model="m", started=6, queue_s=19.0, queue_times=(1.0, 5.0))
    for _ in range(2):
        metrics.refresh_server("local", Server(later))

    assert registry.get_sample_value("vllm:request_queue_time_seconds_count", LABELS) == 6
    assert registry.get_sample_value("vllm:request_queue_time_seconds_sum", LABELS) == pytest.approx(19.0)


def test_work_and_peaks_are_shown_where_peaks_were_measured(registry: CollectorRegistry) -> None:
    """Without them there is no series to divide by; both leave with their backend."""
    metrics = EngineMetrics(registry)
    metrics.refresh_server("other", Server(ModelStatistics(model="m", operations=5)))
    metrics.refresh_server(
        "local",
        Server(ModelStatistics(model="m", operations=7, peak_operations_per_s=2.0, peak_bytes_per_s=3.0)),
    )

    def value(name: str, engine: str) -> float | None:
        return registry.get_sample_value(name, {**LABELS, "engine": engine})

    assert value("vllm:estimated_flops_per_gpu_total", "local") == 7
    assert value("slipstream_engine_peak_operations_per_second", "local") == 2
    assert value("slipstream_engine_peak_operations_per_second", "other") is None
    for engine in ("local", "other"):
        metrics.retire_server(engine)
    assert b"slipstream_engine_peak_bytes_per_second{" not in generate_latest(registry)


def test_totals_of_another_engine_begin_anew(registry: CollectorRegistry) -> None:
    """After a reload the backend's name has an engine that counts from nothing; what was counted stays."""
    metrics = EngineMetrics(registry)
    metrics.refresh_server("local", Server(ModelStatistics(model="m", prompt=5, steps=9)))

    metrics.refresh_server("local", Server(ModelStatistics(model="m", prompt=2, steps=1)))

    assert registry.get_sample_value("vllm:prompt_tokens_total", LABELS) == 7


def test_gauges_of_a_backend_that_is_gone_go_with_it(registry: CollectorRegistry) -> None:
    """What it has counted stays; one that never was leaves none."""
    metrics = EngineMetrics(registry)
    metrics.refresh_server("local", Server(ModelStatistics(model="m", running=3, prompt=5)))

    for _ in range(2):
        metrics.retire_server("local")

    assert b"vllm:num_requests_running{" not in generate_latest(registry)
    assert registry.get_sample_value("vllm:prompt_tokens_total", LABELS) == 5


def test_models_that_will_not_answer_any_more_are_named(registry: CollectorRegistry) -> None:
    """With the reason; one that is retired is nobody's any more."""
    metrics = EngineMetrics(registry)
    metrics.refresh_server("local", Server(ModelStatistics(model="m", failure="no memory")))
    metrics.refresh_server("other", Server(ModelStatistics(model="m")))
    failures = metrics.failures()
    metrics.retire_server("local")

    assert failures == ["backend local: no memory"]
    assert metrics.failures() == []


def test_backend_without_a_model_has_no_series(registry: CollectorRegistry) -> None:
    """Before a model is loaded there is nothing to show."""
    EngineMetrics(registry).refresh_server("local", Server(None))

    assert b"{" not in generate_latest(registry)
