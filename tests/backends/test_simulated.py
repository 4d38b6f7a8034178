"""The simulated backend: what it says, when, and how it ends, on a virtual clock."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Any

import pytest

from backends.charges.usage import Usage
from backends.clock import SystemClock
from backends.errors import (
    ConnectFailed,
    ContextLengthExceeded,
    FirstTokenTimeout,
    InvalidRequest,
    TotalTimeout,
    UnknownPath,
    UpstreamCut,
)
from backends.operations import Operation
from backends.protocol import Timeouts
from backends.registry import Registry
from backends.simulation.simulated import Simulated, SimulatedConfig
from backends.stream import StreamEnd
from gateway.simulate.virtual_loop import VirtualClock, VirtualLoop
from tests.support.calls import event_values, make_call, read_all, streamed_text

Test = Callable[[Simulated, VirtualClock], Awaitable[None]]
STEP = SimulatedConfig().model().step


def simulate(test: Test, **settings: Any) -> None:
    """Run it with a backend of these settings in virtual time."""
    loop = VirtualLoop()
    clock = VirtualClock(loop)

    async def main() -> None:
        backend = Simulated("gpu", SimulatedConfig(**settings), clock)
        await backend.open()
        try:
            await test(backend, clock)
        finally:
            await backend.aclose()
        assert backend.statistics().in_flight == 0

    loop.run_until_complete(main())
    loop.close()


def ask(text: str = "x" * 4000, *, output: int = 10, stream: bool = True, **fields: Any) -> Any:
    """A call whose answer has so many tokens."""
    return make_call(text, stream=stream, extra={"output_tokens": output}, **{"deadline": 600.0, **fields})


@pytest.mark.parametrize("tokens_per_event", [0, 1, 4])
def test_simulated_stream_takes_the_time_of_its_steps(tokens_per_event: int) -> None:
    """The first event comes with the first token, the last with the last, whatever lies between."""

    async def test(backend: Simulated, clock: VirtualClock) -> None:
        call = ask()
        reply = await backend.send(call)
        first_s = clock.now()
        stream = await read_all(reply)

        assert first_s == pytest.approx(STEP.first_token_s(1000, 2048))
        decode_s = sum(STEP.flat_s(1, 1) + STEP.decode_s(1001 + step) for step in range(9))
        assert clock.now() == pytest.approx(first_s + decode_s)
        assert stream.endswith(b"data: [DONE]\n\n")
        assert streamed_text(stream) == " tok" * 10
        values = event_values(stream)
        assert [choice["finish_reason"] for value in values for choice in value["choices"]][-1] == "stop"
        assert values[-1]["usage"]["total_tokens"] == 1010
        assert call.facts.usage == Usage(1000, 10, 0)
        assert call.facts.first_token_at == pytest.approx(first_s)
        assert call.facts.stream_end is StreamEnd.CLEAN

    simulate(test, tokens_per_event=tokens_per_event)


def test_simulated_stream_has_an_event_for_each_token() -> None:
    """Tokens come one by one at their own times, as from a server."""

    async def test(backend: Simulated, clock: VirtualClock) -> None:
        reply = await backend.send(ask(output=5))
        assert reply.stream is not None
        times = []
        while await reply.stream.read():
            times.append(clock.now())

        gaps_s = [after - before for before, after in pairwise(times)]
        assert gaps_s == [pytest.approx(STEP.flat_s(1, 1) + STEP.decode_s(1001 + step)) for step in range(4)]

    simulate(test)


def test_simulated_whole_answer_comes_with_its_last_token() -> None:
    """Without a stream the answer is one body, in the shape of its operation."""

    async def test(backend: Simulated, clock: VirtualClock) -> None:
        chat = await backend.send(ask(stream=False, output=3))
        completion = await backend.send(
            make_call("y" * 40, operation=Operation.COMPLETION, extra={"max_tokens": 2}, deadline=600.0)
        )

        said = json.loads(await read_all(chat))
        assert said["choices"][0]["message"]["content"] == " tok" * 3
        said = json.loads(await read_all(completion))
        assert (said["object"], said["choices"][0]["text"]) == ("text_completion", " tok" * 2)
        assert said["choices"][0]["finish_reason"] == "length"
        assert said["usage"]["prompt_tokens"] == 10

    simulate(test)


def test_simulated_shared_beginning_is_cached() -> None:
    """Prompts that begin alike share whole blocks, and say so in their usage."""

    async def test(backend: Simulated, clock: VirtualClock) -> None:
        for ending, expected in (("a" * 100, 0), ("b" * 100, 1024)):
            call = ask("s" * 4096 + ending)
            await read_all(await backend.send(call))
            assert call.facts.usage is not None
            assert call.facts.usage.cached_tokens == expected

    simulate(test)


def test_simulated_calls_at_once_share_steps() -> None:
    """Fifty answers at once take little longer than one, and all end."""

    async def test(backend: Simulated, clock: VirtualClock) -> None:
        calls = [ask("x" * 40, output=100) for _ in range(50)]

        async def one(call: Any) -> None:
            await read_all(await backend.send(call))

        await asyncio.gather(*(one(call) for call in calls))

        assert all(call.facts.usage.completion_tokens == 100 for call in calls)
        assert 100 * STEP.flat_s(50, 50) < clock.now() < 1.2 * 101 * STEP.flat_s(50, 50)
        assert (backend.statistics().sent, backend.statistics().failed) == (50, 0)

    simulate(test)


@pytest.mark.parametrize(
    ("timeouts", "deadline", "stream", "error", "at"),
    [
        (Timeouts(first_token_s=0.01), 600.0, True, FirstTokenTimeout, 0.01),
        (Timeouts(first_token_s=0.5), 0.02, True, TotalTimeout, 0.02),
        (Timeouts(first_token_s=0.01), 0.05, False, TotalTimeout, 0.05),
        (Timeouts(), -1.0, True, TotalTimeout, 0.0),
    ],
)
def test_simulated_limits_end_a_call_on_time(
    timeouts: Timeouts, deadline: float, stream: bool, error: type[Exception], at: float
) -> None:
    """What comes too late is a timeout at its moment, and the replica stops working on it."""

    async def test(backend: Simulated, clock: VirtualClock) -> None:
        with pytest.raises(error):
            await backend.send(ask("x" * 400_000, timeouts=timeouts, deadline=deadline, stream=stream))

        assert clock.now() == pytest.approx(at, abs=1e-6)
        assert backend.statistics().failed == 1
        await read_all(await backend.send(ask("x" * 40)))
        assert clock.now() < at + 0.3

    simulate(test)


def test_simulated_deadline_cuts_a_stream_in_its_middle() -> None:
    """A deadline after the first token ends the stream, and the facts say how."""

    async def test(backend: Simulated, clock: VirtualClock) -> None:
        call = ask(output=1000, deadline=1.0)
        reply = await backend.send(call)

        with pytest.raises(TotalTimeout):
            await read_all(reply)
        assert clock.now() == pytest.approx(1.0, abs=1e-6)
        assert call.facts.stream_end is StreamEnd.ERROR
        assert call.facts.usage is None

    simulate(test)


def test_simulated_client_that_leaves_frees_the_replica() -> None:
    """Closing a stream, or cancelling a call, stops the work on it."""

    async def test(backend: Simulated, clock: VirtualClock) -> None:
        reply = await backend.send(ask(output=10_000))
        await reply.aclose()
        task = asyncio.create_task(backend.send(ask("x" * 400_000)))
        await clock.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert backend.statistics().in_flight == 0
        await read_all(await backend.send(ask("x" * 40)))

        assert clock.now() < 1.0

    simulate(test)


def test_simulated_closed_backend_ends_calls_and_refuses_new_ones() -> None:
    """Closing cuts what is in flight."""

    async def test(backend: Simulated, clock: VirtualClock) -> None:
        reply = await backend.send(ask(output=10_000))
        waiting = asyncio.create_task(backend.send(ask("x" * 400_000)))
        await clock.sleep(0.01)
        await backend.aclose()

        with pytest.raises(UpstreamCut):
            await waiting
        with pytest.raises(UpstreamCut):
            await read_all(reply)
        with pytest.raises(ConnectFailed):
            await backend.send(ask())

    simulate(test)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: make_call(operation=Operation.EMBEDDING, deadline=600.0), UnknownPath),
        (lambda: make_call(extra={"messages": []}, deadline=600.0), InvalidRequest),
        (lambda: make_call(extra={"n": 2}, deadline=600.0), InvalidRequest),
        (lambda: make_call(extra={"max_tokens": 0}, deadline=600.0), InvalidRequest),
        (lambda: ask(output=799_001), ContextLengthExceeded),
    ],
)
def test_simulated_refuses_what_it_cannot_answer(call: Callable[[], Any], error: type[Exception]) -> None:
    """Bodies and sizes that no such server takes are the client's error."""

    async def test(backend: Simulated, clock: VirtualClock) -> None:
        with pytest.raises(error):
            await backend.send(call())

    simulate(test)


async def test_simulated_under_a_real_clock_takes_real_time() -> None:
    """The same backend, found by its type, answers under the ordinary loop."""
    config = SimulatedConfig(speed=20)
    clock = SystemClock()
    backend = Registry().kind("simulated").build("gpu", config, clock)
    began = clock.now()

    stream = await read_all(await backend.send(ask("x" * 400, output=30, deadline=began + 10)))
    await backend.aclose()

    assert streamed_text(stream) == " tok" * 30
    assert clock.now() - began >= (STEP.first_token_s(100, 2048) + 29 * STEP.flat_s(1, 1)) / 20


def test_simulated_settings_that_would_starve_prompts_are_refused() -> None:
    """A step must have room for prompts beside its sequences."""
    with pytest.raises(ValueError, match="chunk_tokens"):
        SimulatedConfig(chunk_tokens=256, max_sequences=256)


def test_simulated_call_may_say_what_is_cached_and_settings_how_far_it_is() -> None:
    """Tokens that a call says are cached are not computed; the way to the replica takes its time first."""

    async def test(backend: Simulated, clock: VirtualClock) -> None:
        call = make_call("x" * 4000, stream=True, extra={"output_tokens": 1, "cached_tokens": 600}, deadline=600.0)
        await read_all(await backend.send(call))

        computed_s = STEP.flat_s(400, 1) + STEP.prefill_s(400, 600)
        assert clock.now() == pytest.approx(0.05 + computed_s)
        assert call.facts.usage == Usage(1000, 1, 600)

    simulate(test, overhead_us=50_000)
