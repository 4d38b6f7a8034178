"""What every Backend owes its caller, whatever it is made of. See `tests/support/backend_cases.py` to add one."""

from __future__ import annotations

import asyncio
import json
import time

import pytest

from backends.charges.usage import Usage
from backends.errors import (
    ConnectFailed,
    FirstTokenTimeout,
    SlipstreamError,
    StreamStalled,
    TotalTimeout,
    UpstreamCut,
)
from backends.operations import Operation
from backends.protocol import Reply, Statistics, Timeouts
from backends.stream import StreamEnd
from tests.support.backend_cases import BackendCase
from tests.support.calls import event_values, make_call, read_all, streamed_text

LIMIT_S = 0.15
TOLERANCE_S = 0.1
EARLY_S = 0.005
"""A timer rings when what is left is below the clock's resolution."""


async def _read_until_error(reply: Reply) -> tuple[bytes, SlipstreamError, float]:
    """What came before the error, the error, and the seconds of silence before it."""
    assert reply.stream is not None
    pieces = []
    last_at = time.monotonic()
    try:
        while piece := await reply.stream.read():
            pieces.append(piece)
            last_at = time.monotonic()
    except SlipstreamError as error:
        return b"".join(pieces), error, time.monotonic() - last_at
    raise AssertionError("the stream ended without an error")


async def test_open_twice_is_harmless(case: BackendCase) -> None:
    """A backend that is open already stays so."""
    await case.backend.open()

    reply = await case.backend.send(make_call())

    assert reply.status == 200
    await reply.aclose()


async def test_closed_backend_refuses_calls(case: BackendCase) -> None:
    """Closing twice is safe, and a call that comes too late was not sent."""
    await case.backend.aclose()
    await case.backend.aclose()

    with pytest.raises(ConnectFailed):
        await case.backend.send(make_call())


async def test_name_is_the_configured_one(case: BackendCase) -> None:
    """The name appears in metrics and logs, so it is what the operator wrote."""
    assert case.backend.name == "under-test"


@pytest.mark.parametrize("operation", list(Operation))
async def test_capabilities_are_honest(case: BackendCase, operation: Operation) -> None:
    """What is listed is answered; anything else is a typed error."""
    if operation in case.backend.capabilities.operations:
        reply = await case.backend.send(make_call(operation=operation))

        assert reply.status == 200
        assert await read_all(reply)
    else:
        with pytest.raises(SlipstreamError):
            await case.backend.send(make_call(operation=operation))


async def test_plain_chat_is_a_completion_with_usage(case: BackendCase) -> None:
    """A whole answer is JSON in OpenAI's shape, and its usage is in the facts."""
    case.answer("one two three")
    call = make_call()

    reply = await case.backend.send(call)

    assert (reply.status, reply.header(b"content-type")) == (200, b"application/json")
    completion = json.loads(await read_all(reply))
    assert completion["object"] == "chat.completion"
    assert completion["choices"][0]["message"] == {"role": "assistant", "content": "one two three", "refusal": None}
    assert completion["choices"][0]["finish_reason"] == "stop"
    assert call.facts.usage is not None
    details = completion["usage"].pop("prompt_tokens_details", {"cached_tokens": 0})
    assert details["cached_tokens"] == call.facts.usage.cached_tokens
    assert completion["usage"] == {
        "prompt_tokens": call.facts.usage.prompt_tokens,
        "completion_tokens": call.facts.usage.completion_tokens,
        "total_tokens": call.facts.usage.prompt_tokens + call.facts.usage.completion_tokens,
    }


async def test_stream_is_events_up_to_done(case: BackendCase) -> None:
    """A stream opens with the role, says the text, and ends with its usage and [DONE]."""
    case.answer("one two three")
    call = make_call(stream=True)

    reply = await case.backend.send(call)
    stream = await read_all(reply)

    assert (reply.header(b"content-type") or b"").startswith(b"text/event-stream")
    assert stream.endswith(b"data: [DONE]\n\n")
    assert streamed_text(stream) == "one two three"
    values = event_values(stream)
    assert values[0]["choices"][0]["delta"]["role"] == "assistant"
    assert [c["finish_reason"] for v in values for c in v["choices"] if c["finish_reason"]] == ["stop"]
    assert values[-1]["choices"] == []
    assert call.facts.usage == Usage(values[-1]["usage"]["prompt_tokens"], values[-1]["usage"]["completion_tokens"])


async def test_stream_read_to_the_end_is_clean(case: BackendCase) -> None:
    """A whole stream ends CLEAN, in the stream and in the facts, and stays so when closed."""
    call = make_call(stream=True)
    reply = await case.backend.send(call)

    await read_all(reply)
    await reply.aclose()

    assert reply.stream is not None
    assert reply.stream.end is StreamEnd.CLEAN
    assert call.facts.stream_end is StreamEnd.CLEAN
    assert case.backend.statistics().in_flight == 0


@pytest.mark.parametrize("after_events", [1, 2, 4])
async def test_stream_cut_is_an_error_and_never_done(case: BackendCase, after_events: int) -> None:
    """A stream that breaks off raises UpstreamCut and does not pretend to be whole."""
    case.cut(after_events)
    call = make_call("a question of several words", stream=True)
    reply = await case.backend.send(call)
    assert reply.stream is not None

    arrived, error, _ = await _read_until_error(reply)
    await reply.aclose()

    assert isinstance(error, UpstreamCut)
    assert b"[DONE]" not in arrived
    assert reply.stream.end is StreamEnd.UPSTREAM_CUT
    assert call.facts.stream_end is StreamEnd.UPSTREAM_CUT
    assert case.backend.statistics().in_flight == 0


async def test_stream_cut_before_the_first_event_is_no_reply(case: BackendCase) -> None:
    """Nothing has been handed out, so another attempt is still possible."""
    case.cut(0)

    with pytest.raises(UpstreamCut):
        await case.backend.send(make_call(stream=True))

    assert case.backend.statistics().in_flight == 0


async def test_plain_answer_cut_is_an_error(case: BackendCase) -> None:
    """Half an answer is none."""
    case.cut(0)

    with pytest.raises(UpstreamCut):
        await case.backend.send(make_call())

    assert case.backend.statistics().in_flight == 0


@pytest.mark.timed
async def test_stream_silent_too_long_is_stalled(case: BackendCase) -> None:
    """Silence in the middle ends the stream after `stream_idle`, within 100 ms."""
    case.stall(2)
    call = make_call("several words to say", stream=True, timeouts=Timeouts(stream_idle_s=LIMIT_S))
    reply = await case.backend.send(call)
    assert reply.stream is not None

    _, error, silent_s = await _read_until_error(reply)

    assert isinstance(error, StreamStalled)
    assert LIMIT_S - EARLY_S <= silent_s < LIMIT_S + TOLERANCE_S
    assert reply.stream.end is StreamEnd.STALL
    await reply.aclose()
    await case.wait_left()


@pytest.mark.timed
async def test_stream_without_a_first_event_times_out(case: BackendCase) -> None:
    """Nothing within `first_token` is an error before there is a reply, within 100 ms."""
    case.stall(0)
    started = time.monotonic()

    with pytest.raises(FirstTokenTimeout):
        await case.backend.send(make_call(stream=True, timeouts=Timeouts(first_token_s=LIMIT_S)))

    assert LIMIT_S - EARLY_S <= time.monotonic() - started < LIMIT_S + TOLERANCE_S
    await case.wait_left()


@pytest.mark.timed
async def test_stream_kept_alive_without_a_first_event_times_out(case: BackendCase) -> None:
    """Signs of life are no event: they do not put `first_token` off."""
    case.keep_alive(every_s=LIMIT_S / 5)
    started = time.monotonic()

    with pytest.raises(FirstTokenTimeout):
        await case.backend.send(make_call(stream=True, timeouts=Timeouts(first_token_s=LIMIT_S)))

    assert LIMIT_S - EARLY_S <= time.monotonic() - started < LIMIT_S + TOLERANCE_S
    await case.wait_left()


@pytest.mark.timed
async def test_plain_answer_after_the_deadline_times_out(case: BackendCase) -> None:
    """The deadline bounds a whole answer, within 100 ms; `first_token` is for streams only."""
    case.stall(0)
    started = time.monotonic()

    with pytest.raises(TotalTimeout):
        await case.backend.send(make_call(timeouts=Timeouts(total_s=LIMIT_S, first_token_s=LIMIT_S / 10)))

    assert LIMIT_S - EARLY_S <= time.monotonic() - started < LIMIT_S + TOLERANCE_S
    await case.wait_left()


@pytest.mark.timed
async def test_stream_after_the_deadline_times_out(case: BackendCase) -> None:
    """The deadline bounds a stream too, however lively it is."""
    case.answer("word " * 200, delay_s=0.01)
    started = time.monotonic()
    reply = await case.backend.send(make_call(stream=True, timeouts=Timeouts(total_s=LIMIT_S)))

    _, error, _ = await _read_until_error(reply)

    assert isinstance(error, TotalTimeout)
    assert LIMIT_S - EARLY_S <= time.monotonic() - started < LIMIT_S + TOLERANCE_S
    await reply.aclose()
    await case.wait_left()


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
@pytest.mark.parametrize("status", [400, 429, 500, 503])
async def test_error_answer_is_a_reply(case: BackendCase, status: int, stream: bool) -> None:
    """An upstream's error is passed on in OpenAI's shape with its Retry-After."""
    case.fail(status, retry_after_s=7)

    reply = await case.backend.send(make_call(stream=stream))

    assert (reply.status, reply.header(b"retry-after")) == (status, b"7")
    body = json.loads(await read_all(reply))
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"]
    assert case.backend.statistics().in_flight == 0


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
async def test_refused_connection_is_connect_failed(case: BackendCase, stream: bool) -> None:
    """Nothing was sent, so the error is retryable."""
    await case.refuse()
    call = make_call(stream=stream)

    with pytest.raises(ConnectFailed) as failure:
        await case.backend.send(call)

    assert failure.value.retryable
    assert call.facts.first_token_at is None
    assert case.backend.statistics().in_flight == 0


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
@pytest.mark.timed
async def test_cancelled_send_cancels_the_work(case: BackendCase, stream: bool) -> None:
    """Cancelling whoever waits for a reply reaches the upstream within 100 ms."""
    case.stall(0)
    sending = asyncio.create_task(case.backend.send(make_call(stream=stream)))
    await case.wait_asked()
    assert case.backend.statistics().in_flight == 1

    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending

    assert case.backend.statistics().in_flight == 0
    await case.wait_left()


@pytest.mark.timed
async def test_cancelled_read_cancels_the_work_on_close(case: BackendCase) -> None:
    """A reader cancelled in the middle of a stream closes the reply, which reaches the upstream within 100 ms."""
    case.stall(2)
    reply = await case.backend.send(make_call("several words to say", stream=True))
    reading = asyncio.create_task(read_all(reply))
    await asyncio.sleep(0.02)

    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading

    assert reply.stream is not None
    assert reply.stream.end is StreamEnd.CLIENT_GONE
    assert case.backend.statistics().in_flight == 0
    await case.wait_left()


@pytest.mark.timed
async def test_reply_closed_early_cancels_the_work(case: BackendCase) -> None:
    """Closing a stream in the middle, even twice, reaches the upstream within 100 ms."""
    case.answer("word " * 200, delay_s=0.01)
    call = make_call(stream=True)
    reply = await case.backend.send(call)
    assert reply.stream is not None
    assert await reply.stream.read()
    assert case.backend.statistics().in_flight == 1

    await reply.aclose()
    await reply.aclose()

    assert case.backend.statistics().in_flight == 0
    assert call.facts.stream_end is StreamEnd.CLIENT_GONE
    await case.wait_left()


@pytest.mark.timed
async def test_backend_closed_ends_streams_in_flight(case: BackendCase) -> None:
    """Whoever waits for the next event of a backend that is closed is told so at once."""
    case.stall(2)
    reply = await case.backend.send(make_call("several words to say", stream=True))
    reading = asyncio.create_task(read_all(reply))
    await asyncio.sleep(0.02)

    await case.backend.aclose()

    with pytest.raises(SlipstreamError):
        await asyncio.wait_for(reading, TOLERANCE_S)
    assert case.backend.statistics().in_flight == 0


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
async def test_facts_times_are_set_in_order(case: BackendCase, stream: bool) -> None:
    """The call was sent after it began, and answered after it was sent."""
    case.answer("one two", delay_s=0.01)
    call = make_call(stream=stream)
    began = time.monotonic()

    await read_all(await case.backend.send(call))

    assert call.facts.sent_at is not None
    assert call.facts.first_token_at is not None
    assert began <= call.facts.sent_at < call.facts.first_token_at <= time.monotonic()


async def test_statistics_are_an_immutable_snapshot(case: BackendCase) -> None:
    """A snapshot does not change afterwards, by hand or by itself; the next one counts on."""
    before = case.backend.statistics()
    await read_all(await case.backend.send(make_call()))
    after = case.backend.statistics()

    with pytest.raises(AttributeError):
        before.sent = 7  # type: ignore[misc]  # that this fails is the point
    assert isinstance(before, Statistics)
    assert (before.sent, after.sent, after.in_flight) == (0, 1, 0)


async def test_concurrent_calls_never_mix(case: BackendCase) -> None:
    """Fifty calls at once, half of them streams: each gets the answer to its own question."""
    case.answer(delay_s=0.001)

    async def ask(number: int) -> str:
        reply = await case.backend.send(make_call(f"question-{number:03}", stream=number % 2 == 0))
        answer = await read_all(reply)
        return streamed_text(answer) if number % 2 == 0 else json.loads(answer)["choices"][0]["message"]["content"]

    answers = await asyncio.gather(*(ask(number) for number in range(50)))

    assert [answer[-len("question-000") :] for answer in answers] == [f"question-{number:03}" for number in range(50)]
    assert case.backend.statistics().in_flight == 0
    assert case.backend.statistics().sent == 50
