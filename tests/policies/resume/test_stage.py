"""Going on with streams that break off, over real sockets: two servers, of which the first one does not finish."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from pydantic import SecretStr

from backends.clock import SystemClock
from backends.errors import SlipstreamError, UpstreamCut
from backends.operations import Operation
from backends.protocol import Backend, Call, Timeouts
from backends.registry import Registry
from backends.resume import RESUME_FIELD, Resume, Resumed, encode_mark
from backends.stream import StreamEnd
from policies.pool.attempts.retry import RetryBudget
from policies.pool.settings import ResumePolicy
from policies.resume.stage import Resuming
from tests.support.calls import make_call
from tests.support.policy.pool import Member, make_pool
from tests.support.servers.anthropic_server import KEY, AnthropicServer, make_message, text_block
from tests.support.servers.openai_server import Behaviour, OpenAIServer, error

DONE = b"data: [DONE]\n\n"
WORDS = ("One ", "two ", "three\n", "four ", "five.")
ASKED = {"messages": [{"role": "user", "content": "count"}], "max_tokens": 20}


def chunk(delta: dict[str, Any], *, id: str = "a", finish: str | None = None, **fields: Any) -> bytes:
    """An event of a chat stream."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return b"data: " + msgspec.json.encode({"id": id, "created": 1, "choices": [choice], **fields}) + b"\n\n"


def said(words: Sequence[str], id: str = "a") -> tuple[bytes, ...]:
    """A whole chat stream."""
    begin = chunk({"role": "assistant", "content": ""}, id=id)
    usage = b'data: {"id":"%b","choices":[],"usage":{"prompt_tokens":9,"completion_tokens":3}}\n\n' % id.encode()
    end = chunk({}, id=id, finish="stop")
    return (begin, *(chunk({"content": word}, id=id) for word in words), end, usage, DONE)


def marked(words: Sequence[str], first_token: int = 0, id: str = "a") -> tuple[bytes, ...]:
    """The same from an engine behind a Slipstream: a mark behind each word, whose number is its token."""
    head = {"id": id, "created": 1, "fingerprint": "fp"}
    pieces = []
    begin = chunk({"role": "assistant", "content": ""}, id=id) if not first_token else b""
    for token, word in enumerate(words, first_token):
        pieces.append(begin + chunk({"content": word}, id=id) + encode_mark(Resume(tokens=(token,), **head)))  # type: ignore[arg-type]
        begin, head = b"", {}
    return (*pieces, chunk({}, id=id, finish="stop") + DONE)


@dataclass
class Heard:
    """What came of a call."""

    data: bytes = b""
    error: SlipstreamError | None = None

    @property
    def chunks(self) -> list[dict[str, Any]]:
        """The decoded events."""
        return [msgspec.json.decode(line[6:]) for line in self.data.splitlines() if line.startswith(b"data: {")]

    @property
    def text(self) -> str:
        """What was said."""
        choices = [choice for chunk in self.chunks for choice in chunk.get("choices", ())]
        return "".join(choice.get("delta", choice).get("content") or choice.get("text") or "" for choice in choices)

    @property
    def seams(self) -> list[bytes]:
        """Comments."""
        return [line for line in self.data.splitlines() if line.startswith(b":")]


class Stage:
    """A route's stage, its pool, and servers on sockets behind it, asked in their order."""

    def __init__(
        self, *continues: str | None, mode: str = "best_effort", attempts: int = 2, budget_percent: float = 20
    ) -> None:
        self._budget_percent = budget_percent
        self.servers = [OpenAIServer() for _ in continues]
        self._continues = continues
        self._policy = ResumePolicy.model_validate({"mode": mode, "attempts": attempts})
        self._stack = AsyncExitStack()
        self.resuming: Resuming

    async def __aenter__(self) -> Stage:
        kind = Registry().kind("openai")
        leaves: list[Backend] = []
        for server, way in zip(self.servers, self._continues, strict=True):
            await self._stack.enter_async_context(server)
            settings = {"base_url": server.base_url, "continues": way}
            leaf = kind.build(f"s{len(leaves)}", kind.config.model_validate(settings), SystemClock())
            await leaf.open()
            self._stack.push_async_callback(leaf.aclose)
            leaves.append(leaf)
        self.put_before(leaves)
        return self

    def put_before(self, leaves: Sequence[Backend]) -> None:
        """Make the stage, and the pool of these."""
        members = [Member(leaf, priority=number) for number, leaf in enumerate(leaves)]
        pool = make_pool(members, SystemClock(), retry={"attempts": 0})
        able = {leaf.name: leaf.capabilities.continues for leaf in leaves}
        budget = RetryBudget(self._budget_percent, SystemClock())
        self.resuming = Resuming(pool, self._policy, able, SystemClock(), budget)

    async def __aexit__(self, *exc_info: object) -> None:
        await self._stack.aclose()

    async def hear(self, call: Call) -> Heard:
        """The call's answer, to its end."""
        heard = Heard()
        reply = await self.resuming.send(call)
        try:
            assert reply.stream is not None
            while piece := await reply.stream.read():
                heard.data += piece
        except SlipstreamError as error:
            heard.error = error
        await reply.aclose()
        return heard


def ask(extra: dict[str, Any] | None = None, **fields: Any) -> Call:
    """A streamed call that asks for a count."""
    return make_call(extra={**ASKED, **(extra or {})}, stream=True, **fields)


@pytest.mark.parametrize("num_words", range(1, len(WORDS) + 1))
async def test_text_goes_on_wherever_it_broke_off(num_words: int) -> None:
    """The other server gets what was said as its own last message, and what it says follows, as one answer."""
    async with Stage("final_message", "final_message") as stage:
        first, second = stage.servers
        first.next(Behaviour(events=said(WORDS), cut_after_events=1 + num_words))
        second.next(Behaviour(events=said(WORDS[num_words:], id="b")))
        call = ask()

        heard = await stage.hear(call)

        begun = "".join(WORDS[:num_words])
        assert (heard.text, heard.error) == ("".join(WORDS), None)
        assert heard.seams == [b": slipstream resumed best_effort backend=s1 characters=%d" % len(begun)]
        assert {chunk["id"] for chunk in heard.chunks} == {"a"}
        assert heard.data.count(b'"role"') == heard.data.count(DONE) == heard.data.count(b'"stop"') == 1
        body = second.requests[0].json()
        assert body["messages"] == [*ASKED["messages"], {"role": "assistant", "content": begun}]  # type: ignore[misc]
        assert (body["continue_final_message"], body["add_generation_prompt"]) == (True, False)
        assert body["max_tokens"] == 20 - num_words
        assert call.facts.resumed == [
            Resumed(backend="s0", kind="best_effort", outcome="resumed", to="s1", pieces=num_words)
        ]
        assert (call.facts.backend, call.facts.attempts, call.facts.stream_end) == ("s1", 2, StreamEnd.CLEAN)
        assert call.facts.usage is not None
        assert call.facts.usage.prompt_tokens == 9


async def test_prefill_and_prompts_go_on_in_their_own_way() -> None:
    """Servers that need no telling are told nothing; a completion's prompt is made longer."""
    async with Stage("final_message", "prefill") as stage:
        stage.servers[0].next(Behaviour(events=said(WORDS), cut_after_events=3))
        await stage.hear(ask())
        assert stage.servers[1].requests[0].json()["messages"][-1] == {"role": "assistant", "content": "One two "}
        assert "continue_final_message" not in stage.servers[1].requests[0].json()
        completion = b'data: {"id":"a","choices":[{"index":0,"text":"One ","finish_reason":null}]}\n\n'
        stage.servers[0].next(Behaviour(events=(completion, DONE), cut_after_events=1))

        await stage.hear(make_call("Count: ", operation=Operation.COMPLETION, stream=True))

        assert stage.servers[1].requests[1].json()["prompt"] == "Count: One "


async def test_messages_api_goes_on_behind_a_prefill() -> None:
    """Where the operator says that its models take one: in the API's words, with what is left of the limit."""
    kind = Registry().kind("anthropic")
    async with OpenAIServer() as first, AnthropicServer() as second:
        second.message = make_message(text_block("three four"))
        first.next(Behaviour(events=said(WORDS), cut_after_events=3))
        settings = {"base_url": second.base_url, "api_key": SecretStr(KEY), "continues": "prefill"}
        openai = Registry().kind("openai")
        leaves: list[Backend] = [
            openai.build("s0", openai.config.model_validate({"base_url": first.base_url}), SystemClock()),
            kind.build("s1", kind.config.model_validate(settings), SystemClock()),
        ]
        stage = Stage()
        stage.put_before(leaves)

        heard = await stage.hear(ask())

        assert (heard.text, heard.error) == ("One two three four", None)
        body = second.requests[0].body
        assert [turn["role"] for turn in body["messages"]] == ["user", "assistant"]
        assert body["messages"][1]["content"][0]["text"] == "One two "
        assert body["max_tokens"] == 18
        assert {chunk["id"] for chunk in heard.chunks} == {"a"}
        for leaf in leaves:
            await leaf.aclose()


ERROR = b'data: {"error":{"message":"gone","type":"server_error"}}\n\n'
BREAKS = {
    "cut": Behaviour(events=said(WORDS), cut_after_events=3),
    "reset": Behaviour(events=said(WORDS), cut_after_events=3, reset=True, event_delay_s=0.02),
    "cut in an event": Behaviour(events=said(WORDS), cut_after_bytes=len(b"".join(said(WORDS)[:3])) + 20),
    "stalled": Behaviour(events=said(WORDS), stall_after_events=3),
    "error": Behaviour(events=(*said(WORDS)[:3], ERROR, DONE)),
    "no end": Behaviour(events=said(WORDS)[:3]),
}


@pytest.mark.parametrize("how", BREAKS)
async def test_every_sort_of_break_is_gone_on_with(how: str) -> None:
    """Connections that end, silence, an error event, and a stream that stops as if it were whole."""
    async with Stage("final_message", "final_message") as stage:
        stage.servers[0].next(BREAKS[how])
        stage.servers[1].next(Behaviour(events=said(WORDS[2:], id="b")))

        heard = await stage.hear(ask(timeouts=Timeouts(stream_idle_s=0.1, total_s=10.0)))

        assert (heard.text, heard.error) == ("".join(WORDS), None)
        assert b"gone" not in heard.data


async def test_stream_that_breaks_again_goes_on_again_until_attempts_are_spent() -> None:
    """For all breaks of an answer together; then it stays broken, with all that was said."""
    async with Stage("final_message", "final_message", attempts=2) as stage:
        first, second = stage.servers
        first.next(
            Behaviour(events=said(WORDS), cut_after_events=2),
            Behaviour(events=said(WORDS[2:], id="c"), cut_after_events=2),
        )
        second.next(Behaviour(events=said(WORDS[1:], id="b"), cut_after_events=2))
        call = ask()

        heard = await stage.hear(call)

        assert heard.text == "One two three\n"
        assert heard.error is not None
        assert [len(server.requests) for server in stage.servers] == [2, 1]
        assert len(heard.seams) == 2
        assert first.requests[1].json()["messages"][-1]["content"] == "One two "
        assert [each.outcome for each in call.facts.resumed or ()] == ["resumed", "resumed", "not_possible"]
        assert call.facts.stream_end is StreamEnd.UPSTREAM_CUT


@pytest.mark.parametrize("answer", [error(503), error(400), Behaviour(raw=b""), Behaviour(events=(ERROR,))])
async def test_who_cannot_go_on_leaves_the_break_as_it_was(answer: Behaviour) -> None:
    """The client hears of the first failure, and nothing of the second one."""
    async with Stage("final_message", "final_message") as stage:
        stage.servers[0].next(Behaviour(events=said(WORDS), cut_after_events=3))
        stage.servers[1].default = answer
        call = ask()

        heard = await stage.hear(call)

        assert (heard.text, heard.seams) == ("One two ", [])
        assert isinstance(heard.error, UpstreamCut)
        assert "in the middle" in heard.error.message
        assert [each.outcome for each in call.facts.resumed or ()] == ["failed"]


TOOL_CALL = {"tool_calls": [{"index": 0, "id": "x", "function": {"name": "f", "arguments": "{"}}]}
NOT_GONE_ON: dict[str, tuple[dict[str, Any], tuple[bytes, ...]]] = {
    "several answers": ({"n": 2}, said(WORDS)[:3]),
    "log-probabilities": ({"logprobs": True}, said(WORDS)[:3]),
    "a JSON schema": ({"response_format": {"type": "json_object"}}, said(WORDS)[:3]),
    "a tool call": ({}, (*said(WORDS)[:3], chunk(TOOL_CALL))),
    "thoughts": ({}, (*said(WORDS)[:2], chunk({"reasoning_content": "hm"}))),
    "a client's own beginning": ({"messages": [{"role": "assistant", "content": "0 "}]}, said(WORDS)[:3]),
    "who goes on itself": ({RESUME_FIELD: {}}, said(WORDS)[:3]),
    "what acts": ({"mcp_servers": [{"url": "https://mail.example/mcp"}]}, said(WORDS)[:3]),
    "nothing said": ({}, said(WORDS)[:1]),
    "choices that are none": ({}, (*said(WORDS)[:2], b'data: {"choices":[{"delta":"x"}]}\n\n')),
    "no JSON": ({}, (*said(WORDS)[:2], b"data: x\n\n")),
}


@pytest.mark.parametrize("what", NOT_GONE_ON)
async def test_what_is_more_than_a_text_is_not_gone_on_with_by_best_effort(what: str) -> None:
    """It breaks as without the setting: all that came is passed on, and nobody else is asked."""
    extra, events = NOT_GONE_ON[what]
    async with Stage("final_message", "final_message") as stage:
        stage.servers[0].next(Behaviour(events=events))

        heard = await stage.hear(ask(extra))

        assert heard.error is not None
        assert heard.seams == []
        assert heard.data == b"".join(events)
        assert not stage.servers[1].requests


async def test_exact_takes_nobody_who_knows_no_tokens() -> None:
    """Text is not enough."""
    async with Stage("final_message", "slipstream", None, mode="exact") as stage:
        stage.servers[0].next(Behaviour(events=said(WORDS), cut_after_events=3))
        call = ask()

        heard = await stage.hear(call)

        assert heard.error is not None
        assert not stage.servers[1].requests
        assert call.facts.resumed == [Resumed(backend="s0", kind="exact", outcome="not_possible")]


@pytest.mark.parametrize("num_words", range(1, len(WORDS) + 1))
async def test_tokens_go_on_behind_the_last_mark(num_words: int) -> None:
    """The call is sent again with head and tokens; marks are not passed on; the wait for marks costs no event."""
    async with Stage("slipstream", "slipstream", mode="exact") as stage:
        first, second = stage.servers
        loose = chunk({"content": "never heard"})
        first.next(Behaviour(events=(*marked(WORDS)[:num_words], loose)))
        second.next(Behaviour(events=marked(WORDS[num_words:], num_words)))
        call = ask()

        heard = await stage.hear(call)

        assert (heard.text, heard.error) == ("".join(WORDS), None)
        assert heard.seams == [b": slipstream resumed exact backend=s1 tokens=%d" % num_words]
        assert first.requests[0].json()[RESUME_FIELD] == {}
        begun = second.requests[0].json()[RESUME_FIELD]
        assert begun == {"id": "a", "created": 1, "fingerprint": "fp", "tokens": list(range(num_words))}
        assert call.facts.resumed == [Resumed(backend="s0", kind="exact", outcome="resumed", to="s1", tokens=num_words)]


async def test_server_that_begins_anew_instead_of_going_on_is_not_believed() -> None:
    """It is said to be a Slipstream and is none: its answer has a head of its own."""
    async with Stage("slipstream", "slipstream", mode="exact") as stage:
        stage.servers[0].next(Behaviour(events=marked(WORDS)[:2]))
        stage.servers[1].next(Behaviour(events=said(WORDS, id="b")))
        call = ask()

        heard = await stage.hear(call)

        assert heard.text == "One two "
        assert heard.error is not None
        assert [each.outcome for each in call.facts.resumed or ()] == ["failed"]


async def test_best_effort_takes_tokens_first_and_text_where_nobody_knows_them() -> None:
    """An engine that refuses, for it has other weights, is not the end where a server can go on behind the text."""
    async with Stage("slipstream", "slipstream", "final_message") as stage:
        stage.servers[0].next(Behaviour(events=marked(WORDS)[:2]))
        stage.servers[1].next(error(400))
        stage.servers[2].next(Behaviour(events=said(WORDS[2:], id="b")))
        call = ask()

        heard = await stage.hear(call)

        assert (heard.text, heard.error) == ("".join(WORDS), None)
        assert [each.kind for each in call.facts.resumed or ()] == ["best_effort"]


@pytest.mark.parametrize(("way", "is_asked"), [(None, False), ("final_message", False), ("slipstream", True)])
async def test_marks_are_asked_of_those_alone_who_know_them(way: str | None, is_asked: bool) -> None:
    """A Slipstream in front wants them; a server that may refuse what it does not know is not asked."""
    async with Stage(way) as stage:
        call = ask({RESUME_FIELD: {}})

        await stage.hear(call)

        body = stage.servers[0].requests[0].json()
        assert (RESUME_FIELD in body) == is_asked
        assert call.body is not None
        assert body.keys() | {RESUME_FIELD} >= call.body.keys()


async def test_only_server_is_asked_again() -> None:
    """Its connection was cut, not it."""
    async with Stage("slipstream", mode="exact") as stage:
        [server] = stage.servers
        server.next(Behaviour(events=marked(WORDS)[:2]), Behaviour(events=marked(WORDS[2:], 2)))

        heard = await stage.hear(ask())

        assert (heard.text, heard.error) == ("".join(WORDS), None)


@pytest.mark.parametrize("mark", [b": slipstream-resume {\n\n", b': slipstream-resume {"tokens":["a"]}\n\n'])
async def test_mark_that_cannot_be_read_breaks_the_stream(mark: bytes) -> None:
    """As other garbage does; and the stream goes on elsewhere, where that is possible."""
    async with Stage("slipstream", "slipstream", mode="exact") as stage:
        stage.servers[0].next(Behaviour(events=(*marked(WORDS)[:2], mark)))
        stage.servers[1].next(Behaviour(events=marked(WORDS[2:], 2)))

        heard = await stage.hear(ask())

        assert (heard.text, heard.error) == ("".join(WORDS), None)


async def test_answers_that_go_on_twice_stay_within_the_budget() -> None:
    """In an outage every stream breaks again; the first time is the load of who has gone, the second one is more."""
    async with Stage("final_message", "final_message", budget_percent=0) as stage:
        stage.servers[0].default = Behaviour(events=said(WORDS), cut_after_events=3)
        stage.servers[1].default = Behaviour(events=said(WORDS[2:], id="b"), cut_after_events=2)

        heard = await stage.hear(ask())

        assert (heard.text, len(heard.seams)) == ("One two three\n", 1)
        assert heard.error is not None
        assert [len(server.requests) for server in stage.servers] == [1, 1]


async def test_after_the_deadline_nobody_is_asked() -> None:
    """The whole call has its time, the rest of its answer too."""
    async with Stage("final_message", "final_message") as stage:
        stage.servers[0].next(Behaviour(events=said(WORDS), stall_after_events=3))

        heard = await stage.hear(ask(timeouts=Timeouts(total_s=0.2)))

        assert heard.error is not None
        assert not stage.servers[1].requests


async def test_client_that_leaves_while_another_is_asked_ends_both() -> None:
    """Nothing goes on for somebody who has gone."""
    async with Stage("final_message", "final_message") as stage:
        stage.servers[0].next(Behaviour(events=said(WORDS), cut_after_events=3))
        stage.servers[1].next(Behaviour(stall_before_head=True))
        task = asyncio.ensure_future(stage.hear(ask()))
        await stage.servers[1].wait_request()

        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

        await stage.servers[1].wait_disconnected()
        assert len(stage.servers[0].requests) == 1


async def test_stream_that_does_not_break_is_byte_for_byte_the_upstreams() -> None:
    """In either mode, but for the marks."""
    for mode, events in (("best_effort", said(WORDS)), ("exact", said(WORDS))):
        async with Stage("final_message", "final_message", mode=mode) as stage:
            stage.servers[0].next(Behaviour(events=events))
            assert (await stage.hear(ask())).data == b"".join(events)
