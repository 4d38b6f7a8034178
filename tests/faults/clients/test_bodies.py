"""Bodies that are too much: refused early, and what is taken is bounded."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.support.faults import CHAT, CaseServer, Setting, setting
from tests.support.http_client import HttpClient, chat_body, request_bytes
from tests.support.servers.openai_server import Behaviour

_MIB = 1024**2


@pytest.fixture(scope="module")
def small() -> Iterator[Setting]:
    """A gateway that takes 8 MiB."""
    with setting(environ={"SLIPSTREAM_MAX_BODY": "8MiB"}) as made:
        yield made


@pytest.fixture
async def upstream(small: Setting) -> AsyncIterator[CaseServer]:
    """The upstream of that gateway."""
    async with CaseServer(small.ports[0]) as server:
        yield server


@pytest.fixture
async def client(small: Setting) -> AsyncIterator[HttpClient]:
    """A connection to that gateway."""
    made = await HttpClient.open(small.gateway.port)
    yield made
    made.close()
    await asyncio.sleep(0)


@pytest.mark.usefixtures("upstream")
async def test_body_announced_too_large_is_refused_before_it_comes(small: Setting, client: HttpClient) -> None:
    """413 as soon as the head is there."""
    head = request_bytes(CHAT, b"").replace(b"content-length: 0", b"content-length: %d" % (100 * _MIB))
    client.send(head)
    answer = await client.answer(timeout_s=2)

    assert answer.status == 413
    assert (answer.error() or {})["code"] == "request_too_large"


@pytest.mark.usefixtures("upstream")
async def test_chunked_body_without_end_is_refused_at_the_limit(small: Setting, client: HttpClient) -> None:
    """What was not announced is counted; the gateway never holds much more than it takes."""
    before_mib = small.gateway.rss_mib()
    client.send(request_bytes(CHAT, b"").replace(b"content-length: 0", b"transfer-encoding: chunked"))
    chunk = b"%x\r\n%b\r\n" % (_MIB, b" " * _MIB)
    for _ in range(100):
        client.send(chunk)
        await asyncio.sleep(0)
    answer = await client.answer(timeout_s=5)

    assert answer.status == 413
    assert small.gateway.rss_mib() - before_mib <= 4 * 8


async def test_body_near_the_limit_reaches_the_upstream_whole(
    small: Setting, upstream: CaseServer, client: HttpClient
) -> None:
    """The other side of the limit."""
    body = chat_body("x" * (8 * _MIB - 100))
    answer = await client.post(CHAT, body)

    assert answer.status == 200
    assert [received.body for received in upstream.last.values()] == [body]


async def test_body_of_many_tokens_reaches_the_upstream_whole(upstream: CaseServer, client: HttpClient) -> None:
    """A list of numbers may be long, and one that is read in a thread is read like others."""
    body = chat_body(x=[1] * 1_990_000) + b" " * _MIB
    answer = await client.post(CHAT, body)

    assert answer.status == 200
    assert [received.body for received in upstream.last.values()] == [body]


@pytest.mark.usefixtures("upstream")
async def test_many_large_bodies_leave_nothing_behind(small: Setting) -> None:
    """Memory is given back, or used again, when they are answered."""
    body = chat_body("x" * (4 * _MIB))
    sizes = []
    for _ in range(16):
        client = await HttpClient.open(small.gateway.port)
        assert (await client.post(CHAT, body)).status == 200
        client.close()
        sizes.append(small.gateway.rss_mib())

    # The one before may still be on its way out when memory is looked at; eight that stay would be 32 MiB.
    assert min(sizes[-4:]) - min(sizes[4:8]) <= 16


async def longest_stall_s(port: int, body: bytes, path: str = CHAT, status: int = 200) -> float:
    """The longest that /health takes while that body is sent and answered."""
    probe, poster = await HttpClient.open(port), await HttpClient.open(port)
    posting = asyncio.create_task(poster.post(path, body, timeout_s=30))
    longest_s = 0.0
    while not posting.done():
        started_at = time.monotonic()
        probe.send(b"GET /health HTTP/1.1\r\nhost: gateway\r\n\r\n")
        await probe.answer()
        longest_s = max(longest_s, time.monotonic() - started_at)
    assert (await posting).status == status
    probe.close()
    poster.close()
    await asyncio.sleep(0)
    return longest_s


@pytest.mark.alone
@pytest.mark.timed
async def test_large_string_holds_other_calls_up_only_briefly(small: Setting, upstream: CaseServer) -> None:
    """An image of 7 MB in a call is read in less than 50 ms (the best of three: others use this machine too)."""
    upstream.default = Behaviour(body=b"{}")
    body = chat_body("A" * (7 * _MIB))

    assert min([await longest_stall_s(small.gateway.port, body) for _ in range(3)]) <= 0.05


@pytest.mark.alone
@pytest.mark.timed
@pytest.mark.parametrize(
    "members",
    [b'{"a":1},' * 900_000, b"{%b}," % b",".join(b'"%x":0' % index for index in range(700_000))],
    ids=["objects", "names"],
)
@pytest.mark.parametrize("path", [CHAT, "/v1/rerank"])
async def test_large_body_of_small_members_holds_other_calls_up_only_briefly(
    small: Setting, path: str, members: bytes
) -> None:
    """The same size in a million members: to decode that would take up to two seconds, so it is refused before."""
    body = chat_body()[:-1] + b',"x":[' + members[:-1] + b"]}"

    assert min([await longest_stall_s(small.gateway.port, body, path, 413) for _ in range(3)]) <= 0.05


@pytest.mark.parametrize("case", ["form", "refused"])
@pytest.mark.usefixtures("upstream")
async def test_bodies_are_let_go_of_with_their_requests(small: Setting, case: str) -> None:
    """Also of calls that pass through or are refused: none waits for the garbage collector, which seldom looks."""
    if case == "form":
        form = b'--x\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\n%b\r\n--x--\r\n'
        body = form % (b"a" * 4 * _MIB)
        head = b"POST /v1/audio/transcriptions HTTP/1.1\r\nhost: gateway\r\ncontent-length: %d\r\n" % len(body)
        request = head + b"content-type: multipart/form-data; boundary=x\r\n\r\n" + body
    else:
        request = request_bytes(CHAT, chat_body("x" * (4 * _MIB), temperature="hot"))
    sizes = []
    for _ in range(16):
        client = await HttpClient.open(small.gateway.port)
        client.send(request)
        assert (await client.answer()).status == (200 if case == "form" else 400)
        client.close()
        sizes.append(small.gateway.rss_mib())

    assert min(sizes[-4:]) - min(sizes[4:8]) <= 16
