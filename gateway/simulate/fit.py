"""What an access log shows of the backends that it names: for each the settings of a simulated replica as fast as it.

The log says what a backend had in hand at any moment, so a replica can be given the same work at the same times. Its
settings are moved, one after the other in ever smaller steps, while that brings first tokens and the distances of the
others closer to the log's (coordinate search). How its steps are made up, and its limits, are the profile's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from statistics import fmean

from backends.simulation.simulated import SimulatedConfig
from backends.simulation.simulated_replica import ReplicaRequest, SimulatedReplica
from gateway.simulate.traces import Logged, TraceRequest

MIN_REQUESTS = 20
"""Fewer streams than these say too little of a backend."""
_MAX_REQUESTS = 1000
"""The newest of a backend are enough; each is simulated about a hundred times."""
_START = SimulatedConfig(tokens_per_event=0, overhead_us=1000.0)
_STEP = ("base_us", "weights_us", "linear_us", "sequence_us")
_SINGLE = ("token_us", "prefill_attention_ns", "decode_context_ns")
_KNOBS = ((*_STEP, *_SINGLE), _STEP, *((name,) for name in _SINGLE), ("overhead_us",))
"""Settings that are moved together: all times of steps, what every step takes, and each other one."""
_FACTORS = (4.0, 2.0, 1.4, 1.2, 1.1, 1.05, 1.02)
_MOST = 1024.0
"""How far a setting may be moved in all."""
_LEAST_S = 1e-4
"""Shorter times are not told apart."""


def fit_backends(requests: Sequence[TraceRequest]) -> dict[str, SimulatedConfig]:
    """By name the backends of which the log shows enough."""
    by_backend: dict[str, list[TraceRequest]] = {}
    for request in requests:
        if request.logged is not None:
            by_backend.setdefault(request.logged.backend, []).append(request)
    return {
        name: _fit(theirs)
        for name, theirs in by_backend.items()
        if sum(_first_s(request) is not None for request in theirs) >= MIN_REQUESTS
    }


def _fit(requests: list[TraceRequest]) -> SimulatedConfig:
    requests = sorted(requests, key=_sent_at)[-_MAX_REQUESTS:]
    # All times together first: what steps are made up of is alike where machines differ in speed.
    best, least = _START, _distance(_START, requests)
    for knobs, factors in ((_KNOBS[:1], _FACTORS), (_KNOBS, _FACTORS[1:])):
        for factor, knob in product(factors, knobs):
            for each in (factor, 1 / factor):
                while (moved := _moved(best, knob, each)) is not None:
                    distance = _distance(moved, requests)
                    if distance >= least:
                        break
                    best, least = moved, distance
    return best


def _moved(settings: SimulatedConfig, knob: Sequence[str], factor: float) -> SimulatedConfig | None:
    """None where that is too far."""
    moved = {name: getattr(settings, name) * factor for name in knob}
    is_near = all(1 / _MOST <= value / getattr(_START, name) <= _MOST for name, value in moved.items())
    return settings.model_copy(update=moved) if is_near else None


def _distance(settings: SimulatedConfig, requests: Sequence[TraceRequest]) -> float:
    """How far a replica with these settings is from the log: the mean factor, as a logarithm, by which it is off."""
    replica = SimulatedReplica(settings.model())
    works = []
    for request in requests:
        logged = _logged(request)
        at = _sent_at(request) + settings.overhead_us * 1e-6
        replica.advance(at)
        work = ReplicaRequest(request.prompt_tokens, request.output_tokens, cached_tokens=logged.cached_tokens)
        if replica.fits(work):
            replica.submit(work, at)
            works.append((request, work))
    replica.advance(math.inf)
    firsts, gaps = [], []
    for request, work in works:
        logged_s = _first_s(request)
        assert work.first_token_at is not None
        assert work.finished_at is not None
        if logged_s is None:
            continue
        firsts.append(_factor(work.first_token_at - _sent_at(request), logged_s))
        if request.output_tokens > 1:
            logged = _logged(request)
            rest_s = logged.total_s - logged.waited_s - logged_s
            gaps.append(_factor(work.finished_at - work.first_token_at, rest_s))
    return (fmean(firsts) if firsts else 0.0) + (fmean(gaps) if gaps else 0.0)


def _factor(simulated_s: float, logged_s: float) -> float:
    return abs(math.log(max(simulated_s, _LEAST_S) / max(logged_s, _LEAST_S)))


def _sent_at(request: TraceRequest) -> float:
    return request.at_s + _logged(request).waited_s


def _first_s(request: TraceRequest) -> float | None:
    """From its sending to its first token; None where it was not streamed, or sent more than once."""
    logged = _logged(request)
    return logged.first_token_s - logged.waited_s if logged.first_token_s is not None and logged.attempts == 1 else None


def _logged(request: TraceRequest) -> Logged:
    assert request.logged is not None, "others are left out"
    return request.logged
