"""What the ledger says where an upstream tells nonsense of what it used: never less than it can be believed to be."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from tests.e2e.test_ledger import wait_exported
from tests.support.gateway import Gateway, start_gateway
from tests.support.servers.anthropic_server import AnthropicServer, make_message, text_block
from tests.support.servers.openai_server import Behaviour, OpenAIServer

POLICY = """
version: 1
ledger: {{url: "sqlite:///{ledger}"}}
backends:
  up: {{type: openai, base_url: "{url}", price: {{input_per_1m: 1, output_per_1m: 9}}}}
  claude: {{type: anthropic, base_url: "{anthropic}", api_key: "env:KEY"}}
routes:
  - {{name: claude, match: {{models: [claude]}}, backends: [{{ref: claude}}]}}
  - {{name: up, match: {{models: ["*"]}}, backends: [{{ref: up}}], passthrough: {{allow: ["*"]}}}}
"""
CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"
USAGE = {"prompt_tokens": 1000, "completion_tokens": 30, "total_tokens": 1030}
TOLD = (1000, 30, False)
SAYS = "one two three four"
ZERO = b'{"prompt_tokens": 0, "completion_tokens": 0}'
LESS = {"prompt_tokens": 1, "completion_tokens": 2}
BELOW_ZERO = b'{"prompt_tokens": -1, "completion_tokens": -1}'


class Server(NamedTuple):
    """A gateway and what is behind it."""

    gateway: Gateway
    upstream: OpenAIServer
    claude: AnthropicServer
    client: httpx.AsyncClient

    async def charged(self) -> tuple[int, int, bool]:
        """Tokens of the only call, and whether they are estimated."""
        (row,) = await wait_exported(self.gateway, 1)
        assert (row["cost_usd"] is None) == (row["backend"] == "claude")
        return row["input_tokens"], row["output_tokens"], row["estimated"]


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    """One for each test."""
    async with OpenAIServer() as upstream, AnthropicServer() as claude:
        policy = POLICY.format(url=upstream.base_url, anthropic=claude.base_url, ledger=tmp_path / "ledger.sqlite3")
        async with start_gateway(policy, environ={"KEY": "sk-ant-test"}) as gateway:
            async with httpx.AsyncClient(base_url=gateway.url, verify=False, timeout=20) as client:
                yield Server(gateway, upstream, claude, client)


def asked(**fields: Any) -> dict[str, Any]:
    """A call of some 100 bytes."""
    return {"model": "asked", "messages": [{"role": "user", "content": "hi " * 10}], **fields}


def whole(*usages: bytes) -> bytes:
    """An answer that tells its usage so, as often."""
    choice = {"index": 0, "message": {"role": "assistant", "content": SAYS}, "finish_reason": "stop"}
    answer = {"id": "x", "object": "chat.completion", "created": 1, "model": "served", "choices": [choice]}
    return b"%b%b}" % (json.dumps(answer).encode()[:-1], b"".join(b', "usage": ' + usage for usage in usages))


def chunk(word: str, finish: str | None = None, **fields: Any) -> bytes:
    """An event with a word."""
    choice = {"index": 0, "delta": {"content": word}, "finish_reason": finish}
    return event({"id": "x", "object": "chat.completion.chunk", "model": "served", "choices": [choice], **fields})


def event(fields: dict[str, Any]) -> bytes:
    """One, with a blank line behind it."""
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
@pytest.mark.parametrize(
    ("usages", "tokens"),
    [
        ([json.dumps(USAGE).encode()], TOLD),
        ([BELOW_ZERO], None),
        ([b'{"prompt_tokens": 1000, "completion_tokens": -1}'], (1000, None)),
        ([b'{"prompt_tokens": 1e300, "completion_tokens": 30}'], (None, 30)),
        ([b'{"prompt_tokens": "1000", "completion_tokens": "30"}'], None),
        ([b'{"prompt_tokens": 1000.0, "completion_tokens": 30.0}'], None),
        ([b'{"prompt_tokens": %b, "completion_tokens": %b}' % (b"9" * 400, b"9" * 400)], None),
        ([b"{}"], None),
        ([b"[1000, 30]"], None),
        ([ZERO], None),
        ([ZERO, json.dumps(USAGE).encode()], TOLD),
    ],
    ids=["true", "-1", "-1 out", "1e300", "texts", "floats", "huge", "empty", "list", "zero", "twice"],
)
async def test_nonsense_in_a_whole_answer_is_no_free_call(
    server: Server, path: str, usages: list[bytes], tokens: tuple[int, int, bool] | tuple[int | None, int | None] | None
) -> None:
    """What is not told is estimated by what was sent and what came, each of the two by itself, and marked."""
    server.upstream.next(Behaviour(body=whole(*usages)))
    answer = await server.client.post(path, json=asked())
    found = await server.charged()

    assert answer.status_code == 200
    prompt, completion, is_estimated = found
    wanted_prompt, wanted_completion, *rest = tokens or (None, None)
    assert is_estimated is (not rest)
    assert prompt == wanted_prompt if wanted_prompt is not None else 10 <= prompt <= 60
    # Four words and what is around them; of what passes through unread, all of it.
    seen = range(3, 7) if path == CHAT else range(30, 301)
    assert completion == wanted_completion if wanted_completion is not None else completion in seen


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
@pytest.mark.parametrize(
    ("last", "tokens"),
    [
        ([{"choices": [], "usage": USAGE}], TOLD),
        ([{"choices": [], "usage": USAGE}, {"choices": [], "usage": json.loads(BELOW_ZERO)}], TOLD),
        ([{"choices": [], "usage": USAGE}, {"choices": [], "usage": json.loads(ZERO)}], TOLD),
        ([{"choices": [], "usage": USAGE}] * 2, TOLD),
        ([{"choices": [], "usage": USAGE}, {"choices": [], "usage": {**LESS, "completion_tokens": 0}}], TOLD),
        ([{"choices": [], "usage": USAGE}, {"choices": [], "usage": LESS}], TOLD),
        ([{"choices": [], "usage": json.loads(BELOW_ZERO)}], None),
        ([{"choices": [], "usage": {}}], None),
    ],
    ids=["true", "then -1", "then zero", "twice", "then no answer", "then less", "-1", "empty"],
)
async def test_nonsense_at_the_end_of_a_stream_takes_nothing_back(
    server: Server, path: str, last: list[dict[str, Any]], tokens: tuple[int, int, bool] | None
) -> None:
    """Twelve words came in any case."""
    words = [chunk(f"word{number} ") for number in range(12)]
    events = (*words, chunk("", "stop"), *map(event, last), b"data: [DONE]\n\n")
    server.upstream.next(Behaviour(events=events))
    answer = await server.client.post(path, json=asked(stream=True))
    prompt, completion, is_estimated = await server.charged()

    assert answer.status_code == 200
    if tokens is not None:
        assert (prompt, completion, is_estimated) == tokens
    else:
        assert is_estimated
        assert 10 <= prompt <= 60
        assert 11 <= completion <= 16


async def test_usage_of_the_beginning_is_not_that_of_the_whole(server: Server) -> None:
    """Told with the first word, and never again."""
    first = chunk("word ", usage={"prompt_tokens": 1000, "completion_tokens": 0})
    events = (first, *(chunk(f"word{number} ") for number in range(12)), chunk("", "stop"), b"data: [DONE]\n\n")
    server.upstream.next(Behaviour(events=events))
    await server.client.post(CHAT, json=asked(stream=True))
    prompt, completion, is_estimated = await server.charged()

    assert (prompt, is_estimated) == (1000, True)
    assert 6 <= completion <= 16


async def test_usage_of_the_first_choice_is_not_that_of_all(server: Server) -> None:
    """llama.cpp adds nothing up: what all choices say is estimated."""
    choices = [{"index": index, "message": {"role": "assistant", "content": SAYS * 10}} for index in range(20)]
    usage = {"prompt_tokens": 1000, "completion_tokens": 40}
    answer = {"choices": choices, "usage": usage, "timings": {"predicted_n": 40}}
    server.upstream.next(Behaviour(body=json.dumps(answer).encode()))
    await server.client.post(CHAT, json=asked(n=20))

    assert await server.charged() == (1000, 20 * len(SAYS) * 10 // 4, True)


async def test_parts_are_no_more_than_the_whole(server: Server) -> None:
    """More cached than sent, more thought than written: a price below zero would come of it."""
    parts = {"prompt_tokens_details": {"cached_tokens": 10**8}, "completion_tokens_details": {"reasoning_tokens": 99}}
    server.upstream.next(Behaviour(body=whole(json.dumps({**USAGE, **parts}).encode())))
    await server.client.post(CHAT, json=asked())
    (row,) = await wait_exported(server.gateway, 1)

    assert (row["cached_tokens"], row["reasoning_tokens"]) == (1000, 30)
    assert row["cost_usd"] == "0.00127"


@pytest.mark.parametrize("stream", [False, True])
async def test_the_model_that_has_answered_is_the_one_that_the_upstream_names(server: Server, *, stream: bool) -> None:
    """It may be another one than was asked for."""
    done = event({"choices": [], "usage": USAGE})
    server.upstream.next(
        Behaviour(events=(chunk("hi"), chunk("", "stop"), done)) if stream else Behaviour(body=whole(b"null"))
    )
    await server.client.post(CHAT, json=asked(stream=stream))
    (row,) = await wait_exported(server.gateway, 1)

    assert (row["model"], row["served"]) == ("asked", "served")


async def test_an_answer_that_says_it_is_compressed_is_estimated(server: Server) -> None:
    """Nobody has asked for that, and it may be a lie."""
    server.upstream.next(
        Behaviour(body=whole(json.dumps(USAGE).encode()), headers=(("content-encoding", "br"),), framing="length")
    )
    request = server.client.build_request("POST", CHAT, json=asked(), headers={"accept-encoding": "identity"})
    answer = await server.client.send(request, stream=True)
    await answer.aclose()
    prompt, completion, is_estimated = await server.charged()

    assert is_estimated
    assert prompt > 10
    assert completion > 30


@pytest.mark.parametrize("stream", [False, True])
async def test_nonsense_of_the_messages_api_is_estimated(server: Server, *, stream: bool) -> None:
    """The beginning of a stream tells one token of the answer, which is not all."""
    server.claude.message = make_message(text_block("word " * 60), input_tokens=1000, output_tokens=-1)
    said = await server.client.post(CHAT, json=asked(model="claude", max_tokens=100, stream=stream))
    prompt, completion, is_estimated = await server.charged()

    assert said.status_code == 200
    assert (prompt, is_estimated) == (1000, True)
    assert 30 <= completion <= 400


@pytest.mark.parametrize("at_once", [True, False])
async def test_usage_behind_the_end_of_a_stream_counts(server: Server, *, at_once: bool) -> None:
    """Some servers tell it behind `[DONE]`, at once or later: the stream is over, the bill is not."""
    ends = [b"data: [DONE]\n\n", event({"choices": [], "usage": USAGE})]
    words = [chunk(f"word{number} ") for number in range(12)]
    events = (*words, chunk("", "stop"), *([b"".join(ends)] if at_once else ends))
    server.upstream.next(Behaviour(events=events))
    answer = await server.client.post(CHAT, json=asked(stream=True))

    assert answer.text.count("word") >= 12
    assert await server.charged() == TOLD
