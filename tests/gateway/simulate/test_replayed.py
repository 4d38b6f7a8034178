"""An access log replayed: backends as fast as it shows them, and first tokens as they were."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from backends.errors import ConfigurationError
from backends.simulation.simulated import SimulatedConfig
from gateway.simulate.fit import fit_backends
from gateway.simulate.replayed import compare
from gateway.simulate.run import RequestFate
from gateway.simulate.study import StudyOptions, compare_with_log, log_of, simulate
from gateway.simulate.traces import Logged, Trace, TraceRequest, read_trace
from tests.support.policy.replay_log import policy, traffic, write_log


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An access log of two backends, one of them slower."""
    return write_log(tmp_path_factory.mktemp("log"))


def test_replay_predicts_first_tokens_of_the_second_half(log: Path, tmp_path: Path) -> None:
    """Fitted to the first half, without being told anything of the backends: medians within 10 %, p99 within 20 %."""
    result = compare_with_log(policy(tmp_path), read_trace(log), StudyOptions(seed=1), lambda *_: None)

    everything, fast, slow = result.compared
    assert [each.backend for each in result.compared] == ["all", "fast", "slow"]
    assert everything.logged_requests == everything.simulated_requests == 300
    assert fast.logged_requests + slow.logged_requests == 300
    assert everything.ttft_p50_ratio == pytest.approx(1, abs=0.1)
    assert everything.ttft_p99_ratio == pytest.approx(1, abs=0.2)
    assert result.report.prefix_hit == pytest.approx(
        sum(request.cached_tokens for request in read_trace(log).requests)
        / sum(request.prompt_tokens for request in read_trace(log).requests)
    )


def test_fit_finds_how_fast_each_backend_is(log: Path) -> None:
    """The time of a step, of a token and of the way there, to some per cent where they show."""
    fitted = fit_backends(read_trace(log).requests)

    fast, slow = SimulatedConfig().model().step, SimulatedConfig(speed=0.5, token_us=35).model().step
    for name, step in (("fast", fast), ("slow", slow)):
        found = fitted[name].model().step
        assert found.flat_s(1, 1) == pytest.approx(step.flat_s(1, 1), rel=0.1), name
        assert found.flat_s(2048, 8) == pytest.approx(step.flat_s(2048, 8), rel=0.2), name
    assert fitted["slow"].overhead_us == pytest.approx(20_000, rel=0.3)
    assert fitted["fast"].overhead_us < 3000


def test_fit_leaves_out_backends_of_which_the_log_shows_too_little(log: Path, tmp_path: Path) -> None:
    """Where a route that is used has one, that is an error; one of another route does no harm."""
    requests = [request for request in read_trace(log).requests if request.logged]
    few = [request for request in requests if request.logged and request.logged.backend == "slow"][:19]
    most = [request for request in requests if request.logged and request.logged.backend == "fast"]
    fitted = fit_backends([*few, *most])

    assert list(fitted) == ["fast"]
    asked = StudyOptions(fitted=fitted)
    with pytest.raises(ConfigurationError, match=r"backends.slow: the log shows too little of it; 20 streams"):
        simulate(policy(tmp_path), None, traffic(5), asked, lambda *_: None)
    alone = simulate(policy(tmp_path, used="{ref: fast}"), None, traffic(5), asked, lambda *_: None)
    assert {outcome.backend for outcome in alone.outcomes} == {"fast"}


def test_log_leaves_out_what_no_backend_answered() -> None:
    """Requests that the gateway's cache answered are no work for a backend; other traces are no logs."""
    logged = Logged(backend="a", attempts=1, cached_tokens=0, waited_s=0, first_token_s=0.1, total_s=1)
    hit, sent = TraceRequest(0, 5, 5, 1), TraceRequest(1, 5, 5, 2, logged=logged)

    assert log_of(Trace("l", "access log", (hit, sent), 0)).requests == (sent,)
    with pytest.raises(ConfigurationError, match=r"t\.jsonl: only an access log"):
        log_of(traffic(3))


def test_compare_counts_streams_of_the_second_half_by_where_each_was(log: Path, tmp_path: Path) -> None:
    """By the backend of the log, and by that of the replay; what was not answered again is in the log's part only."""
    result = compare_with_log(policy(tmp_path), read_trace(log), StudyOptions(seed=1), lambda *_: None)
    one, other, *_ = result.outcomes
    assert one.request.logged is not None
    moved = msgspec.structs.replace(one.request.logged, backend="gone", first_token_s=2.0)
    request = msgspec.structs.replace(one.request, logged=moved, at_s=5.0)
    outcome = msgspec.structs.replace(one, request=request, fate=RequestFate.SHED)

    compared = compare([outcome, other], since_s=4.0)

    assert [(each.backend, each.logged_requests, each.simulated_requests) for each in compared] == [
        ("all", 1, 0),
        ("gone", 1, 0),
    ]
    assert (compared[0].logged_ttft_p99_s, compared[0].ttft_p99_ratio) == (2.0, None)
