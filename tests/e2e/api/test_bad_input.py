"""Bodies that are wrong: refused with 4xx in OpenAI's shape, the field named, nothing sent upstream."""

from __future__ import annotations

import gzip
import json
from typing import Any

import httpx
import pytest

from tests.support.errors import openai_error
from tests.support.gateway import Gateway, start_gateway
from tests.support.servers.openai_server import OpenAIServer

JSON = {"content-type": "application/json"}
MESSAGES = [{"role": "user", "content": "hi"}]
GOOD = {"model": "plain", "messages": MESSAGES}
ENDPOINTS = ["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"]

MALFORMED = {
    "empty": b"",
    "blank": b" \n\t ",
    "null": b"null",
    "array": b"[]",
    "array_of_objects": b'[{"model":"plain"}]',
    "empty_string": b'""',
    "text": b'"plain"',
    "number": b"42",
    "true": b"true",
    "half": b'{"model":"plain","messages":[{"role"',
    "trailing": b'{"model":"plain"} x',
    "two": b'{"model":"plain"}{"model":"plain"}',
    "trailing_comma": b'{"model":"plain",}',
    "single_quotes": b"{'model':'plain'}",
    "comment": b'{"model":"plain" /* no */}',
    "unquoted": b"{model:plain}",
    "form": b"model=plain&messages=hi",
    "html": b"<html></html>",
    "bom": b'\xef\xbb\xbf{"model":"plain","messages":[{"role":"user","content":"hi"}]}',
    "utf16": '{"model":"plain"}'.encode("utf-16"),
    "latin1": '{"model":"plain","messages":[{"role":"user","content":"é"}]}'.encode("latin-1"),
    "overlong_utf8": b'{"model":"plain","messages":[{"role":"user","content":"\xc0\xaf"}]}',
    "cut_utf8": b'{"model":"plain","messages":[{"role":"user","content":"\xe2\x82"}]}',
    "surrogate_bytes": b'{"model":"plain","messages":[{"role":"user","content":"\xed\xa0\x80"}]}',
    "nul": b"\x00",
    "nul_behind": b'{"model":"plain","messages":[{"role":"user","content":"hi"}]}\x00',
    "raw_control": b'{"model":"plain","messages":[{"role":"user","content":"a\nb"}]}',
    "nan": b'{"model":"plain","messages":[{"role":"user","content":"hi"}],"temperature":NaN}',
    "infinity": b'{"model":"plain","messages":[{"role":"user","content":"hi"}],"x":Infinity}',
    "minus_infinity": b'{"model":"plain","messages":[{"role":"user","content":"hi"}],"x":[-Infinity]}',
    "float_overflow": b'{"model":"plain","messages":[{"role":"user","content":"hi"}],"temperature":1e400}',
    "leading_zero": b'{"model":"plain","messages":[{"role":"user","content":"hi"}],"n":01}',
    "plus": b'{"model":"plain","messages":[{"role":"user","content":"hi"}],"n":+1}',
    "deep_arrays": b"[" * 100_000,
    "deep_closed": b'{"model":"plain","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "deep_objects": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "duplicate_top": b'{"model":"plain","model":"scripted","messages":[{"role":"user","content":"hi"}]}',
    "duplicate_escaped": b'{"model":"plain","\\u006dodel":"scripted","messages":[{"role":"user","content":"hi"}]}',
    "duplicate_nested": b'{"model":"plain","messages":[{"role":"user","role":"system","content":"hi"}]}',
    "duplicate_unknown": b'{"model":"plain","messages":[{"role":"user","content":"hi"}],"x":{"y":[{"a":1,"a":2}]}}',
    "lone_surrogate": b'{"model":"plain","messages":[{"role":"user","content":"\\ud800"}]}',
    "lone_low_surrogate": b'{"model":"plain","messages":[{"role":"user","content":"\\udc00 x"}]}',
    "surrogate_in_key": b'{"model":"plain","messages":[{"role":"user","content":"hi"}],"\\ud800":1}',
    "bad_escape": b'{"model":"plain","messages":[{"role":"user","content":"\\x41"}]}',
}


@pytest.mark.parametrize("body", MALFORMED.values(), ids=MALFORMED.keys())
async def test_body_that_is_no_json_object_is_400(
    client: httpx.AsyncClient, upstream: OpenAIServer, body: bytes
) -> None:
    """On each of the four operations."""
    for endpoint in ENDPOINTS:
        answer = await client.post(endpoint, content=body, headers=JSON)

        error = openai_error(answer, 400)
        assert error["type"] == "invalid_request_error"
        assert "the body" in error["message"] or error["param"]
    assert upstream.requests == []


WRONG_FIELDS: dict[str, tuple[dict[str, Any], str]] = {
    "model_missing": ({"messages": MESSAGES}, "model"),
    "model_null": ({"model": None, "messages": MESSAGES}, "model"),
    "model_number": ({"model": 4, "messages": MESSAGES}, "model"),
    "model_empty": ({"model": "", "messages": MESSAGES}, "model"),
    "model_list": ({"model": ["plain"], "messages": MESSAGES}, "model"),
    "model_long": ({"model": "m" * 257, "messages": MESSAGES}, "model"),
    "model_control": ({"model": "pl\x00ain", "messages": MESSAGES}, "model"),
    "model_newline": ({"model": "plain\r\nx: y", "messages": MESSAGES}, "model"),
    "messages_missing": ({"model": "plain"}, "messages"),
    "messages_null": ({"model": "plain", "messages": None}, "messages"),
    "messages_text": ({"model": "plain", "messages": "hi"}, "messages"),
    "messages_object": ({"model": "plain", "messages": {"role": "user"}}, "messages"),
    "messages_empty": ({"model": "plain", "messages": []}, "messages"),
    "message_text": ({"model": "plain", "messages": ["hi"]}, "messages[0]"),
    "message_null": ({"model": "plain", "messages": [*MESSAGES, None]}, "messages[1]"),
    "role_missing": ({"model": "plain", "messages": [{"content": "hi"}]}, "messages[0].role"),
    "role_number": ({"model": "plain", "messages": [*MESSAGES, {"role": 1, "content": "x"}]}, "messages[1].role"),
    "content_number": ({"model": "plain", "messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    "stream_text": ({**GOOD, "stream": "true"}, "stream"),
    "stream_number": ({**GOOD, "stream": 1}, "stream"),
    "stream_options_list": ({**GOOD, "stream_options": []}, "stream_options"),
    "include_usage_text": (
        {**GOOD, "stream": True, "stream_options": {"include_usage": "yes"}},
        "stream_options.include_usage",
    ),
    "temperature_text": ({**GOOD, "temperature": "hot"}, "temperature"),
    "temperature_bool": ({**GOOD, "temperature": True}, "temperature"),
    "top_p_list": ({**GOOD, "top_p": [1]}, "top_p"),
    "n_text": ({**GOOD, "n": "2"}, "n"),
    "max_tokens_object": ({**GOOD, "max_tokens": {}}, "max_tokens"),
    "max_completion_tokens_text": ({**GOOD, "max_completion_tokens": "9"}, "max_completion_tokens"),
    "tools_object": ({**GOOD, "tools": {}}, "tools"),
    "tool_choice_number": ({**GOOD, "tool_choice": 1}, "tool_choice"),
    "response_format_text": ({**GOOD, "response_format": "json"}, "response_format"),
    "stop_number": ({**GOOD, "stop": 3}, "stop"),
    "user_number": ({**GOOD, "user": 7}, "user"),
    "seed_text": ({**GOOD, "seed": "x"}, "seed"),
    "logit_bias_list": ({**GOOD, "logit_bias": [1]}, "logit_bias"),
    "metadata_text": ({**GOOD, "metadata": "m"}, "metadata"),
    "parallel_text": ({**GOOD, "parallel_tool_calls": "no"}, "parallel_tool_calls"),
}


@pytest.mark.parametrize(("body", "param"), WRONG_FIELDS.values(), ids=WRONG_FIELDS.keys())
async def test_field_of_the_wrong_type_is_named(
    client: httpx.AsyncClient, upstream: OpenAIServer, body: dict[str, Any], param: str
) -> None:
    """`param` says which, the message what it must be."""
    answer = await client.post("/v1/chat/completions", content=json.dumps(body), headers=JSON)

    error = openai_error(answer, 400)
    assert error["param"] == param
    assert param.split(".")[-1].split("[")[0] in error["message"]
    assert upstream.requests == []


@pytest.mark.parametrize(
    ("endpoint", "body", "param"),
    [
        ("/v1/embeddings", {"model": "plain"}, "input"),
        ("/v1/embeddings", {"model": "plain", "input": None}, "input"),
        ("/v1/embeddings", {"model": "plain", "input": 5}, "input"),
        ("/v1/embeddings", {"model": "plain", "input": {}}, "input"),
        ("/v1/embeddings", {"model": "plain", "input": "x", "dimensions": "8"}, "dimensions"),
        ("/v1/embeddings", {"model": "plain", "input": "x", "encoding_format": 1}, "encoding_format"),
        ("/v1/completions", {"prompt": "x"}, "model"),
        ("/v1/completions", {"model": "plain", "prompt": "x", "stop": {}}, "stop"),
        ("/v1/completions", {"model": "plain", "prompt": {}}, "prompt"),
        ("/v1/responses", {"model": 5, "input": "x"}, "model"),
        ("/v1/responses", {"model": "plain", "input": "x", "max_output_tokens": "1"}, "max_output_tokens"),
        ("/v1/responses", {"model": "plain", "input": 5}, "input"),
    ],
)
async def test_field_of_other_operations_is_named_too(
    client: httpx.AsyncClient, upstream: OpenAIServer, endpoint: str, body: dict[str, Any], param: str
) -> None:
    """Each operation has its own."""
    error = openai_error(await client.post(endpoint, json=body), 400)

    assert error["param"] == param
    assert upstream.requests == []


async def test_huge_integers_travel_as_they_are(client: httpx.AsyncClient, upstream: OpenAIServer) -> None:
    """An integer of 401 digits is JSON; whether it makes sense is the upstream's matter, and it costs nothing here."""
    huge = b"1" + b"0" * 400
    body = b'{"model":"plain","messages":[{"role":"user","content":"hi"}],"seed":%b,"x":%b}' % (huge, huge)

    answer = await client.post("/v1/chat/completions", content=body, headers=JSON)

    assert answer.status_code in (200, 400)
    if answer.status_code == 200:
        assert upstream.requests[0].body == body
    else:
        openai_error(answer, 400)


@pytest.mark.parametrize("digits", [5000, 200_000])
async def test_integer_longer_than_python_converts_is_no_crash(
    client: httpx.AsyncClient, upstream: OpenAIServer, digits: int
) -> None:
    """Python refuses to convert integers of more than 4,300 digits; that must not become a 500."""
    body = b'{"model":"cached-int","messages":[{"role":"user","content":"hi"}],"seed":%b}' % (b"9" * digits)

    answer = await client.post("/v1/chat/completions", content=body, headers=JSON)

    assert answer.status_code in (200, 400)


@pytest.mark.parametrize("model", ["plain", "cached-nul"])
async def test_escaped_nul_in_a_text_is_text(client: httpx.AsyncClient, upstream: OpenAIServer, model: str) -> None:
    """`\\u0000` is a character like others in JSON; it travels."""
    body = b'{"model":"%b","messages":[{"role":"user","content":"a\\u0000b"}]}' % model.encode()

    answer = await client.post("/v1/chat/completions", content=body, headers=JSON)

    assert answer.status_code == 200
    assert upstream.requests[0].body == body


@pytest.mark.parametrize("endpoint", ENDPOINTS)
async def test_compressed_body_is_refused_before_it_can_grow(
    client: httpx.AsyncClient, upstream: OpenAIServer, endpoint: str
) -> None:
    """A gzip bomb stays small."""
    bomb = gzip.compress(b'{"model":"plain","x":"' + b"a" * 20_000_000 + b'"}')

    answer = await client.post(endpoint, content=bomb, headers={**JSON, "content-encoding": "gzip"})

    openai_error(answer, 415)
    assert upstream.requests == []


@pytest.mark.parametrize("endpoint", ["/v1/chat/completions", "/v1/files"])
@pytest.mark.parametrize("is_chunked", [False, True])
async def test_body_over_the_limit_is_413(
    client: httpx.AsyncClient, upstream: OpenAIServer, gateway: Gateway, endpoint: str, is_chunked: bool
) -> None:
    """With a length it is known at once, without one as soon as it is passed; the limit is named."""
    num_bytes = 41 * 1024**2

    async def chunks() -> Any:
        for _ in range(41):
            yield b"x" * 1024**2

    content: Any = chunks() if is_chunked else b"x" * num_bytes
    answer = await client.post(endpoint, content=content, headers=JSON)

    error = openai_error(answer, 413)
    assert error["code"] == "request_too_large"
    assert str(40 * 1024**2) in error["message"]
    assert upstream.requests == []


async def test_body_at_the_limit_is_taken(client: httpx.AsyncClient, upstream: OpenAIServer) -> None:
    """The limit itself is allowed."""
    head = b'{"model":"scripted","messages":[{"role":"user","content":"'
    tail = b'"}],"max_tokens":1}'
    body = head + b"x" * (40 * 1024**2 - len(head) - len(tail)) + tail

    answer = await client.post("/v1/chat/completions", content=body, headers=JSON)

    assert answer.status_code == 200


async def test_unknown_model_is_404() -> None:
    """Where no route takes the model."""
    policy = """
version: 1
backends: {own: {type: scripted}}
routes: [{name: all, match: {models: ["known", "family-*"]}, backends: [{ref: own}]}]
"""
    async with start_gateway(policy) as gateway:
        async with httpx.AsyncClient(base_url=gateway.url, verify=False) as client:
            bodies: list[dict[str, Any]] = [{"messages": MESSAGES}, {"prompt": "x"}, {"input": "x"}, {"input": "x"}]
            for endpoint, body in zip(ENDPOINTS, bodies, strict=True):
                for model in ("unknown", "Known", "known ", "family"):
                    error = openai_error(await client.post(endpoint, json={**body, "model": model}), 404)
                    assert (error["code"], error["param"]) == ("model_not_found", "model")
                    assert model in error["message"]
                assert (await client.post(endpoint, json={**body, "model": "family-1"})).status_code == 200


@pytest.mark.parametrize("content_type", ["text/plain", "application/xml", "", "application/json; charset=latin-1"])
async def test_json_is_read_whatever_it_is_called(
    client: httpx.AsyncClient, upstream: OpenAIServer, content_type: str
) -> None:
    """The operations take JSON only, so what the client calls it does not matter."""
    answer = await client.post("/v1/chat/completions", content=json.dumps(GOOD), headers={"content-type": content_type})

    assert answer.status_code == 200
