"""Web pages in the browser of a machine that runs a gateway without keys: they spend nothing and learn nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.support.faults import CHAT, CaseServer, Setting, setting
from tests.support.http_client import Answer, HttpClient, chat_body

_BODY = chat_body()
_PATHS = [
    CHAT,
    "/v1/models",
    "/metrics",
    "/ready?verbose",
    "/v1/cache/entries",
    "/v1/files/f-1",
    "/health",
    "//v1/models",
]
_FOREIGN = {
    "another site": "origin: https://evil.example",
    "a page in a sandbox": "origin: null",
    "another port of this machine": "origin: http://localhost:3000",
    "a name that begins like ours": "origin: http://127.0.0.1.evil.example:{port}",
    "no origin at all": "origin:",
    "a request without an origin": "sec-fetch-site: cross-site",
    "two origins": "origin: http://127.0.0.1:{port}\r\norigin: https://evil.example",
}
_NAMES = {
    "localhost:{port}": 200,
    "LOCALHOST": 200,
    "localhost.": 200,
    "app.localhost:8080": 200,
    "127.0.0.1:{port}": 200,
    "127.8.8.8": 200,
    "[::1]:{port}": 200,
    "host.docker.internal:{port}": 200,
    "gateway": 200,
    "evil.example:{port}": 403,
    "localhost.evil.example": 403,
    "127.0.0.1.evil.example": 403,
    "10.0.0.1:{port}": 403,
    "[fe80::1]": 403,
    "[::1": 200,
    "evil.example:80:localhost": 403,
    "127.0.0.1@evil.example": 403,
    "": 403,
    "\xff": 403,
}


@pytest.fixture(scope="module")
def open_() -> Iterator[Setting]:
    """A gateway without keys that lets the pages of one origin in."""
    with setting(environ={"SLIPSTREAM_CORS_ORIGINS": "https://app.example"}) as made:
        yield made


@pytest.fixture
async def upstream(open_: Setting) -> AsyncIterator[CaseServer]:
    """The upstream of that gateway."""
    async with CaseServer(open_.ports[0]) as server:
        yield server


async def _ask(setting: Setting, method: str, path: str, fields: str, host: str = "127.0.0.1:{port}") -> Answer:
    port = setting.gateway.port
    fields = fields.replace("{port}", str(port))
    lines = [f"{method} {path} HTTP/1.1", *([f"host: {host}".replace("{port}", str(port))] if host != "none" else [])]
    lines += [*([fields] if fields else []), f"content-length: {len(_BODY)}", "connection: close"]
    client = await HttpClient.open(port)
    client.send("\r\n".join([*lines, "", ""]).encode("latin-1") + _BODY)
    answer = await client.answer()
    await client.wait(lambda: client.is_closed)
    return answer


@pytest.mark.parametrize("who", _FOREIGN)
@pytest.mark.parametrize("path", _PATHS)
async def test_page_is_refused_on_every_path(open_: Setting, upstream: CaseServer, who: str, path: str) -> None:
    """403 that says what to set, whatever the method; the upstream is not asked."""
    for method in ("GET", "POST", "OPTIONS", "DELETE"):
        answer = await _ask(open_, method, path, _FOREIGN[who])
        error = answer.error() or {}

        assert (answer.status, error["code"]) == (403, "origin_not_allowed")
        assert "sec-fetch" in _FOREIGN[who] or "SLIPSTREAM_CORS_ORIGINS" in error["message"]
        assert not answer.header(b"access-control-allow-origin")
    assert not upstream.num_asked


@pytest.mark.parametrize(
    "fields",
    [
        "content-type: application/x-www-form-urlencoded",
        "content-type: application/json",
        "content-type: application/json\r\norigin: https://app.example\r\nsec-fetch-site: cross-site",
        "content-type: application/json\r\norigin: http://127.0.0.1:{port}\r\nsec-fetch-site: same-origin",
        "sec-fetch-site: none",
        "",
    ],
    ids=["curl", "a client", "an allowed page", "its own page", "the address bar", "nothing"],
)
@pytest.mark.usefixtures("upstream")
async def test_others_are_answered(open_: Setting, fields: str) -> None:
    """curl's own content type, programs, allowed pages, what a user types."""
    assert (await _ask(open_, "POST", CHAT, fields)).status == 200


@pytest.mark.parametrize("content_type", ["text/plain", "Text/Plain; charset=utf-8"])
async def test_plain_text_is_not_read(open_: Setting, upstream: CaseServer, content_type: str) -> None:
    """What a page may send anywhere without asking, from browsers that say nothing of the page either."""
    answer = await _ask(open_, "POST", CHAT, f"content-type: {content_type}")

    assert answer.status == 403
    assert "application/json" in (answer.error() or {})["message"]
    assert not upstream.num_asked


@pytest.mark.parametrize("host", _NAMES)
@pytest.mark.usefixtures("upstream")
async def test_gateway_answers_under_its_own_names(open_: Setting, host: str) -> None:
    """A foreign name that leads here was made to (DNS rebinding): its page would pass for the gateway's own."""
    for _ in range(2):
        answer = await _ask(open_, "POST", CHAT, "", host)

        assert answer.status == _NAMES[host]
        assert answer.status == 200 or "SLIPSTREAM_ALLOWED_HOSTS" in (answer.error() or {})["message"]


@pytest.mark.usefixtures("upstream")
async def test_second_name_is_refused_and_none_is_not(open_: Setting) -> None:
    """No browser leaves it out; probes of HTTP/1.0 do."""
    twice = await _ask(open_, "POST", CHAT, "host: localhost")
    never = await _ask(open_, "POST", CHAT, "", "none")

    assert (twice.status, never.status) == (403, 200)


async def test_with_keys_nobody_is_asked_where_he_comes_from() -> None:
    """A page has no key, and keyed gateways have names that they do not know."""
    keys = [{"name": "k", "key": "env:KEY", "tenant": "t"}]
    with setting(environ={"KEY": "sk-k-0123456789"}, keys=keys) as keyed:
        async with CaseServer(keyed.ports[0]):
            fields = "authorization: Bearer sk-k-0123456789\r\ncontent-type: text/plain\r\norigin: https://any.example"
            answer = await _ask(keyed, "POST", CHAT, fields, "llm.example")
            without = await _ask(keyed, "POST", CHAT, "", "llm.example")

    assert (answer.status, without.status) == (200, 401)


async def test_every_page_may_call_where_all_origins_are_allowed() -> None:
    """`*`, which whoever runs it has chosen."""
    with setting(environ={"SLIPSTREAM_CORS_ORIGINS": "*", "SLIPSTREAM_ALLOWED_HOSTS": "*"}) as wide:
        async with CaseServer(wide.ports[0]):
            fields = "content-type: application/json\r\norigin: null\r\nsec-fetch-site: cross-site"
            answer = await _ask(wide, "POST", CHAT, fields, "llm.example")

    assert (answer.status, answer.header(b"access-control-allow-origin")) == (200, b"*")
