"""Cuts streams in every way an upstream can, and counts those that a client could take for whole.

    python -m tests.benchmarks.faults.cut_streams --count 10000

A real gateway between a real upstream and a client that believes only what HTTP and OpenAI's events say: a cut answer
must not end as its framing announces, hold no `[DONE]`, hold nothing that the upstream did not send, and tell what
happened in an error event (or be an error answer, if nothing had been sent). What was cut must not be in the cache.
"""

from __future__ import annotations

import asyncio
import random
import re
import sys
from collections import Counter
from dataclasses import dataclass, field

import msgspec

from tests.support.faults import CACHE, CHAT, CaseServer, Figure, Progress, none, parser, policy, report
from tests.support.gateway import start_gateway
from tests.support.http_client import Answer, Connections
from tests.support.servers.openai_server import Behaviour

_WORKERS = 48
_COMPLETIONS = "/v1/completions"
_RESPONSES = "/v1/responses"
_DONE = b"data: [DONE]\n\n"
_WORDS = ("up", "over", "straße", "日本語", "🙂 smile", '"quoted"', "data: [DONE]", "line\nline", "finish_reason")
_WAYS = ("fin", "reset", "torn framing", "no terminator", "clean end", "end of connection", "length too long")


@dataclass(frozen=True, slots=True)
class Case:
    """One cut. `events` are the whole answer's, `sent` is what the client may see of it at most."""

    name: str
    way: str
    path: str
    body: bytes
    behaviour: Behaviour
    sent: bytes
    is_stream: bool
    is_cached: bool
    num_clients: int


@dataclass(slots=True)
class Outcome:
    """What was found. `problems` holds one line for each answer that was not honest about its cut."""

    cuts: int = 0
    asked_again: int = 0
    stored: int = 0
    hits: int = 0
    unreadable: int = 0
    problems: list[str] = field(default_factory=list)
    ways: Counter[str] = field(default_factory=Counter)


def answer_events(random_: random.Random, n: int, *, is_chat: bool) -> list[bytes]:
    """The events of a chat or completion stream with `n` choices and its usage."""
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1_700_000_000, "model": "m"}

    def event(choices: list[object], **more: object) -> bytes:
        return b"data: " + msgspec.json.encode({**head, "choices": choices, **more}) + b"\n\n"

    def choice(index: int, text: str, finish_reason: str | None = None) -> bytes:
        content: dict[str, object] = {"delta": {"content": text} if text else {}} if is_chat else {"text": text}
        return event([{"index": index, **content, "finish_reason": finish_reason}])

    events = []
    left = {index: random_.randrange(12) for index in range(n)}
    while left:
        index = random_.choice(list(left))
        if left[index]:
            left[index] -= 1
            events.append(choice(index, random_.choice(_WORDS)))
        else:
            del left[index]
            events.append(choice(index, "", random_.choice(["stop", "length"])))
    events.append(event([], usage={"prompt_tokens": 3, "completion_tokens": 9, "total_tokens": 12}))
    events.append(_DONE)
    return events


def responses_events(random_: random.Random) -> list[bytes]:
    """The events of a stream of `/responses`; there is no `[DONE]`."""

    def event(kind: str, **more: object) -> bytes:
        data = msgspec.json.encode({"type": f"response.{kind}", **more})
        return b"event: response.%b\ndata: %b\n\n" % (kind.encode(), data)

    texts = random_.choices((*_WORDS, "response.completed"), k=random_.randrange(12))
    response: dict[str, object] = {"id": "resp_1", "object": "response", "status": "completed"}
    return [
        event("created", response={**response, "status": "in_progress"}),
        *(event("output_text.delta", item_id="msg_1", delta=text) for text in texts),
        event("completed", response={**response, "usage": {"input_tokens": 3, "output_tokens": 9}}),
    ]


def _stream_behaviour(way: str, events: list[bytes], random_: random.Random) -> tuple[Behaviour, bytes]:
    """How to cut, and everything that leaves the upstream."""
    whole = b"".join(events)
    if events[-1] != _DONE:
        limit = len(whole) - 2
    elif way in ("clean end", "end of connection"):
        # A server that sends no [DONE] ends like this on purpose, but not before its last finish_reason.
        last = max(index for index, event in enumerate(events) if b'"finish_reason":"' in event)
        limit = sum(map(len, events[: last + 1])) - 1
    else:
        limit = len(whole) - len(_DONE) + len(b"data: [DONE")
    # Half of all cuts fall between two events, as they do in real life.
    ends = [sum(map(len, events[:index])) for index in range(len(events) + 1)]
    at = random_.choice([end for end in ends if end <= limit]) if random_.random() < 0.5 else random_.randrange(limit)
    sent = whole[:at]
    pieces = _pieces(events, at)
    if way == "clean end":
        return Behaviour(events=pieces, framing="chunked"), sent
    if way == "end of connection":
        return Behaviour(events=pieces, framing="eof"), sent
    if way == "length too long":
        return Behaviour(events=tuple(events), framing="length", cut_after_bytes=at), sent
    if way in ("no terminator", "torn framing"):
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        chunks = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
        torn = b"%x\r\n%b" % (len(whole) - at, whole[at : at + random_.randrange(3)]) if way == "torn framing" else b""
        return Behaviour(raw=head + chunks + torn), whole[: at + 3]
    # The server cuts in front of a piece, so there must be one behind the cut.
    pieces = (*pieces, whole[at:])
    return Behaviour(events=pieces, cut_after_events=len(pieces) - 1, reset=way == "reset"), sent


def _pieces(events: list[bytes], at: int) -> tuple[bytes, ...]:
    pieces = []
    for event in events:
        if at <= 0:
            break
        pieces.append(event[:at])
        at -= len(event)
    return tuple(pieces)


def make_case(number: int, random_: random.Random) -> Case:
    """A cut like no other."""
    path = random_.choice([CHAT, CHAT, CHAT, _COMPLETIONS, _RESPONSES])
    n = random_.choice([1, 1, 2])
    is_stream = random_.random() < 0.85
    is_cached = random_.random() < 0.5
    name = f"{number}"
    request: dict[str, object] = {"model": f"{'cached' if is_cached else 'plain'}/{name}", "stream": is_stream}
    if path == CHAT:
        request |= {"messages": [{"role": "user", "content": "Tell me."}], "n": n}
    elif path == _COMPLETIONS:
        # Two prompts have two choices as well.
        request |= random_.choice([{"prompt": "Once", "n": n}, {"prompt": ["Once", "Twice"][:n]}])
    else:
        request["input"] = "Tell me."
    if is_stream and path != _RESPONSES and random_.random() < 0.5:
        request["stream_options"] = {"include_usage": True}
    if is_stream:
        way = random_.choice(_WAYS)
        is_chat = path == CHAT
        events = responses_events(random_) if path == _RESPONSES else answer_events(random_, n, is_chat=is_chat)
        behaviour, sent = _stream_behaviour(way, events, random_)
    else:
        way = random_.choice(["plain fin", "plain reset", "plain end of connection"])
        behaviour, sent = _plain_behaviour(way, random_), b""
    return Case(
        name,
        way,
        path,
        msgspec.json.encode(request),
        behaviour,
        sent,
        is_stream,
        is_cached,
        num_clients=random_.choice([1, 1, 2, 4]),
    )


def _plain_behaviour(way: str, random_: random.Random) -> Behaviour:
    choice = {"index": 0, "message": {"role": "assistant", "content": "Yes."}, "finish_reason": "stop"}
    whole = msgspec.json.encode({"id": "c", "object": "chat.completion", "choices": [choice]})
    at = random_.randrange(len(whole))
    if way == "plain end of connection":
        return Behaviour(body=whole[:at], framing="eof")
    return Behaviour(body=whole, cut_after_bytes=at, reset=way == "plain reset")


def problem_of(case: Case, answer: Answer) -> str | None:
    """Why a client could take this answer for whole, or for something else than was sent; None if it could not."""
    body = bytes(answer.body)
    if answer.status != 200:
        if answer.error() is None or answer.status not in (502, 504) or not answer.is_whole:
            return f"answered {answer.status} with {body[:200]!r}"
        return None
    if not case.is_stream:
        return "a cut plain answer came as a success"
    if answer.is_whole:
        return "the body ended as if it were whole"
    if re.search(rb"^data: ?\[DONE\]", body, re.MULTILINE):
        return "[DONE] in a cut stream"
    shown = body.partition(b'data: {"error"')[0]
    if not case.sent.startswith(shown):
        return f"bytes that the upstream did not send: {shown[-200:]!r}"
    return None


def is_readable(answer: Answer) -> bool:
    """Whether the client can read why: an error answer, or an error event of its own after whole events."""
    if answer.status != 200:
        return True
    events = bytes(answer.body).split(b"\n\n")
    if events[-1] or len(events) < 2 or not events[-2].startswith(b"data: "):
        return False
    try:
        decoded = [msgspec.json.decode(event.partition(b"data: ")[2]) for event in events[:-1]]
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    return "error" in decoded[-1] and all("error" not in event for event in decoded[:-1])


async def _run_case(case: Case, server: CaseServer, connections: Connections, outcome: Outcome) -> None:
    server.cases[case.name] = case.behaviour
    clients = (connections.post(case.path, case.body) for _ in range(case.num_clients))
    for answer in await asyncio.gather(*clients):
        outcome.cuts += 1
        outcome.ways[case.way] += 1
        problem = problem_of(case, answer)
        if problem is not None:
            outcome.problems.append(f"{case.way}, case {case.name}: {problem}")
        outcome.unreadable += not is_readable(answer)
    del server.cases[case.name]
    if case.is_cached:
        await _ask_again(case, connections, outcome)


async def _ask_again(case: Case, connections: Connections, outcome: Outcome) -> None:
    """The upstream is well now: nothing of the cut answer may come back, and this one is kept."""
    outcome.asked_again += 1
    first, second = [await connections.post(case.path, case.body) for _ in range(2)]
    if first.header(b"x-cache") != b"miss":
        outcome.stored += 1
        outcome.problems.append(f"{case.way}, case {case.name}: asked again, x-cache is {first.header(b'x-cache')!r}")
    if first.status != 200 or not first.is_whole:
        outcome.problems.append(f"{case.way}, case {case.name}: asked again, answered {first.status}")
    outcome.hits += second.header(b"x-cache") == b"hit"


async def measure(count: int, seed: int, *, is_shown: bool = False) -> Outcome:
    """Cut `count` answers, or a few more."""
    outcome = Outcome()
    progress = Progress(count, "cuts", is_shown=is_shown)
    random_ = random.Random(seed)
    cases = (make_case(number, random_) for number in range(count))
    async with CaseServer() as server:
        text = policy(server.base_url, routes={"cached/*": {"cache": CACHE}, "plain/*": {}})
        async with start_gateway(text) as gateway:
            connections = Connections(gateway.port)

            async def work() -> None:
                for case in cases:
                    if outcome.cuts >= count:
                        break
                    await _run_case(case, server, connections, outcome)
                    progress.add(case.num_clients)

            async with asyncio.TaskGroup() as tasks:
                for _ in range(min(_WORKERS, count)):
                    tasks.create_task(work())
            await connections.aclose()
            if "Traceback" in gateway.stderr:
                outcome.problems.append(f"a traceback on stderr: {gateway.stderr[-3000:]}")
    return outcome


def main() -> int:
    """Measure and print."""
    given = parser(__doc__, count=10_000, what="answers to cut").parse_args()
    outcome = asyncio.run(measure(given.count, given.seed, is_shown=True))
    for problem in outcome.problems[:20]:
        print(problem)
    print("ways:", ", ".join(f"{way} {number}" for way, number in sorted(outcome.ways.items())))
    again = outcome.asked_again
    return report(
        [
            none(f"cuts that reach the client as a clean end, of {outcome.cuts}", len(outcome.problems)),
            none("cuts whose error event cannot be read", outcome.unreadable),
            none(f"cut answers in the cache, of {again} asked again", outcome.stored),
            Figure("the same, whole, in the cache", f"{again}", f"{outcome.hits}", outcome.hits == again),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
