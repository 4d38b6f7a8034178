"""Sessions over HTTP: an answer that waits after each step is the same answer, and nobody else's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest

from backends.drafts.push import DRAFT_MARK, DraftMark, read_draft_mark
from backends.sse import split_events
from tests.support.gateway import Gateway, running_gateway

pytest.importorskip("torch")

KEYS = {"ALICE": "sk-alice-0123456789", "TWIN": "sk-twin-0123456789", "PLAIN": "sk-plain-0123456789"}
POLICY = """
version: 1
backends:
  model: {type: engine, model: slipstream-target, device: cpu, dtype: float32, threads: 1, speculate: "off"}
  other: {type: scripted}
keys:
  - {name: alice, key: "env:ALICE", tenant: a, drafts: true}
  - {name: twin, key: "env:TWIN", tenant: a, drafts: true}
  - {name: plain, key: "env:PLAIN", tenant: a}
routes:
  - {name: other, match: {models: [other]}, backends: [{ref: other}]}
  - {name: all, match: {models: ["*"]}, backends: [{ref: model}]}
limits:
  - {name: runs, per: session, rpm: 1}
  - {name: programs, per: agent, agents: [curl], rpm: 1}
"""
CHAT = {
    "model": "m",
    "messages": [{"role": "user", "content": "Repeat: the river runs past the old mill"}],
    "temperature": 0.8,
    "seed": 3,
    "max_tokens": 40,
    "stream": True,
    "ignore_eos": True,
    "stream_options": {"include_usage": True},
}
OPEN = {"path": "/chat/completions", "body": CHAT}
PATH = "/v1/slipstream/verify"


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    """A gateway with the package's test model."""
    with running_gateway(POLICY, environ=KEYS) as gateway:
        yield gateway


@pytest.fixture
async def client(gateway: Gateway) -> AsyncIterator[httpx.AsyncClient]:
    """A client of it, with Alice's key."""
    async with httpx.AsyncClient(verify=False, base_url=gateway.url, headers=_key("ALICE"), timeout=20) as client:
        yield client


def _key(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {KEYS[name]}"}


def marks(stream: bytes) -> list[DraftMark]:
    """The marks of a stream."""
    return [mark for event in split_events(stream) if (mark := read_draft_mark(event)) is not None]


def choices(stream: bytes) -> list[bytes]:
    """What clients see of a stream, but for what names the very answer."""
    events = [event for event in split_events(stream) if not event.startswith(DRAFT_MARK)]
    return [event.partition(b'"choices"')[2].partition(b'"usage"')[0] for event in events]


async def opened(client: httpx.AsyncClient, **fields: Any) -> tuple[str, bytes]:
    """A session and its first events."""
    answer = await client.post(PATH, json={**OPEN, **fields})
    assert answer.status_code == 200, answer.text
    return answer.headers["x-slipstream-session"], answer.content


async def test_rounds_tell_the_same_answer_in_fewer_steps(client: httpx.AsyncClient) -> None:
    """With right guesses, with wrong ones, and with the rest alone: the events of a plain stream."""
    plain = (await client.post("/v1/chat/completions", json=CHAT)).content
    session, first = await opened(client)
    rest = await client.post(PATH, json={"session": session, "at": 1, "alone": True})
    tokens = [token for mark in marks(first + rest.content) for token in mark.tokens]

    session, stream = await opened(client)
    at, num_rounds = 1, 0
    while b"data: [DONE]" not in stream:
        guess = tokens[at : at + 8] if num_rounds % 3 else [7, 7]
        answer = await client.post(PATH, json={"session": session, "at": at, "draft": guess})
        stream += answer.content
        at += sum(len(mark.tokens) for mark in marks(answer.content))
        num_rounds += 1

    assert choices(first + rest.content) == choices(plain)
    assert b"".join(choices(stream)).count(b"content") <= b"".join(choices(plain)).count(b"content")
    assert [token for mark in marks(stream) for token in mark.tokens] == tokens
    assert len(tokens) == 40
    assert num_rounds < len(tokens)


async def test_a_round_is_answered_once_and_told_again(client: httpx.AsyncClient) -> None:
    """The same once more is the stored reply, also of the last one; another place is a 409 that tells the right one."""
    session, _ = await opened(client, body={**CHAT, "max_tokens": 3})
    round_ = {"session": session, "at": 1, "draft": [1, 2, 3]}
    first = await client.post(PATH, json=round_)
    again = await client.post(PATH, json=round_)
    elsewhere = await client.post(PATH, json={**round_, "draft": [4]})
    last = {"session": session, "at": int(elsewhere.headers["x-slipstream-at"]), "draft": []}
    ended = await client.post(PATH, json=last)
    told_again = await client.post(PATH, json=last)
    over = await client.post(PATH, json={**last, "draft": [5]})

    assert again.content == first.content
    assert (elsewhere.status_code, elsewhere.json()["error"]["code"]) == (409, "wrong_position")
    assert b"data: [DONE]" in ended.content
    assert told_again.content == ended.content
    assert over.status_code == 404


async def test_a_session_is_of_one_key_and_ends_when_it_is_closed_or_left(
    client: httpx.AsyncClient, gateway: Gateway
) -> None:
    """Then its pages are free, and it is in the log as one call."""
    session, _ = await opened(client)
    left, _ = await opened(client, ttl_s=0.2)
    foreign = await client.post(PATH, json={"session": session, "at": 1}, headers=_key("TWIN"))
    refused = await client.post(PATH, json=OPEN, headers=_key("PLAIN"))
    closed = await client.post(PATH, json={"session": session, "close": True})
    gone = await client.post(PATH, json={"session": session, "at": 1})
    async with asyncio.timeout(10):
        while (await client.post(PATH, json={"session": left, "at": 5})).status_code != 404:
            await asyncio.sleep(0.05)
    line = await gateway.wait_log(lambda line: line.get("stream_end") == "client_gone")
    async with asyncio.timeout(10):
        while (await gateway.metrics()).value("slipstream_requests_in_flight") > 1:
            await asyncio.sleep(0.05)

    assert [each.status_code for each in (foreign, refused, closed, gone)] == [404, 403, 204, 404]
    assert line["route"] == "all"


async def test_a_key_has_so_many_sessions_and_no_more(client: httpx.AsyncClient) -> None:
    """The seventeenth is refused until one is closed; answers that are over do not count."""
    for _ in range(20):
        await opened(client, body={**CHAT, "max_tokens": 1})
    sessions = [(await opened(client))[0] for _ in range(16)]
    full = await client.post(PATH, json=OPEN)
    for session in sessions:
        await client.post(PATH, json={"session": session, "close": True})
    session, _ = await opened(client)
    await client.post(PATH, json={"session": session, "close": True})

    assert full.status_code == 429


@pytest.mark.parametrize("named", [{"x-session-id": "a-run"}, {"user-agent": "curl/8.5.0"}])
async def test_limits_of_who_opens_a_session_count_it(client: httpx.AsyncClient, named: dict[str, str]) -> None:
    """The agent run that the request names, and its program, as those of any call."""
    body = {"json": {**OPEN, "body": {**CHAT, "max_tokens": 1}}}
    answers = [await client.post(PATH, headers=named, **body) for _ in range(2)]
    unnamed = await client.post(PATH, **body)

    assert [each.status_code for each in (*answers, unnamed)] == [200, 429, 200]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"[]", 400),
        (b'{"session":"d","at":-1}', 400),
        (b'{"session":"d","at":1,"draft":[-1]}', 400),
        (b'{"session":"d","at":1,"draft":[' + b"1," * 64 + b"1]}", 400),
        (b'{"session":"d","at":1}', 404),
        (b'{"path":"/embeddings","body":{"model":"m","input":"a"}}', 400),
        (b'{"path":"/chat/completions","body":{"model":"m"}}', 400),
        (b'{"path":"/chat/completions","body":{"model":"m","messages":[]}}', 400),
        (b'{"path":"/chat/completions","body":{"model":"m","messages":[{"role":"user","content":"a"}]}}', 400),
        (b'{"path":"/chat/completions","ttl_s":0,"body":{}}', 400),
        (b"[" * 100_000, 400),
    ],
)
async def test_what_is_no_session_and_no_round_is_refused(client: httpx.AsyncClient, body: bytes, status: int) -> None:
    """With what is wrong about it."""
    answer = await client.post(PATH, content=body)

    assert answer.status_code == status
    assert answer.json()["error"]["message"]


async def test_models_that_are_elsewhere_have_no_sessions(client: httpx.AsyncClient) -> None:
    """Nobody holds their answers here; and what a model refuses it refuses here too."""
    elsewhere = await client.post(PATH, json={"path": "/chat/completions", "body": {**CHAT, "model": "other"}})
    several = await client.post(PATH, json={"path": "/chat/completions", "body": {**CHAT, "n": 2}})
    refused = await client.post(PATH, json={"path": "/chat/completions", "body": {**CHAT, "top_p": 7}})

    assert [each.status_code for each in (elsewhere, several, refused)] == [404, 404, 400]
