"""Any body at all: answered or refused in OpenAI's shape, never a failure of the gateway itself, never a hang."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.errors import openai_error
from tests.support.gateway import running_gateway

ENDPOINTS = ["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses", "/v1/moderations"]
FIELDS = [
    "model", "messages", "stream", "stream_options", "input", "prompt", "n", "temperature", "tools", "tool_choice",
    "max_tokens", "user", "metadata", "stop", "logit_bias", "response_format", "dimensions", "encoding_format", "x",
]  # fmt: skip
GOOD: dict[str, Any] = {
    "model": "scripted",
    "messages": [{"role": "user", "content": "hi"}],
    "input": "hi",
    "prompt": "hi",
    "stream": False,
    "max_tokens": 3,
}

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=True) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)
_MUTATED = st.builds(
    lambda changes, dropped: {name: value for name, value in {**GOOD, **changes}.items() if name not in dropped},
    st.dictionaries(st.sampled_from(FIELDS), _JSON, max_size=4),
    st.sets(st.sampled_from(FIELDS), max_size=2),
).map(lambda body: json.dumps(body).encode())
_SPOILED = st.builds(
    lambda body, at, num_dropped, junk: body[: at % len(body)] + junk + body[at % len(body) + num_dropped :],
    _MUTATED,
    st.integers(0, 10_000),
    st.integers(0, 4),
    st.binary(max_size=6),
)
BODIES = st.one_of(_MUTATED, _SPOILED, st.binary(max_size=200), _JSON.map(lambda value: json.dumps(value).encode()))
CONTENT_TYPES = st.sampled_from(["application/json", "text/plain", "multipart/form-data; boundary=x", ""])


POLICY = """
version: 1
backends: {own: {type: scripted}}
routes:
  - {name: cached, match: {models: ["scripted"]}, backends: [{ref: own}], cache: {exact: {ttl: 1m}}}
  - {name: all, match: {models: ["*"]}, backends: [{ref: own}]}
"""

Ask = Callable[[str, bytes, str], httpx.Response]


@pytest.fixture(scope="module")
def ask() -> Iterator[Ask]:
    """Send one body to a gateway that answers by itself."""
    with running_gateway(POLICY) as gateway, httpx.Client(base_url=gateway.url, verify=False, timeout=5) as client:
        yield lambda endpoint, body, content_type: client.post(
            endpoint, content=body, headers={"content-type": content_type}
        )
        assert "Traceback" not in gateway.stderr


@settings(max_examples=max(2_000, 10 * settings().max_examples))
@given(endpoint=st.sampled_from(ENDPOINTS), body=BODIES, content_type=CONTENT_TYPES)
def test_any_body_is_answered_or_refused(ask: Ask, endpoint: str, body: bytes, content_type: str) -> None:
    """200 with what the operation answers, or 4xx as OpenAI would say it."""
    answer = ask(endpoint, body, content_type)

    if answer.status_code == 200:
        assert isinstance(json.loads(body), dict)
        assert answer.content
    else:
        assert openai_error(answer)["type"] == "invalid_request_error"
        assert answer.status_code < 500
