"""Draft tokens pushed onto a running answer over HTTP: the same answer in fewer steps, and nobody else's."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest

from backends.drafts.push import DRAFT_MARK, MAX_KEPT, DraftMark, read_draft_mark
from backends.sse import split_events
from tests.support.gateway import Gateway, running_gateway

pytest.importorskip("torch")

KEYS = {"ALICE": "sk-alice-0123456789", "TWIN": "sk-twin-0123456789", "BOB": "sk-bob-0123456789"}
KEYS["PLAIN"] = "sk-plain-0123456789"
POLICY = """
version: 1
backends:
  model: {type: engine, model: slipstream-target, device: cpu, dtype: float32, threads: 1, speculate: "off"}
keys:
  - {name: alice, key: "env:ALICE", tenant: a, drafts: true}
  - {name: twin, key: "env:TWIN", tenant: a, drafts: true}
  - {name: bob, key: "env:BOB", tenant: b, drafts: true}
  - {name: plain, key: "env:PLAIN", tenant: a}
routes:
  - {name: all, match: {models: ["*"]}, backends: [{ref: model}], cache: {exact: {ttl: 1h}}}
"""
ASKED = {
    "model": "m",
    "messages": [{"role": "user", "content": "Repeat: the river runs past the old mill"}],
    "temperature": 0,
    "max_tokens": 40,
    "stream": True,
    "ignore_eos": True,
}
PATH = "/v1/slipstream/draft"


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    """A gateway with the package's test model, and a cache in front of it."""
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
    found = (read_draft_mark(event) for event in split_events(stream))
    return [mark for mark in found if mark is not None]


def without_marks(stream: bytes) -> bytes:
    """The stream as others get it, but for what names the very answer."""
    return b"".join(
        event.partition(b'"choices"')[2]
        for event in split_events(stream)
        if not event.startswith((DRAFT_MARK, b'data: {"usage'))
    )


async def streamed(client: httpx.AsyncClient, drafts: list[int] | None = None, **headers: str) -> bytes:
    """A whole stream; `drafts` are pushed onto it with its first mark."""
    pieces = b""
    async with client.stream("POST", "/v1/chat/completions", json=ASKED, headers=headers) as answer:
        assert answer.status_code == 200
        async for piece in answer.aiter_raw():
            pieces += piece
            if drafts is not None and (found := marks(pieces)):
                body: Any = [{"id": found[0].id, "at": 0, "tokens": drafts}]
                pushed = await client.post(PATH, json=body)
                assert (pushed.status_code, pushed.content) == (204, b"")
                drafts = None
    return pieces


async def test_a_pushed_draft_makes_steps_fewer_and_changes_nothing(client: httpx.AsyncClient) -> None:
    """The marks tell the prompt and every token; the events between them are those of a plain stream."""
    plain = await streamed(client)
    marked = await streamed(client, **{"x-slipstream-draft": "1"})
    first, *others = marks(marked)
    tokens = [token for mark in (first, *others) for token in mark.tokens]
    drafted = await streamed(client, drafts=tokens, **{"x-slipstream-draft": "1"})
    usage = [event for event in split_events(drafted) if b'"finish_reason":"length"' in event]

    assert not marks(plain)
    assert first.id
    assert first.room == MAX_KEPT
    assert len(first.prompt) > 5
    assert len(tokens) == 40
    assert without_marks(marked).replace(b"\n", b"") != b""
    assert [token for mark in marks(drafted) for token in mark.tokens] == tokens
    assert max(len(mark.tokens) for mark in marks(drafted)) > 4
    assert len(marks(drafted)) < len(marks(marked)) / 1.5
    assert len(usage) == 1


async def test_an_answer_that_takes_drafts_is_none_of_the_cache(client: httpx.AsyncClient) -> None:
    """It is neither served from there nor kept there: its marks are of that one stream."""
    asked = {**ASKED, "max_tokens": 5, "user": "cache"}

    told = []
    for headers in ({"x-slipstream-draft": "1"}, {}, {"x-slipstream-draft": "1"}, {}):
        answer = await client.post("/v1/chat/completions", json=asked, headers=headers)
        told.append((answer.headers.get("x-cache"), bool(marks(answer.content))))

    assert told == [(None, True), ("miss", False), (None, True), ("hit", False)]


async def test_a_key_without_the_right_gets_a_plain_stream_and_no_door(client: httpx.AsyncClient) -> None:
    """It is told neither tokens nor the template of its prompt."""
    body: Any = []
    stream = await streamed(client, **{"x-slipstream-draft": "1", **_key("PLAIN")})
    refused = await client.post(PATH, json=body, headers=_key("PLAIN"))

    assert not marks(stream)
    assert refused.status_code == 403
    assert refused.json()["error"]["code"] == "not_allowed"


async def test_a_draft_for_an_answer_of_somebody_else_is_for_none(client: httpx.AsyncClient) -> None:
    """Another tenant, another key of the same one, an id that never was, and the answer's own key once it is over."""
    async with client.stream(
        "POST", "/v1/chat/completions", json={**ASKED, "max_tokens": 400}, headers={"x-slipstream-draft": "1"}
    ) as answer:
        arriving, pieces = answer.aiter_raw(), b""
        while not (found := marks(pieces)):
            pieces += await anext(arriving)
        draft = {"id": found[0].id, "at": 0, "tokens": [1]}
        told = [await client.post(PATH, json=[draft], headers=_key(name)) for name in ("BOB", "TWIN", "ALICE")]
        told.append(await client.post(PATH, json=[{**draft, "id": "d-never"}]))
        async for _ in arriving:
            pass
    told.append(await client.post(PATH, json=[draft]))

    assert [each.status_code for each in told] == [404, 404, 204, 404, 404]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b'{"id":"d","at":0,"tokens":[1]}',
        b'[{"id":"d","at":-1,"tokens":[1]}]',
        b'[{"id":"d","at":0,"tokens":[-1]}]',
        b'[{"id":"d","at":0,"tokens":["1"]}]',
        b'[{"id":"d","at":0,"tokens":[4294967296]}]',
        b'[{"id":"d","at":0,"tokens":[' + b"1," * 300 + b"1]}]",
        b"[" + b'{"id":"d","at":0,"tokens":[]},' * 300 + b'{"id":"d","at":0,"tokens":[]}]',
        b"[" * 100_000,
    ],
)
async def test_a_body_that_is_no_list_of_drafts_is_refused(client: httpx.AsyncClient, body: bytes) -> None:
    """With a 400, whatever is wrong with it."""
    answer = await client.post(PATH, content=body)

    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith("the body is no list of drafts")


async def test_other_methods_and_paths_are_refused(client: httpx.AsyncClient) -> None:
    """As everywhere."""
    told = [
        (await client.get(PATH)).status_code,
        (await client.post("/v1/slipstream/other", json=[])).status_code,
        (await client.post(PATH, content=b"[" + b" " * 2**20 + b"]")).status_code,
    ]

    assert told == [405, 404, 413]
