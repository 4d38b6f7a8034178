"""Whether a stream of events in OpenAI's words has begun to say something, and waiting until it has.

A head, a comment or an event that only names the role is no content: servers send these before they begin to work.
"""

from __future__ import annotations

from typing import Any

import msgspec

from backends.errors import UpstreamError, UpstreamErrorEvent
from backends.json_errors import NOT_JSON
from backends.protocol import Call, Operation, Reply
from backends.sse import DONE, event_data, split_events, whole_events_end
from backends.stream import StreamEnd
from policies.pool.classify import Outcome

_MAX_WORDS_CHARS = 2000
_MAX_WITHOUT_CONTENT_BYTES = 64 * 1024
"""What has sent so much is at work, whatever it says."""


async def wait_content(outcome: Outcome, call: Call) -> Outcome:
    """The outcome of an attempt at `call` once it is sure: a stream as it was, when its first content is there.

    One that breaks off, or says that it failed, before any content is an error like any other, and closed.
    """
    if not isinstance(outcome, Reply) or outcome.status >= 400 or outcome.stream is None:
        return outcome
    try:
        known = 0
        while True:
            arrived = await outcome.stream.peek(known)
            # Nothing more came: it has ended, and whoever reads it will see how.
            if len(arrived) == known or has_content(arrived, call.operation):
                return outcome
            known = len(arrived)
    except UpstreamErrorEvent as error:
        await outcome.stream.aclose(StreamEnd.ERROR)
        if call.facts.conceal is None:
            return error
        said = call.facts.conceal(error.message.encode("utf-8", "replace"))
        return UpstreamErrorEvent(said.decode("utf-8", "replace"))
    except UpstreamError as error:
        await outcome.stream.aclose(StreamEnd.ERROR)
        return error
    except BaseException:
        await outcome.aclose()
        raise


def has_content(arrived: bytes, operation: Operation) -> bool:
    """Whether some whole event of these says something.

    Raises: UpstreamErrorEvent where one says that there will be no answer.
    """
    for event in split_events(arrived[: whole_events_end(arrived)]):
        data = event_data(event)
        if data is not None and (data == DONE or _says_something(data, operation)):
            return True
    return len(arrived) > _MAX_WITHOUT_CONTENT_BYTES


def _says_something(data: bytes, operation: Operation) -> bool:
    try:
        said = msgspec.json.decode(data)
    except NOT_JSON:
        return True
    if not isinstance(said, dict):
        return True
    if said.get("error"):
        error = said["error"]
        words = error.get("message") if isinstance(error, dict) else error
        shown = words[:_MAX_WORDS_CHARS] if isinstance(words, str) else "it does not say which"
        raise UpstreamErrorEvent(f"the upstream's stream began with an error: {shown}")
    choices = said.get("choices")
    return isinstance(choices, list) and any(_is_content(choice, operation) for choice in choices)


def _is_content(choice: Any, operation: Operation) -> bool:
    if not isinstance(choice, dict) or choice.get("finish_reason"):
        return True
    if operation is Operation.COMPLETION:
        return bool(choice.get("text"))
    delta = choice.get("delta")
    return isinstance(delta, dict) and any(value for name, value in delta.items() if name != "role")
