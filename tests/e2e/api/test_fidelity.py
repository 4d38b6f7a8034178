"""What goes in comes out, byte for byte: bodies and headers, both ways."""

from __future__ import annotations

import base64
import json
import zlib

import httpx
import pytest

from tests.e2e.conftest import ENVIRON
from tests.support.servers.openai_server import Behaviour, OpenAIServer

ODD_BODY = (
    b'{ "zeta":1e5 ,\t"model" : "plain","messages":[{"content":"caf\\u00e9 \xf0\x9f\x98\x80 \\ud83d\\ude00 \\/",'
    b'"role":"user","x":null}],\r\n "temperature":0.10, "top_p":1E0,"chat_template_kwargs":{"b":1,"a":2}, "top_k":-0,'
    b' "verbosity":null,"seed":18446744073709551615, "n":1.0}\n'
)
ANSWER = b'{"usage" : {"prompt_tokens":3, "completion_tokens":1},\n "zeta": 1.50, "choices":[ ],"null":null}'
CHAT = b'{"model":"plain","messages":[{"role":"user","content":"a"}]'
JSON = {"content-type": "application/json"}
SECRETS = (ENVIRON["DEV_KEY"], "secret-cookie")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"])
async def test_request_body_reaches_the_upstream_as_it_came(
    client: httpx.AsyncClient, upstream: OpenAIServer, path: str
) -> None:
    """Key order, spacing, escapes, number forms, nulls and unknown fields are the client's."""
    body = ODD_BODY.replace(b'"top_k"', b'"input":"x", "prompt":"x", "top_k"')
    upstream.next(Behaviour(body=ANSWER))

    answer = await client.post(path, content=body, headers=JSON)

    assert upstream.requests[0].body == body
    assert answer.content == ANSWER


async def test_stream_body_is_the_clients_but_for_the_usage_option(
    client: httpx.AsyncClient, upstream: OpenAIServer
) -> None:
    """The gateway asks for usage by putting one field in; every other byte stays."""
    body = ODD_BODY.replace(b'"top_k"', b'"stream":true, "top_k"')

    await client.post("/v1/chat/completions", content=body, headers=JSON)

    received = upstream.requests[0]
    assert received.json()["stream_options"] == {"include_usage": True}
    assert received.body.replace(b'"stream_options":{"include_usage":true},', b"", 1) == body


async def test_stream_options_of_the_client_keep_what_else_they_hold(
    client: httpx.AsyncClient, upstream: OpenAIServer
) -> None:
    """Only include_usage is changed, unknown options travel."""
    rest = b' , "stream":true,"model":"plain","messages":[{"role":"user","content":"a"}]}'
    body = b'{"stream_options": {"include_obfuscation":false}' + rest

    await client.post("/v1/chat/completions", content=body, headers=JSON)

    received = upstream.requests[0]
    assert received.json()["stream_options"] == {"include_obfuscation": False, "include_usage": True}
    assert received.body.startswith(b'{"stream_options": {')
    assert received.body.endswith(rest)


async def test_stream_that_asks_for_usage_itself_is_not_touched(
    client: httpx.AsyncClient, upstream: OpenAIServer
) -> None:
    """Nothing changes, so nothing is changed."""
    body = CHAT + b' ,"stream": true, "stream_options":{"include_usage": true}}'

    await client.post("/v1/chat/completions", content=body, headers=JSON)

    assert upstream.requests[0].body == body


@pytest.mark.parametrize("escaped", [b'"alias"', b'"\\u0061lias"'])
async def test_renamed_model_is_the_only_change(
    client: httpx.AsyncClient, upstream: OpenAIServer, escaped: bytes
) -> None:
    """A route's `model` replaces the top-level field and not its namesakes in texts, keys and nested objects."""
    body = ODD_BODY.replace(b'"plain"', escaped).replace(
        b'"top_k"', b'"metadata":{"model":"alias","t":"\\"model\\":\\"alias\\""}, "top_k"'
    )

    await client.post("/v1/chat/completions", content=body, headers=JSON)

    assert upstream.requests[0].body == body.replace(escaped, b'"real/model \\"x\\""', 1)


async def test_twenty_megabytes_of_image_pass(client: httpx.AsyncClient, upstream: OpenAIServer) -> None:
    """A data URL of 20 MB is no reason to refuse or to change anything."""
    image = base64.b64encode(bytes(range(256)) * 80_000).decode()
    part = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{image}"}}
    body = json.dumps({"model": "plain", "messages": [{"role": "user", "content": [part]}]}).encode()
    upstream.next(Behaviour(body=ANSWER))

    answer = await client.post("/v1/chat/completions", content=body, headers=JSON)

    assert len(body) > 27_000_000
    assert answer.status_code == 200
    assert upstream.requests[0].body == body


async def test_stream_bytes_come_back_as_they_were_sent(client: httpx.AsyncClient, upstream: OpenAIServer) -> None:
    """Comments, CRLF, missing spaces, odd JSON, UTF-8 cut between pieces: nothing is rebuilt."""
    events = (
        b": ping\n\n",
        b'data:{"choices":[{"delta":{"content":"caf\xc3',
        b'\xa9"},"index":0,"finish_reason":null}]}\r\n\r\n',
        b'event: chunk\nid: 7\ndata: {"choices":[],"x-filter":{"a" : 1.0}}\n\n',
        b"data: not json\n\n",
        b"retry: 10\n\n: bye\n\n",
        b'data: {"choices":[{"delta":{},"index":0,"finish_reason":"stop"}]}\n\ndata:',
        b" [DONE]\n\n",
    )
    upstream.next(Behaviour(events=events, event_delay_s=0.005))
    body = CHAT + b',"stream":true,"stream_options":{"include_usage":true}}'

    answer = await client.post("/v1/chat/completions", content=body, headers=JSON)

    assert answer.content == b"".join(events)
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"


async def test_one_event_of_a_megabyte_passes(client: httpx.AsyncClient, upstream: OpenAIServer) -> None:
    """A long event is an event, with and without the usage filter."""
    event = b'data: {"choices":[{"delta":{"content":"%b"},"index":0,"finish_reason":"stop"}]}\n\n' % (b"x" * 2**20)
    upstream.next(Behaviour(events=(event, b"data: [DONE]\n\n")))

    answer = await client.post(
        "/v1/chat/completions", json={"model": "plain", "messages": [{"role": "user", "content": "a"}], "stream": True}
    )

    assert answer.content == event + b"data: [DONE]\n\n"


async def test_compressed_answer_is_left_alone(client: httpx.AsyncClient, upstream: OpenAIServer) -> None:
    """An upstream that compresses although it was asked not to is passed on with its own header and length."""
    upstream.next(Behaviour(body=ANSWER, gzip=True))

    async with client.stream(
        "POST", "/v1/chat/completions", content=ODD_BODY, headers={**JSON, "accept-encoding": "gzip"}
    ) as answer:
        raw = b"".join([piece async for piece in answer.aiter_raw()])

    assert answer.headers["content-encoding"] == "gzip"
    assert int(answer.headers["content-length"]) == len(raw)
    assert zlib.decompress(raw, wbits=31) == ANSWER
    assert upstream.requests[0].header("accept-encoding") == "identity"


async def test_headers_that_mean_something_upstream_travel(client: httpx.AsyncClient, upstream: OpenAIServer) -> None:
    """Feature flags and trace context; no others that the policy does not name."""
    sent = {
        "openai-beta": "assistants=v2",
        "anthropic-beta": "x",
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "tracestate": "vendor=1",
    }
    kept_here = {
        "openai-organization": "org-1",
        "user-agent": "my-app/1.0",
        "x-stainless-lang": "python",
        "x-custom": "v",
        "idempotency-key": "idem-1",
        "accept-language": "fr",
    }

    await client.post("/v1/chat/completions", content=ODD_BODY, headers={**JSON, **sent, **kept_here})

    received = upstream.requests[0]
    assert {name: received.header(name) for name in sent} == sent
    assert not [name for name, value in kept_here.items() if received.header(name) == value]


async def test_headers_that_concern_the_gateway_alone_stay_here(
    client: httpx.AsyncClient, upstream: OpenAIServer
) -> None:
    """Credentials, cookies, hop-by-hop fields, and what describes the client's connection."""
    sent = {
        "cookie": "session=secret-cookie",
        "x-api-key": ENVIRON["DEV_KEY"],
        "api-key": ENVIRON["DEV_KEY"],
        "connection": "keep-alive, x-hop",
        "x-hop": "1",
        "keep-alive": "timeout=5",
        "te": "trailers",
        "proxy-authorization": "Basic c2VjcmV0",
        "x-forwarded-for": "10.1.2.3",
        "x-real-ip": "10.1.2.3",
        "forwarded": "for=10.1.2.3",
        "origin": "https://app.example",
        "referer": "https://app.example/page",
        "cache-control": "no-cache",
    }

    await client.post("/v1/chat/completions", content=ODD_BODY, headers={**JSON, **sent})

    received = upstream.requests[0]
    names = [name for name, _ in received.headers]
    assert received.header("authorization") == f"Bearer {ENVIRON['UPSTREAM_KEY']}"
    assert names.count("authorization") == names.count("host") == names.count("content-length") == 1
    assert not set(names) & (set(sent) - {"connection"})
    assert not any(secret in value for _, value in received.headers for secret in SECRETS)


async def test_answers_headers_come_back_but_for_the_upstreams_own(
    client: httpx.AsyncClient, upstream: OpenAIServer
) -> None:
    """Limits, timings and unknown fields are for the client; cookies, framing and CORS of the upstream are not."""
    kept = {
        "retry-after": "7",
        "retry-after-ms": "7000",
        "x-ratelimit-limit-requests": "100",
        "x-ratelimit-remaining-tokens": "9",
        "x-ratelimit-reset-tokens": "6m0s",
        "openai-processing-ms": "12",
        "openai-organization": "org",
        "openai-version": "2020-10-01",
        "x-custom": "v",
    }
    dropped = {
        "set-cookie": "__cf=1",
        "server": "cloudflare",
        "alt-svc": "h3",
        "strict-transport-security": "max-age=1",
        "access-control-allow-origin": "*",
        "keep-alive": "timeout=5",
    }
    own = (("x-request-id", "req_upstream"), ("server-timing", "model;dur=5"))
    upstream.next(Behaviour(body=ANSWER, headers=(*kept.items(), *dropped.items(), *own)))

    answer = await client.post("/v1/chat/completions", content=ODD_BODY, headers={**JSON, "x-request-id": "mine-1"})

    assert {name: answer.headers[name] for name in kept} == kept
    assert not set(answer.headers) & set(dropped)
    assert answer.headers.get_list("x-request-id") == ["mine-1"]
    assert answer.headers["x-upstream-request-id"] == "req_upstream"
    timings = ", ".join(answer.headers.get_list("server-timing"))
    assert "gw;dur=" in timings
    assert "upstream;dur=" in timings
    assert "model;dur=5" in timings


async def test_hop_by_hop_fields_named_by_the_upstream_stay_behind(
    client: httpx.AsyncClient, upstream: OpenAIServer
) -> None:
    """What `connection` names concerns one hop only."""
    raw = (
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: x-hop\r\nx-hop: 1\r\n"
        b"content-length: %d\r\n\r\n%b" % (len(ANSWER), ANSWER)
    )
    upstream.next(Behaviour(raw=raw))

    answer = await client.post("/v1/chat/completions", content=ODD_BODY, headers=JSON)

    assert answer.content == ANSWER
    assert "x-hop" not in answer.headers


async def test_json_without_its_content_type_is_sent_on_with_it(
    client: httpx.AsyncClient, upstream: OpenAIServer
) -> None:
    """`curl -d` calls JSON a form; servers insist on the name."""
    await client.post(
        "/v1/chat/completions", content=ODD_BODY, headers={"content-type": "application/x-www-form-urlencoded"}
    )

    received = upstream.requests[0]
    assert [value for name, value in received.headers if name == "content-type"] == ["application/json"]
    assert received.body == ODD_BODY


async def test_status_other_than_200_comes_back(client: httpx.AsyncClient, upstream: OpenAIServer) -> None:
    """201 and 202 are answers too."""
    upstream.next(Behaviour(status=202, body=ANSWER))

    answer = await client.post("/v1/responses", json={"model": "plain", "input": "x", "background": True})

    assert (answer.status_code, answer.content) == (202, ANSWER)


@pytest.mark.parametrize("model", ["plain", "cached"])
async def test_fingerprint_that_only_the_usage_chunk_names_reaches_who_asked_for_no_usage(
    client: httpx.AsyncClient, upstream: OpenAIServer, model: str
) -> None:
    """vLLM names it in the last event: without usage that is the one that finishes. New, and from the cache."""
    begins = b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":null}]}\n\n'
    finishes = b'"id":"c","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
    usage = b'data: {"id":"c","choices":[],"usage":{"prompt_tokens":1},"system_fingerprint":"fp-7"}\n\n'
    done = b"data: [DONE]\n\n"
    upstream.default = Behaviour(events=(begins, b"data: {" + finishes, usage, done))
    messages = [{"role": "user", "content": f"fingerprint {model}"}]
    expected = begins + b'data: {"system_fingerprint":"fp-7",' + finishes + done

    answers = [
        await client.post("/v1/chat/completions", json={"model": model, "messages": messages, "stream": True})
        for _ in range(2)
    ]

    assert [answer.content for answer in answers] == [expected] * 2
    assert len(upstream.requests) == (1 if model == "cached" else 2)
