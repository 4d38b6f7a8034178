"""Ways round a budget: requests that are to have a model work without its being metered, byte by byte.

Each stands by itself: a name, and what goes over the wire. Who tries them gives each a request id of its own.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

_JSON = "content-type: application/json"
_FORM = "multipart/form-data; boundary=b"
_ASK: dict[str, Any] = {
    "model": "m",
    "messages": [{"role": "user", "content": "hi"}],
    "prompt": "hi",
    "input": "hi",
    "query": "hi",
    "documents": ["a", "b"],
    "max_tokens": 1,
}
_BODY = json.dumps(_ASK).encode()
_CONTINUED = {"previous_response_id": "r", "conversation": "c", "store": True}
_CHAT = "/v1/chat/completions"


@dataclass(frozen=True, slots=True)
class Attempt:
    """One way. `is_free`: it has no model work, so that it may go on for nothing while there is a budget.

    `is_reading`: it only reads or ends what there is, which a spent budget does not keep from anybody.
    """

    name: str
    method: str = "POST"
    target: str = _CHAT
    body: bytes = _BODY
    headers: tuple[str, ...] = (_JSON,)
    version: str = "HTTP/1.1"
    is_chunked: bool = False
    is_free: bool = False
    is_reading: bool = False
    group: str = field(default="", kw_only=True)

    def request(self, key: str, request_id: str) -> bytes:
        """Its bytes, on a connection of its own."""
        lines = [f"{self.method} {self.target} {self.version}", "host: gateway", "connection: close"]
        lines += [f"x-request-id: {request_id}", *self.headers]
        if not any(line.lower().startswith(("authorization", "x-api-key", "api-key")) for line in self.headers):
            lines.append(f"authorization: Bearer {key}")
        body = self.body
        if self.is_chunked:
            lines.append("transfer-encoding: chunked")
            body = b"".join(b"%x\r\n%b\r\n" % (1, body[at : at + 1]) for at in range(len(body))) + b"0\r\n\r\n"
        elif body:
            lines.append(f"content-length: {len(body)}")
        head = "\r\n".join([*(line.replace("KEY", key) for line in lines), "", ""])
        return head.encode("utf-8") + body


def attempts() -> Iterator[Attempt]:
    """All of them."""
    yield from _operations()
    yield from _spellings()
    yield from _methods()
    yield from _other_calls()
    yield from _bodies()
    yield from _headers()


def _body(**fields: Any) -> bytes:
    return json.dumps({**_ASK, **fields}).encode()


def _deep(levels: int) -> list[dict[str, Any]]:
    """A message in the content of a message, and so on."""
    message: dict[str, Any] = {"role": "user", "content": "hi"}
    for _ in range(levels):
        message = {"role": "user", "content": [{"type": "tool_result", "content": [message]}]}
    return [message]


def _form(*parts: tuple[str, bytes]) -> bytes:
    return (
        b"".join(
            b'--b\r\ncontent-disposition: form-data; name="%b"%b\r\n\r\n%b\r\n'
            % (name.encode(), b'; filename="f"' if name in ("file", "image") else b"", value)
            for name, value in parts
        )
        + b"--b--\r\n"
    )


def _operations() -> Iterator[Attempt]:
    for path in ("chat/completions", "completions", "embeddings", "responses"):
        for target in (f"/v1/{path}", f"/{path}", f"/v1/{path}/", f"//v1//{path}", f"http://evil.example/v1/{path}"):
            yield Attempt(target, target=target, group="operation")
    yield Attempt("HTTP/1.0", version="HTTP/1.0", group="operation")
    yield Attempt("chunked, a byte each", is_chunked=True, group="operation")
    for query in (
        "stream=true&max_tokens=9999&_method=GET",
        "model=m&model=other",
        "n=1&n=100&n[]=100",
        "%6eodel=m",
        "?",
    ):
        yield Attempt(f"?{query}", target=f"{_CHAT}?{query}", group="operation")
    for name, value in _CONTINUED.items():
        yield Attempt(f"response with {name}", target="/v1/responses", body=_body(**{name: value}), group="operation")
    yield Attempt("response that goes on", target="/v1/responses", body=_body(**_CONTINUED), group="operation")
    yield Attempt("fragment", target=f"{_CHAT}#x", group="operation")


def _spellings() -> Iterator[Attempt]:
    for target in (
        *("/v1/Chat/Completions", "/V1/chat/completions", "/CHAT/COMPLETIONS", "/v1/RESPONSES", "/v1/Embeddings/"),
        *("/chat/completions;x", "/v1/chat/completions;jsessionid=1", "/v1/chat;x/completions", "/v1;x/responses"),
        *("/v1/chat%2fcompletions", "/v1/chat%2Fcompletions", "/v1%2fchat/completions", "/v1/chat/complet%69ons"),
        *("/v1/%63hat/completions", "/v1/chat/completions%20", "/v1/chat/completions%00", "/v1/chat/completions%0a"),
        *("/v1/./chat/completions", "/v1/x/../chat/completions", "/v1/chat/./completions", "/v1/files/../responses"),
        *("/v1/chat/completions.", "/v1/chat/completions/.", "/v1/chat/completions..;/", "/v1/\\chat/completions"),
        *("/v1/v1/chat/completions", "/v1/v1/v1/responses", "/v1/%76%31/embeddings", "/v1/chat/%2e/completions"),
        *(
            "/v1/chat/%EF%BD%83ompletions",
            "/v1/re%C5%BFponses",
            "/v1/chat%EF%BC%8Fcompletions",
            "/v1/chat/completions/",
        ),
        *("/v1/chat%252fcompletions", "/v1/chat/completions%2f", "/v1/chat/completions%3f", "/v1/chat/completions,x"),
        *("/v1/engines/m/completions", "/v1/openai/deployments/m/chat/completions", "/v1/chat/completions/x"),
        *("/v1/chat/completions/chatcmpl-x", "/v1/chat/completions/batch", "/v1/chat/completions/BATCH"),
        *("/v1/chat/completions:stream", "/v1/responses/x/y", "/v1/models/m:generateContent", "/v1/Messages"),
        *("/v1/message%73", "/v1/RERANK", "/v1/audio/Speech", "/v1/audio//speech"),
    ):
        yield Attempt(target, target=target, is_free=target.endswith("completions/chatcmpl-x"), group="spelling")


def _methods() -> Iterator[Attempt]:
    for method in ("PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "HEAD", "post", "PoSt", "QUERY"):
        for target in (_CHAT, "/v1/responses"):
            yield Attempt(f"{method} {target}", method=method, target=target, group="method")
    for override in ("x-http-method-override: POST", "x-http-method: POST", "x-method-override: POST"):
        for method in ("GET", "DELETE", "PUT"):
            yield Attempt(
                f"{method} with {override}",
                method=method,
                headers=(_JSON, override),
                group="method",
            )
    yield Attempt("GET with a body", method="GET", group="method")
    for method, target in (("PUT", "/v1/messages"), ("PATCH", "/v1/rerank"), ("PUT", "/v1/files/f")):
        yield Attempt(f"{method} {target}", method=method, target=target, group="method")


def _other_calls() -> Iterator[Attempt]:
    for path in (
        *("messages", "rerank", "score", "classify", "pooling", "moderations", "responses/compact", "audio/speech"),
        *("audio/transcriptions", "audio/translations", "images/generations", "images/edits", "images/variations"),
        *("batches", "messages/batches", "vector_stores", "vector_stores/v/search", "threads/runs", "threads/t/runs"),
        *("threads/t/runs/r/submit_tool_outputs", "fine_tuning/jobs", "fine_tuning/jobs/j/resume", "videos"),
        *("videos/v/remix", "containers", "realtime/sessions", "realtime/client_secrets", "evals", "evals/e/runs"),
        *("skills/x", "organization/projects", "completions/x", "embeddings/x", "nobody/knows"),
        *(
            "realtime/calls",
            "realtime/transcription_sessions",
            "responses/r",
            "responses/r/input_items",
            "responses/r/x",
        ),
    ):
        yield Attempt(f"POST {path}", target=f"/v1/{path}", group="other call")
        yield Attempt(f"POST {path}, streamed", target=f"/v1/{path}", body=_body(stream=True), group="other call")
    for path in (
        *("messages/count_tokens", "responses/input_tokens", "tokenize", "detokenize", "files", "uploads"),
        *("conversations", "threads", "assistants"),
    ):
        yield Attempt(f"POST {path}", target=f"/v1/{path}", is_free=True, group="other call")
    for method, path in (
        *(("POST", "responses/r/cancel"), ("POST", "batches/b/cancel"), ("DELETE", "files/f"), ("GET", "responses/r")),
        *(("GET", "files/f/content"), ("GET", "batches/b"), ("GET", "responses"), ("HEAD", "chat/completions")),
        *(("GET", "responses/r?stream=true&starting_after=1"), ("GET", "responses/r/input_items"), ("GET", "videos/v")),
    ):
        yield Attempt(f"{method} {path}", method, f"/v1/{path}", b"", is_reading=True, group="reading")
    yield Attempt("GET nobody/knows", "GET", "/v1/nobody/knows", b"", group="other call")
    sound = _form(("model", b"m"), ("file", b"\x00" * 64))
    for path in ("audio/transcriptions", "images/edits", "rerank", "messages"):
        yield Attempt(
            f"form to {path}", target=f"/v1/{path}", body=sound, headers=(f"content-type: {_FORM}",), group="other call"
        )
    line = json.dumps({"custom_id": "1", "method": "POST", "url": _CHAT, "body": _ASK}).encode()
    lines = _form(("purpose", b"batch"), ("file", b"\n".join([line] * 3)))
    yield Attempt(
        "lines of a batch",
        target="/v1/files",
        body=lines,
        headers=(f"content-type: {_FORM}",),
        is_free=True,
        group="other call",
    )
    upgrade = ("connection: upgrade", "upgrade: websocket", "sec-websocket-version: 13", "sec-websocket-key: eA==")
    for path in ("realtime?model=m", "responses", "chat/completions", "nobody/knows"):
        yield Attempt(f"WebSocket to {path}", "GET", f"/v1/{path}", b"", headers=upgrade, group="other call")
    asked = json.dumps({"input_file_id": "file-of-another", "endpoint": _CHAT, "completion_window": "24h"}).encode()
    yield Attempt("batch of a file of another key", target="/v1/batches", body=asked, group="other call")


def _bodies() -> Iterator[Attempt]:
    for name, body, target in (
        ("n", _body(n=100), _CHAT),
        ("n as text", _body(n="100"), _CHAT),
        ("best_of", _body(best_of=100), "/v1/completions"),
        ("many prompts", _body(prompt=["a"] * 100), "/v1/completions"),
        ("max_tokens beside max_completion_tokens", _body(max_completion_tokens=10**6), _CHAT),
        ("max_tokens as text", _body(max_tokens="1"), _CHAT),
        ("max_tokens huge", _body(max_tokens=10**30), _CHAT),
        ("max_tokens below 0", _body(max_tokens=-1), _CHAT),
        ("model in capitals", _body(model="M"), _CHAT),
        ("model of full width", _body(model="\uff4d"), _CHAT),
        ("model with a blank", _body(model=" m"), _CHAT),
        ("two models", b'{"model":"m",' + _body(model="other")[1:], _CHAT),
        ("two max_tokens", b'{"max_tokens":1,' + _body(max_tokens=9)[1:], _CHAT),
        ("two models, escaped", b'{"mod\\u0065l":"m",' + _body(model="other")[1:], _CHAT),
        ("stream without its usage", _body(stream=True, stream_options={"include_usage": False}), _CHAT),
        ("stream as a number", _body(stream=1), _CHAT),
        ("background", _body(background=True), "/v1/responses"),
        ("background, streamed", _body(background=True, stream=True), "/v1/responses"),
        ("a search that is billed by the use", _body(tools=[{"type": "web_search"}]), "/v1/responses"),
        ("search options", _body(web_search_options={}), _CHAT),
        ("two models of a message", b'{"model":"m",' + _body(model="other")[1:], "/v1/messages"),
        ("a list", b"[" + _BODY + b"]", "/v1/messages"),
        ("UTF-16", json.dumps(_ASK).encode("utf-16"), "/v1/messages"),
        ("a byte order mark", b"\xef\xbb\xbf" + _BODY, "/v1/messages"),
        ("Infinity", _BODY[:-1] + b',"max_tokens":Infinity}', "/v1/messages"),
        ("two choices of n", b'{"n":1,' + _body(n=100)[1:], _CHAT),
        ("two of stream", b'{"stream":true,' + _body(stream=False)[1:], "/v1/messages"),
        ("deep", b'{"x":' + b"[" * 10**4 + b"]" * 10**4 + b"," + _BODY[1:], "/v1/messages"),
        ("deep content", _body(messages=_deep(90)), "/v1/messages"),
        ("a text beyond Unicode", _BODY[:-1] + b',"user":"\\ud800"}', "/v1/messages"),
        ("a prompt that is kept", _body(prompt={"id": "pmpt_1"}), "/v1/responses"),
        ("other models beside its own", _body(models=["dear"]), _CHAT),
        ("tools of a provider", _body(tools=[{"type": "openrouter:web_search"}]), _CHAT),
        ("tools without a type", _body(tools=[{"google_search": {}}]), _CHAT),
        ("tags", _body(tags=["other"], metadata={"tags": ["other"], "team": "other", "session_id": "other"}), _CHAT),
        ("user", _body(user="somebody else"), _CHAT),
    ):
        yield Attempt(name, target=target, body=body, group="body")
    for number in ("-0", "-0.0", "0", "1e400", "-1e400", "NaN", "1E2", "0.5", "9" * 400, '"9"', "null", "true", "[9]"):
        for field_name in ("max_tokens", "n", "best_of"):
            body = _BODY.replace(b'"max_tokens": 1', b'"%b": %b' % (field_name.encode(), number.encode()))
            for target in (_CHAT, "/v1/messages"):
                yield Attempt(f"{field_name} {number[:9]} to {target}", target=target, body=body, group="body")
    for target in (_CHAT, "/v1/messages", "/v1/rerank"):
        for kind in ("text/plain", "application/x-www-form-urlencoded", "application/octet-stream", "", "a/b, x/json"):
            yield Attempt(
                f"{kind or 'no type'} to {target}", target=target, headers=(f"content-type: {kind}",), group="body"
            )
        for coding in ("gzip", "GZIP", "identity, gzip", "x-gzip", "identity"):
            coded = (_JSON, f"content-encoding: {coding}")
            body = _BODY if coding == "identity" else gzip.compress(_BODY)
            yield Attempt(f"{coding} to {target}", target=target, body=body, headers=coded, group="body")
            yield Attempt(f"{coding} chunked to {target}", "POST", target, body, coded, is_chunked=True, group="body")
        for name, body in (("UTF-16", json.dumps(_ASK).encode("utf-16")), ("a mark", b"\xef\xbb\xbf" + _BODY)):
            yield Attempt(f"{name}, chunked, to {target}", target=target, body=body, is_chunked=True, group="body")
        yield Attempt(
            f"two types to {target}", target=target, headers=(_JSON, "content-type: text/plain"), group="body"
        )


def _headers() -> Iterator[Attempt]:
    for header in (
        *("x-session-id: forged", "session_id: forged", "x-claude-code-session-id: forged", "user-agent: Slipstream"),
        *("x-forwarded-for: 127.0.0.1", "x-forwarded-host: internal", "x-original-url: /v1/models", "forwarded: for=x"),
        *("x-rewrite-url: /v1/models", "cache-control: no-cache", "cache-control: no-store", "range: bytes=0-0"),
        *("accept-encoding: gzip", "accept: audio/mpeg", "expect: 100-continue", "te: trailers", "x-priority: high"),
        *("openai-organization: other", "x-slipstream-tenant: other", "x-ratelimit-limit-tokens: 999999", "x-cost: 0"),
        *("authorization: bearer KEY", "authorization: BEARER  KEY", "x-api-key: KEY", "api-key: KEY"),
        *("AUTHORIZATION: Bearer KEY", "X-Api-Key: KEY", "X-SESSION-ID: Forged", "Session_Id: forged", "USER: other"),
        *("x-session-id: a\r\nx-session-id: b", "x-session-id:", "session-id: " + "s" * 256, "session-id: \x7f"),
        *("x-tags: other", "x-team: other", "x-tenant: other", "x-key: other", "x-user: other", "x-budget: 999"),
        *("openai-project: other", "anthropic-beta: fast-mode", "openai-beta: realtime=v1", "x-stainless-lang: other"),
        *("content-length: 1", "transfer-encoding: gzip, chunked", "transfer-encoding: xchunked", "trailer: x-cost"),
        *("authorization: Bearer KEY\r\nauthorization: Bearer KEY", "authorization: Bearer KEY\r\nx-api-key: other"),
    ):
        for target in (_CHAT, "/v1/messages"):
            yield Attempt(f"{header!r} to {target}", target=target, headers=(_JSON, header), group="header")
