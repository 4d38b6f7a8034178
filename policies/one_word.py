"""Asking a model for one word: how verdicts are got that nothing cheaper can give."""

from __future__ import annotations

import msgspec

from backends.clock import Clock
from backends.errors import SlipstreamError
from backends.json_errors import NOT_JSON
from backends.operations import Operation
from backends.protocol import Backend, Call, Facts, Timeouts

_MAX_CALL_S = 30.0


class _Message(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    message: _Message


class _Answer(msgspec.Struct):
    choices: list[_Choice]


def word_call(task: str, asked: str, model: str, route: str, timeouts: Timeouts, clock: Clock) -> Call:
    """A call of the gateway's own that wants one word. Raises: UnicodeEncodeError for half a surrogate pair."""
    messages = [{"role": "system", "content": task}, {"role": "user", "content": asked}]
    body = {"model": model, "messages": messages, "temperature": 0, "max_tokens": 4}
    return Call(
        operation=Operation.CHAT,
        path="/chat/completions",
        raw=msgspec.json.encode(body),
        body=body,
        model=model,
        deadline=clock.now() + min(timeouts.total_s, _MAX_CALL_S),
        facts=Facts(),
        headers=[(b"content-type", b"application/json")],
        route=route,
        cache_control="no-store",
        timeouts=timeouts,
    )


async def ask_word(backend: Backend, call: Call) -> str | None:
    """The word, in lower case and without its punctuation; None where there is none.

    Never raises but for cancellation.
    """
    try:
        reply = await backend.send(call)
        try:
            return _word_of(reply.body) if reply.status == 200 else None
        finally:
            await reply.aclose()
    except SlipstreamError:
        return None


def _word_of(body: bytes | None) -> str | None:
    try:
        choices = msgspec.json.decode(body or b"", type=_Answer).choices
    except NOT_JSON:
        return None
    text = choices[0].message.content if choices else None
    return text.strip().strip(".!\"'").casefold() if text else None
