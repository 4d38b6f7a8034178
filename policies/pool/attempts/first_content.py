"""Whether a stream of events in OpenAI's words has begun to say something, and waiting until it has.

A head, a comment or an event that only names the role is no content: servers send these before they begin to work.
A pool waits where a call that is not answered can still go to somebody else.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any

import msgspec

from backends.errors import FirstTokenTimeout, UpstreamCut, UpstreamError, UpstreamErrorEvent, UpstreamGarbage
from backends.json_errors import NOT_JSON
from backends.operations import Operation
from backends.protocol import Call, Reply
from backends.sse import DONE, event_data, split_events, whole_events_end
from backends.stream import StreamEnd

_MAX_WORDS_CHARS = 2000
_MAX_WITHOUT_CONTENT_BYTES = 64 * 1024
"""What has sent so much is at work, whatever it says."""
_NO_CHOICES = "the upstream's answer has no choices"
_WORDS = re.compile(rb'"(?:content|text|reasoning|reasoning_content)": ?"[^"]|"tool_calls": ?\[\{')
"""What nearly every first content has; where it is found, nothing has to be decoded."""
_BEGINNINGS = frozenset({"response.created", "response.queued", "response.in_progress"})


class _Choices(msgspec.Struct):
    choices: list[msgspec.Raw] | None = None


_decode_answer = msgspec.json.Decoder(_Choices).decode


async def wait_content(reply: Reply, call: Call, timeout_s: float) -> None:
    """Wait until the first content of a reply below 400 to `call` is there to be read, at most so long.

    Raises: UpstreamError where it breaks off or says that it failed before any content, UpstreamGarbage where it is
    whole and says nothing, FirstTokenTimeout. Then, and when cancelled, it is closed.
    """
    stream = reply.stream
    if stream is None:
        if _is_empty(reply, call.operation):
            raise UpstreamGarbage(_NO_CHOICES)
        return
    if not (reply.header(b"content-type") or b"").startswith(b"text/event-stream"):
        return
    try:
        judged = JudgedEvents(call.operation)
        arrived = await stream.peek()
        has_content = judged.has_content(arrived)
        if not has_content:
            async with asyncio.timeout(timeout_s):
                while not has_content and len(longer := await stream.peek(len(arrived))) > len(arrived):
                    arrived = longer
                    has_content = judged.has_content(arrived)
        if judged.is_empty:
            raise UpstreamGarbage(_NO_CHOICES)
        if has_content:
            return
        raise UpstreamCut("the upstream ended its stream before it had said anything")
    except TimeoutError:
        await stream.aclose(StreamEnd.STALL)
        raise FirstTokenTimeout("the upstream began a stream and said nothing within timeouts.first_token") from None
    except UpstreamErrorEvent as error:
        await stream.aclose(StreamEnd.ERROR)
        if call.facts.conceal is None:
            raise
        said = call.facts.conceal(error.message.encode("utf-8", "replace"))
        raise UpstreamErrorEvent(said.decode("utf-8", "replace")) from None
    except UpstreamError:
        await stream.aclose(StreamEnd.ERROR)
        raise
    except BaseException:
        await reply.aclose()
        raise


class JudgedEvents:
    """The events of one stream, each of which is looked at once, however small the pieces are that it comes in."""

    __slots__ = ("_end", "_has_choices", "_num_seen", "_operation", "is_empty")

    def __init__(self, operation: Operation) -> None:
        self.is_empty = False
        """It is whole, and has no choice at all: the same as no answer."""
        self._has_choices = not operation.traits.has_choices
        self._operation = operation
        self._end = 0
        self._num_seen = 0

    def has_content(self, arrived: bytes) -> bool:
        """Whether some whole event says something, of all that has arrived: what it was the last time, and more.

        Raises: UpstreamErrorEvent where one says that there will be no answer.
        """
        begin = self._end
        # A blank line that was not whole the last time began in the last three bytes of that.
        unseen = max(begin, self._num_seen - 3)
        self._num_seen = len(arrived)
        num_whole = whole_events_end(arrived[unseen:])
        if num_whole:
            self._end = end = unseen + num_whole
            is_plain = self._operation is not Operation.RESPONSES and arrived.find(b'"error"', begin) < 0
            if is_plain and _WORDS.search(arrived, begin, end):
                return True
            for event in split_events(arrived[begin:end]):
                data = event_data(event)
                if data == DONE:
                    self.is_empty = not self._has_choices
                    return True
                if data is not None and self._says_something(data):
                    return True
        return len(arrived) > _MAX_WITHOUT_CONTENT_BYTES

    def _says_something(self, data: bytes) -> bool:
        try:
            said = msgspec.json.decode(data)
        except NOT_JSON:
            return True
        if not isinstance(said, dict):
            return True
        if self._operation is Operation.RESPONSES:
            return _has_responded(said)
        if said.get("error"):
            raise _failed(said["error"])
        choices = said.get("choices")
        if not isinstance(choices, list) or not choices:
            return False
        self._has_choices = True
        return any(_is_content(choice, self._operation) for choice in choices)


def _has_responded(event: dict[str, Any]) -> bool:
    """The same of an event of the Responses API, which all have a type."""
    kind = event.get("type")
    if kind == "error" or event.get("error"):
        raise _failed(event.get("error") or event)
    if kind == "response.failed":
        response = event.get("response")
        raise _failed(response.get("error") if isinstance(response, dict) else None)
    return kind not in _BEGINNINGS


def _failed(error: Any) -> UpstreamErrorEvent:
    words = error.get("message") if isinstance(error, dict) else error
    shown = words[:_MAX_WORDS_CHARS] if isinstance(words, str) else "it does not say which"
    return UpstreamErrorEvent(f"the upstream's stream began with an error: {shown}")


def _is_empty(reply: Reply, operation: Operation) -> bool:
    """Whether a whole answer has no choice, or is none."""
    if not operation.traits.has_choices or reply.body is None:
        return False
    try:
        return not _decode_answer(reply.body).choices
    except NOT_JSON:
        # Compressed, or in words of its own: not ours to judge.
        return False


def _is_content(choice: Any, operation: Operation) -> bool:
    if not isinstance(choice, dict) or choice.get("finish_reason"):
        return True
    if operation is Operation.COMPLETION:
        return bool(choice.get("text"))
    delta = choice.get("delta")
    return isinstance(delta, dict) and any(value for name, value in delta.items() if name != "role")
