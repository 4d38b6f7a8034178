"""The scripted backend plays its script on time, and counts what it plays."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pydantic
import pytest
import yaml

from backends.errors import (
    ConnectFailed,
    ConnectTimeout,
    FirstTokenTimeout,
    StreamStalled,
    TotalTimeout,
    UpstreamCut,
)
from backends.protocol import Reply, Timeouts
from backends.registry import Registry
from backends.scripted.script import KIND, Scripted, ScriptedConfig, ScriptStep
from tests.support.calls import make_call, read_all
from tests.support.clock import FakeClock, settle

LATER = 1_000_000.0
DOCS = (Path(__file__).parents[2] / "docs" / "backends.md").read_text(encoding="utf-8")


def scripted(*steps: dict[str, Any], clock: FakeClock | None = None, repeat: str = "cycle") -> Scripted:
    """A scripted backend with these steps, as a policy file would give them."""
    settings: dict[str, Any] = {"script": steps, "repeat": repeat}
    return Scripted("fake", ScriptedConfig.model_validate(settings), clock or FakeClock())


async def said_by(backend: Scripted) -> str:
    """The text of the answer to one call."""
    reply = await backend.send(make_call(deadline=LATER))
    text: str = json.loads(await read_all(reply))["choices"][0]["message"]["content"]
    return text


async def test_script_cycles_or_stays_with_its_last_step() -> None:
    """When the steps are used up, `cycle` starts again and `last` repeats the last one."""
    steps = [{"reply": "one"}, {"reply": "two"}]
    cycle, last = scripted(*steps), scripted(*steps, repeat="last")

    said = [[await said_by(backend) for _ in range(4)] for backend in (cycle, last)]

    assert said == [["one", "two", "one", "two"], ["one", "two", "two", "two"]]


async def test_play_without_steps_answers_plainly_again() -> None:
    """A test can take its script back."""
    backend = scripted({"unreachable": True})

    backend.play()

    assert "You said: hello" in await said_by(backend)


async def test_error_step_is_an_openai_error_with_retry_after() -> None:
    """Status, code, message and a Retry-After in whole seconds, rounded up."""
    backend = scripted({"status": 429, "code": "rate_limit_exceeded", "message": "slow down", "retry_after": "1500ms"})

    reply = await backend.send(make_call(deadline=LATER))

    assert (reply.status, reply.header(b"retry-after")) == (429, b"2")
    assert json.loads(await read_all(reply)) == {
        "error": {"message": "slow down", "type": "rate_limit_error", "param": None, "code": "rate_limit_exceeded"}
    }
    assert backend.statistics().failed == 0


async def _outcome(backend: Scripted, clock: FakeClock, *, advance_s: float, **fields: Any) -> Reply:
    """The reply (or the error) to a call, with time advanced that far."""
    sending = asyncio.create_task(backend.send(make_call(**{"deadline": clock.now() + 60.0, **fields})))
    await clock.advance(advance_s)
    assert sending.done(), "it should have ended by now"
    return sending.result()


async def test_delay_comes_before_each_event() -> None:
    """A stream's events are as far apart as the script says; the first one counts as the first token."""
    clock = FakeClock()
    backend = scripted({"reply": "one two", "delay": "2s"}, clock=clock)
    call = make_call(deadline=clock.now() + 60.0, stream=True)

    sending = asyncio.create_task(backend.send(call))
    await clock.advance(1.9)
    assert not sending.done()
    await clock.advance(0.1)
    reading = asyncio.create_task(read_all(sending.result()))
    await clock.advance(9.9)
    assert not reading.done()
    await clock.advance(0.1)

    assert reading.result().endswith(b"[DONE]\n\n")
    assert (call.facts.sent_at, call.facts.first_token_at) == (1000.0, 1002.0)
    assert clock.now() == 1012.0


async def test_unreachable_after_a_delay_is_bounded_by_connect() -> None:
    """A connection that takes longer than `connect` is a timeout, else it fails; nothing is sent either way."""
    clock = FakeClock()
    backend = scripted({"unreachable": True, "delay": "3s"}, clock=clock)

    with pytest.raises(ConnectFailed):
        await _outcome(backend, clock, advance_s=3.0)
    with pytest.raises(ConnectTimeout):
        await _outcome(backend, clock, advance_s=1.0, timeouts=Timeouts(connect_s=1.0))

    assert backend.statistics().failed == 2


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
async def test_call_past_its_deadline_is_not_answered(stream: bool) -> None:
    """Even an answer that takes no time comes too late."""
    clock = FakeClock()

    with pytest.raises(TotalTimeout):
        await scripted({}, clock=clock).send(make_call(deadline=clock.now(), stream=stream))


@pytest.mark.parametrize(
    ("step", "timeouts", "expected"),
    [
        ({"stall_after": 0}, Timeouts(first_token_s=4.0, stream_idle_s=1.0), FirstTokenTimeout),
        ({"delay": "5s"}, Timeouts(first_token_s=4.0), FirstTokenTimeout),
        ({"stall_after": 0}, Timeouts(first_token_s=400.0), TotalTimeout),
        ({"cut_after": 0}, Timeouts(), UpstreamCut),
    ],
)
async def test_stream_that_never_begins_fails_before_the_reply(
    step: dict[str, Any], timeouts: Timeouts, expected: type[Exception]
) -> None:
    """Before the first event every limit is an error of `send`."""
    clock = FakeClock()
    backend = scripted(step, clock=clock)

    with pytest.raises(expected):
        await _outcome(backend, clock, advance_s=60.0, stream=True, timeouts=timeouts)

    assert (backend.statistics().in_flight, backend.statistics().failed) == (0, 1)


async def test_stream_silent_for_stream_idle_stalls_exactly_then() -> None:
    """The limit of silence starts anew with each event."""
    clock = FakeClock()
    backend = scripted({"stall_after": 3, "delay": "1s"}, clock=clock)
    reply = await _outcome(backend, clock, advance_s=1.0, stream=True, timeouts=Timeouts(stream_idle_s=5.0))

    reading = asyncio.create_task(read_all(reply))
    await clock.advance(2.0 + 4.9)
    assert not reading.done()
    await clock.advance(0.1)

    with pytest.raises(StreamStalled):
        reading.result()
    assert (backend.statistics().in_flight, backend.statistics().failed) == (0, 1)


async def test_cut_after_the_last_event_never_happens() -> None:
    """A stream shorter than the cut is whole."""
    backend = scripted({"reply": "one", "cut_after": 5})

    stream = await read_all(await backend.send(make_call(deadline=LATER, stream=True)))

    assert stream.endswith(b"[DONE]\n\n")


async def test_cut_stream_has_no_usage() -> None:
    """What did not come whole is not counted as such."""
    call = make_call(deadline=LATER, stream=True)
    reply = await scripted({"cut_after": 4, "reply": "one"}).send(call)

    with pytest.raises(UpstreamCut):
        await read_all(reply)

    assert call.facts.usage is None


async def test_closed_stream_cannot_be_mistaken_for_a_whole_one() -> None:
    """Reading on after closing is an error, not an end."""
    reply = await scripted({}).send(make_call(deadline=LATER, stream=True))
    assert reply.stream is not None
    await reply.stream.read()
    await reply.aclose()

    with pytest.raises(UpstreamCut):
        await reply.stream.read()


async def test_cancelled_send_is_counted_as_neither_failed_nor_in_flight() -> None:
    """Who is cancelled leaves nothing behind."""
    clock = FakeClock()
    backend = scripted({"stall_after": 0}, clock=clock)
    sending = asyncio.create_task(backend.send(make_call(deadline=clock.now() + 60.0)))
    await settle()

    sending.cancel()
    await settle()

    assert sending.cancelled()
    assert (backend.statistics().in_flight, backend.statistics().failed, backend.statistics().sent) == (0, 0, 1)


async def test_closed_backend_fails_calls_in_flight_and_new_ones() -> None:
    """A wait that closing ends is an error for its caller, whose own task is not cancelled."""
    clock = FakeClock()
    backend = scripted({"stall_after": 0}, clock=clock)
    sending = asyncio.create_task(backend.send(make_call(deadline=clock.now() + 60.0)))
    await settle()

    await backend.aclose()

    with pytest.raises(UpstreamCut):
        await sending
    with pytest.raises(ConnectFailed):
        await backend.send(make_call(deadline=LATER))
    assert sending.cancelling() == 0


async def test_closed_backend_does_not_swallow_a_cancellation() -> None:
    """Where closing and the caller's own cancellation meet, the cancellation wins."""
    clock = FakeClock()
    backend = scripted({"stall_after": 0}, clock=clock)
    sending = asyncio.create_task(backend.send(make_call(deadline=clock.now() + 60.0)))
    await settle()

    sending.cancel()
    await backend.aclose()
    await settle()

    assert sending.cancelled()


@pytest.mark.parametrize(
    "step",
    [
        {"cut_after": 1, "stall_after": 1},
        {"reply": "hello", "status": 500},
        {"status": 200},
        {"message": "no status"},
        {"unreachable": True, "reply": "hello"},
        {"cut_after": -1},
        {"delay": 5},
        {"repyl": "hello"},
    ],
)
def test_step_that_contradicts_itself_is_refused(step: dict[str, Any]) -> None:
    """Each step has one outcome, and a typing error is not ignored."""
    with pytest.raises(pydantic.ValidationError):
        ScriptedConfig.model_validate({"script": [step]})


def test_script_without_steps_is_refused() -> None:
    """An empty list says nothing about any call."""
    with pytest.raises(pydantic.ValidationError):
        ScriptedConfig.model_validate({"script": []})


def test_registry_knows_scripted() -> None:
    """The built-in takes the same road as any third party's."""
    assert Registry().kind("scripted") is KIND


@pytest.mark.parametrize("field", [*ScriptStep.model_fields, *ScriptedConfig.model_fields])
def test_config_field_is_documented(field: str) -> None:
    """Each key stands in the reference and describes itself."""
    assert f"`{field}`" in DOCS
    assert {**ScriptStep.model_fields, **ScriptedConfig.model_fields}[field].description


def test_config_example_of_the_docs_is_valid() -> None:
    """The script in the reference can be used as it stands."""
    example = re.search(r"```yaml\n(backends:\n  bad-day:.*?)```", DOCS, re.S)

    assert example is not None
    settings = yaml.safe_load(example[1])["backends"]["bad-day"]
    assert settings.pop("type") == "scripted"
    assert ScriptedConfig.model_validate(settings).repeat == "last"
