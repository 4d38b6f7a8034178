"""The figures of the policies: derived traces, the baseline's limit, and what a table of figures is made of."""

from __future__ import annotations

import gzip
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from backends.errors import ConfigurationError, Overloaded
from backends.protocol import Reply
from backends.registry import Registry
from backends.simulation.simulated import Simulated, SimulatedConfig
from backends.stream import StreamEnd
from gateway.simulate.baselines import Gradient2, Limited, limited_registry
from gateway.simulate.derive import HOG, repeated, with_hog
from gateway.simulate.figures import FIGURES, MOONCAKE, Runs, lighter_half
from gateway.simulate.report import ClientReport
from gateway.simulate.run import Progress
from gateway.simulate.traces import Trace, TraceRequest
from gateway.simulate.virtual_loop import VirtualClock
from tests.support.policy.admission import asking, in_virtual_time


def trace(*moments: float) -> Trace:
    """Requests of two clients at these moments."""
    requests = [TraceRequest(at, 100, 10, line, client="ab"[line % 2]) for line, at in enumerate(moments)]
    return Trace("t", "slipstream", tuple(requests), 0)


def runs(folder: Path) -> Runs:
    """Simulations that nobody watches."""

    @contextmanager
    def silent(label: str) -> Iterator[Progress]:
        yield lambda done, total: None

    return Runs(folder, silent)


def test_derive_repeated_keeps_the_rate_and_the_order() -> None:
    """The next pass begins one gap after the last arrival."""
    assert [request.at_s for request in repeated(trace(0, 1, 2), 2).requests] == [0, 1, 2, 3, 4, 5]


def test_derive_hog_sends_half_of_everything() -> None:
    """A copy of each request at its moment, under one name."""
    derived = with_hog(trace(0, 1, 2))

    assert Counter(request.client for request in derived.requests) == {"a": 2, "b": 1, HOG: 3}
    assert [request.at_s for request in derived.requests] == [0, 0, 1, 1, 2, 2]


def test_gradient2_grows_while_times_stay_and_shrinks_when_they_grow() -> None:
    """Within tolerance the limit gains its queue, smoothed; beyond, it falls, never below the least."""
    gradient = Gradient2()

    gradient.sample(1.0, 20)
    grown = gradient.limit
    for _ in range(40):
        gradient.sample(1.0, 200)
    high = gradient.limit
    for _ in range(40):
        gradient.sample(10.0, 200)

    assert grown == pytest.approx(20 + 0.2 * 4)
    assert high > 45
    assert gradient.limit == 20


def test_gradient2_unused_limit_learns_nothing() -> None:
    """Who has less than half in flight is not slowed by the limit."""
    gradient = Gradient2()

    gradient.sample(1.0, 9)

    assert gradient.limit == 20


def test_limited_backend_refuses_beyond_its_limit_and_frees_places() -> None:
    """The twenty-first call at once is refused; a stream that has ended gives its place back."""

    async def main(clock: VirtualClock) -> None:
        backend = Limited(Simulated("gpu", SimulatedConfig(), clock), clock)
        replies: list[Reply] = [await backend.send(asking(clock=clock)) for _ in range(20)]
        with pytest.raises(Overloaded):
            await backend.send(asking(clock=clock))
        stream = replies[0].stream
        assert stream is not None
        while await stream.read():
            pass
        assert stream.end is StreamEnd.CLEAN
        replies.append(await backend.send(asking(clock=clock)))
        for reply in replies:
            await reply.aclose()
        await backend.aclose()

    in_virtual_time(main)


def test_limited_registry_builds_replicas_behind_a_limit() -> None:
    """The type that policies name, and another backend behind it."""
    assert limited_registry().kind("simulated").config is Registry().kind("simulated").config
    assert limited_registry().kind("simulated").build is not Registry().kind("simulated").build


def test_figures_overload_is_shared_and_baselines_are_worse(tmp_path: Path) -> None:
    """Every figure of an overload from one replay of each way; a limit sheds, and so does the gate."""
    lines = [f'{{"t": {0.05 * n}, "i": 3000, "o": 50}}\n' for n in range(300)]
    some = runs(tmp_path)
    (tmp_path / f"{MOONCAKE}.jsonl.gz").write_bytes(gzip.compress("".join(lines).encode()))

    ours = some.report(some.trace(MOONCAKE), "1", load=2.0)
    fifo = some.report(some.trace(MOONCAKE), "1", load=2.0, baseline="p2c")
    limited = some.report(some.trace(MOONCAKE), "1", load=2.0, baseline="p2c", is_limited=True)

    assert some.report(some.trace(MOONCAKE), "1", load=2.0) is ours
    assert fifo.shed_share == 0 < limited.shed_share
    assert ours.goodput_rps > fifo.goodput_rps


def test_figures_missing_trace_is_named(tmp_path: Path) -> None:
    """The file that is not there, and the option that says where it is looked for."""
    with pytest.raises(ConfigurationError, match=rf"{MOONCAKE}\.jsonl\.gz: this trace is not there; --data"):
        list(FIGURES["in_slo"](runs(tmp_path)))


def test_figures_lighter_half_counts_requests() -> None:
    """Those behind the middle, each by how much it has sent."""
    clients = [
        ClientReport(name, number, share, 0, 1) for name, number, share in (("a", 9, 0), ("b", 3, 1), ("c", 1, 0))
    ]

    assert lighter_half(clients) == 0.75
