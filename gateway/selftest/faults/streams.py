"""Faults 1 to 5: streams that are cut, end oddly, begin with an error, stall, or come in odd pieces."""

from __future__ import annotations

import gzip
import json
import time
from dataclasses import dataclass
from random import Random

from gateway.selftest.answers import DONE, chat_body, chat_pieces, chunk, event, usage_chunk
from gateway.selftest.bench import Bench, ask_way, at_once, quantile
from gateway.selftest.check import Check
from gateway.selftest.client import ReceivedAnswer
from gateway.selftest.upstream import Framing, Lie, ReceivedRequest
from gateway.selftest.verdict import CheckOutcome, failed, partial, passed, safe

_WORDS = tuple(f"word{number} " for number in range(12))
_TEXT = "".join(_WORDS)
_BUG = "report it: this is a bug of the gateway, not of your policy"
_ALONE = {"retry": {"attempts": 0}, "fallbacks": None, "hedge": None}
"""Sections with which a failure is the client's at once."""


async def cut(bench: Bench) -> CheckOutcome:
    """Cut after k of n events: the client sees that it broke, and nobody gets it from the cache."""
    way = bench.subject.way
    count = bench.count(50, 1500)
    pieces = chat_pieces(_WORDS)
    silent: list[int] = []
    begun: list[int] = []
    cached: list[int] = []

    def lie(request: ReceivedRequest) -> Lie:
        kept = bench.random.randrange(1, len(pieces) - 1)
        is_reset, is_chunked = bench.random.random() < 0.5, bench.random.random() < 0.5
        framing: Framing = "chunked" if is_chunked else "close"
        return Lie(pieces=pieces, stop_after=kept, stop="reset" if is_reset else "close", framing=framing)

    async with bench.gateway(bench.policy(way, **_ALONE)) as child:
        for upstream in bench.all_of(way):
            upstream.plan = lie

        async def once(number: int) -> None:
            answer = await ask_way(child, way, f"cut {number}", stream=True)
            if not _is_told(answer):
                silent.append(number)
            if answer.is_stream:
                begun.append(number)

        await at_once(10, [once(number) for number in range(count)])
        for number in range(0, count, 6):
            requests_before = bench.num_requests()
            await ask_way(child, way, f"cut {number}", stream=True)
            if bench.num_requests() == requests_before:
                cached.append(number)
    measured = f"{len(silent)} silent of {count}, {len(cached)} cached"
    if silent:
        return failed(measured, "a stream that was cut looked whole to its client", _BUG)
    if len(begun) < count / 2:
        return failed(measured, f"only {len(begun)} of {count} streams began at all: is this route in order?")
    if cached:
        return failed(measured, "half an answer was served from the cache", _BUG)
    return passed(measured)


def _is_told(answer: ReceivedAnswer) -> bool:
    """Whether a stream that broke says so, or is whole after all because somebody else went on."""
    if answer.is_done:
        return answer.text() == _TEXT and not answer.tells_error
    return answer.tells_error


@dataclass(frozen=True, slots=True)
class _Shape:
    """A stream as some server sends it. `is_whole`: whether a client may take it for complete."""

    name: str
    pieces: tuple[bytes, ...]
    is_whole: bool = True
    num_finished: int = 1
    has_usage: bool = True


_SPOKEN = tuple(chunk({"content": word}) for word in _WORDS)
_ROLE = chunk({"role": "assistant", "content": ""})
_STOP = chunk({}, "stop")
_USAGE = usage_chunk(12)
_COUNTED = {"prompt_tokens": 7, "completion_tokens": 12, "total_tokens": 19}
_SHAPES = (
    _Shape("as OpenAI", (_ROLE, *_SPOKEN, _STOP, _USAGE, DONE)),
    _Shape("without usage", (_ROLE, *_SPOKEN, _STOP, DONE), has_usage=False),
    _Shape("no [DONE]", (_ROLE, *_SPOKEN, _STOP, _USAGE)),
    _Shape("no finish_reason", (_ROLE, *_SPOKEN, _USAGE, DONE), num_finished=0),
    _Shape("neither", (_ROLE, *_SPOKEN), is_whole=False, num_finished=0, has_usage=False),
    _Shape("half an event", (_ROLE, *_SPOKEN, _STOP[:40]), is_whole=False, num_finished=0, has_usage=False),
    _Shape("no role", (*_SPOKEN, _STOP, _USAGE, DONE)),
    _Shape(
        "role with content", (chunk({"role": "assistant", "content": _WORDS[0]}), *_SPOKEN[1:], _STOP, _USAGE, DONE)
    ),
    _Shape("finish with content", (_ROLE, *_SPOKEN[:-1], chunk({"content": _WORDS[-1]}, "stop"), _USAGE, DONE)),
    _Shape("usage with finish", (_ROLE, *_SPOKEN, chunk({}, "stop", usage=_COUNTED), DONE)),
    _Shape("first without choices", (event({"id": "x", "choices": []}), _ROLE, *_SPOKEN, _STOP, _USAGE, DONE)),
    _Shape("null usage in each", (_ROLE, *(chunk({"content": w}, usage=None) for w in _WORDS), _STOP, _USAGE, DONE)),
)


async def shapes(bench: Bench) -> CheckOutcome:
    """However a server ends its streams: same text, right usage, no invented finish reason."""
    way = bench.subject.way
    wrong: list[str] = []
    async with bench.gateway(bench.policy(way, **_ALONE)) as child:
        for shape in _SHAPES:
            for upstream in bench.all_of(way):
                upstream.usual = Lie(pieces=shape.pieces)
            options = {"include_usage": True}
            answer = await ask_way(child, way, f"shape {shape.name}", stream=True, stream_options=options)
            counted = [chunk["usage"] for chunk in answer.chunks() if chunk.get("usage")]
            is_right = (
                answer.text() == _TEXT
                and answer.tells_error != shape.is_whole
                and len(answer.finish_reasons()) == shape.num_finished
                and (not shape.has_usage or [c["completion_tokens"] for c in counted][-1:] == [12])
            )
            if not is_right:
                wrong.append(shape.name)
    measured = f"{len(_SHAPES) - len(wrong)} of {len(_SHAPES)} shapes"
    return failed(measured, f"changed or wrongly ended: {', '.join(wrong)}", _BUG) if wrong else passed(measured)


_ERROR_FRAME = event({"error": {"message": "overloaded", "type": "server_error", "param": None, "code": None}})
_BAD_BEGINNINGS = {
    "error first": Lie(pieces=(_ERROR_FRAME,)),
    "role, then error": Lie(pieces=(_ROLE, _ERROR_FRAME)),
    "role, then cut": Lie(pieces=(_ROLE, *_SPOKEN), stop_after=1),
    "nothing": Lie(pieces=(), content_type="text/event-stream"),
    "error as a 200 body": Lie(pieces=(json.dumps({"error": {"message": "no", "type": "server_error"}}).encode(),)),
}


async def bad_beginnings(bench: Bench) -> CheckOutcome:
    """A 200 that begins with an error: somebody else answers, and the client sees nothing of it."""
    way = bench.subject.way
    unseen: list[str] = []
    told: list[str] = []
    silent: list[str] = []
    async with bench.gateway() as child:
        for name, lie in _BAD_BEGINNINGS.items():
            lies = iter((lie,))
            for upstream in bench.own.values():
                # Whoever is asked first lies.
                upstream.plan = lambda request, lies=lies: next(lies, None)
            answer = await ask_way(child, way, f"beginning {name}", stream=name != "error as a 200 body")
            (unseen if answer.is_good else told if answer.tells_error else silent).append(name)
    measured = f"{len(unseen)} of {len(_BAD_BEGINNINGS)} failed over"
    if silent:
        return failed(measured, f"an empty answer looked like a good one: {', '.join(silent)}", _BUG)
    if not told:
        return passed(measured)
    remedy = "give the route a second backend or `fallbacks`" if len(way.backends) < 2 else "see docs/resilience.md"
    return (partial if unseen else safe)(measured, f"told to the client as an error: {', '.join(told)}", remedy)


_LIMIT_S = 0.6
_TOTAL_S = 2.0


async def stalls(bench: Bench) -> CheckOutcome:
    """Silence at any point, or a drip: ended by the time limit that is set for it, when it is due."""
    way = bench.subject.way
    pieces = chat_pieces(_WORDS)
    drip = tuple(bytes([byte]) for byte in b"".join(pieces))
    lies = {
        "no head": (Lie(stop_after=-1, stop="stall"), _LIMIT_S),
        "head only": (Lie(pieces=pieces, stop_after=0, stop="stall"), _LIMIT_S),
        "1 event": (Lie(pieces=pieces, stop_after=1, stop="stall"), _LIMIT_S),
        "10 events": (Lie(pieces=pieces, stop_after=10, stop="stall"), _LIMIT_S),
        "drip": (Lie(pieces=drip, content_type="text/event-stream", pause_s=0.05), _TOTAL_S),
    }
    late: list[float] = []
    silent: list[str] = []
    limits = {"connect": "2s", "first_token": f"{_LIMIT_S}s", "stream_idle": f"{_LIMIT_S}s", "total": f"{_TOTAL_S}s"}

    async with bench.gateway(bench.policy(way, timeouts=limits, **_ALONE)) as child:
        for upstream in bench.all_of(way):
            upstream.plan = lambda request: lies[json.loads(request.body)["messages"][0]["content"].split(":")[0]][0]

        async def once(name: str, number: int) -> None:
            began = time.monotonic()
            answer = await ask_way(child, way, f"{name}: {number}", stream=True)
            off = time.monotonic() - began - lies[name][1]
            # Bytes without an event may be taken for silence: a drip ends with the call at the latest.
            late.append(max(0.0, off) if name == "drip" else off)
            if not answer.tells_error or answer.is_done:
                silent.append(name)

        await at_once(5, [once(name, number) for number in range(bench.count(1, 20)) for name in lies])
    measured = f"{1000 * min(late):+.0f} to {1000 * max(late):+.0f} ms off, of {len(late)}"
    if silent:
        return failed(measured, f"no error was told: {', '.join(sorted(set(silent)))}", _BUG)
    if max(late) > 3.0 or quantile(late, 0.5) > 0.5 or min(late) < -0.1:
        return failed(measured, "a time limit was not kept", _BUG)
    if max(late) > 0.1:
        return partial(measured, "over 100 ms late; is this machine busy?")
    return passed(measured)


async def pieces_of_any_size(bench: Bench) -> CheckOutcome:
    """Comments, CRLF, split characters, a line of 1 MiB, gzip, cuts between any two bytes: relayed as they are."""
    way = bench.subject.way
    count = bench.count(40, 1500)
    wrong: list[str] = []
    bodies: dict[str, bytes] = {}

    def lie(request: ReceivedRequest) -> Lie:
        name = json.loads(request.body)["messages"][0]["content"]
        return Lie(pieces=_split(bodies[name], bench.random), content_type="text/event-stream; charset=utf-8")

    async with bench.gateway(bench.policy(way, **_ALONE)) as child:
        for upstream in bench.all_of(way):
            upstream.plan = lie

        async def once(number: int) -> None:
            name = f"pieces {number}"
            bodies[name] = _odd_stream(bench.random, is_long=number == 0)
            options = {"include_usage": True}
            answer = await ask_way(child, way, name, stream=True, stream_options=options)
            if bytes(answer.body) != bodies[name] or not answer.is_whole:
                wrong.append(name)

        await at_once(8, [once(number) for number in range(count)])
        whole = chat_body(_WORDS)
        for upstream in bench.all_of(way):
            upstream.plan = lambda request: Lie(pieces=(gzip.compress(whole),), headers=(("content-encoding", "gzip"),))
        answer = await ask_way(child, way, "gzip", headers=(("accept-encoding", "gzip"),))
        is_packed = answer.header("content-encoding") == "gzip"
        if (gzip.decompress(bytes(answer.body)) if is_packed else bytes(answer.body)) != whole:
            wrong.append("gzip")
    measured = f"{len(wrong)} of {count + 1} differ"
    return failed(measured, f"bytes were changed: {', '.join(wrong[:5])}", _BUG) if wrong else passed(measured)


def _odd_stream(random: Random, *, is_long: bool) -> bytes:
    """A whole stream with everything in it that a parser may stumble over."""
    ending = random.choice((b"\n", b"\r\n"))
    said = ["a", "\u00e9\u4e16\u754c \U0001f600 ", "x" * (1 << 20 if is_long else 300)]
    events = [_ROLE, *(chunk({"content": random.choice(said[:2])}) for _ in range(6)), chunk({"content": said[2]})]
    events[random.randrange(1, 6)] = random.choice((b": ping\n\n", b"event: odd\ndata: {not json\n\n", b"\n"))
    raw = json.dumps({"choices": [{"index": 0, "delta": {"content": said[1]}}]}, ensure_ascii=False).encode()
    events += [b"data:" + raw + b"\n\n", _STOP, _USAGE, DONE]
    return b"".join(events).replace(b"\n", ending)


def _split(body: bytes, random: Random) -> tuple[bytes, ...]:
    """The same bytes, cut anywhere."""
    places = sorted({random.randrange(1, len(body)) for _ in range(random.randrange(1, 40))})
    return tuple(body[start:end] for start, end in zip([0, *places], [*places, len(body)], strict=True))


CHECKS = (
    Check("1", "stream cut after k of n tokens: told, not cached", cut),
    Check("2", "12 ways to end a stream: nothing invented", shapes),
    Check("3", "a 200 that begins with an error: failed over", bad_beginnings),
    Check("4", "stall at any token, or a drip: limits are kept", stalls, is_timed=True),
    Check("5", "odd lines, cuts at any byte: relayed as they are", pieces_of_any_size),
)
