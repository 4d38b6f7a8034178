"""The draft's part in a call: for which calls it may answer, what they ask, how it is asked, whose facts count then."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from backends.clock import Clock
from backends.errors import SlipstreamError
from backends.operations import Operation
from backends.protocol import Backend, Call, Facts, Reply
from policies.acting import only_answers
from policies.speculation.outcome import STAGE_HEADER, DraftOutcome

SHARE_OF_TIME = 0.5
"""Of what is left of a call: the target has to have time, whatever the draft does."""
_DEMANDING = ("tools", "functions", "audio", "prediction")
"""Fields that ask for more than a text, which no calibration on prompts speaks of."""


class ShareOfTime(NamedTuple):
    """When an answer has to be over (monotonic seconds), and in how many seconds it has to begin; None: by then."""

    deadline: float
    begins_within_s: float | None


class DraftAnswer(NamedTuple):
    """An answer of the draft, below 400, and what was learned on its way."""

    reply: Reply
    facts: Facts


def prompt_of(call: Call) -> str | None:
    """What is asked: the texts of a conversation but for the system's, or a prompt. None where it is no single text
    that one text answers.
    """
    body = call.body
    if body is None or call.pinned or body.get("n") not in (None, 1) or any(body.get(field) for field in _DEMANDING):
        return None
    if not only_answers(call):
        return None
    if call.operation is Operation.COMPLETION:
        prompt = body.get("prompt")
        return prompt if isinstance(prompt, str) and prompt and body.get("best_of") in (None, 1) else None
    messages = body.get("messages") if call.operation is Operation.CHAT else None
    if not isinstance(messages, list):
        return None
    texts = [_text_of(message) for message in messages if not _is_of_system(message)]
    return "\n".join(text for text in texts if text is not None) if texts and None not in texts else None


def share_of_time(call: Call, clock: Clock, *, is_passed_on: bool = True) -> ShareOfTime:
    """For whoever is asked before the target. Nobody follows a stream that is passed on, once it has begun."""
    now = clock.now()
    half_s = (call.deadline - now) * SHARE_OF_TIME
    return ShareOfTime(call.deadline, half_s) if call.stream and is_passed_on else ShareOfTime(now + half_s, None)


async def ask_draft(draft: Backend, call: Call, clock: Clock, *, is_passed_on: bool = True) -> DraftAnswer | None:
    """The draft's answer; None where it has none. What it costs is the call's all the same.

    `is_passed_on`: a stream goes to the client as it comes.
    """
    facts = call.facts.apart()
    deadline, limit_s = share_of_time(call, clock, is_passed_on=is_passed_on)
    try:
        async with asyncio.timeout(limit_s):
            reply = await draft.send(msgspec.structs.replace(call, facts=facts, deadline=deadline))
    except (SlipstreamError, TimeoutError):
        return None
    finally:
        call.facts.attempts += facts.attempts
    if reply.status < 400:
        return DraftAnswer(reply, facts)
    await reply.aclose()
    return None


def mark(call: Call, reply: Reply, outcome: DraftOutcome) -> Reply:
    """The same answer, which says who has given it."""
    call.facts.draft = outcome
    reply.headers = [*(field for field in reply.headers if field[0] != STAGE_HEADER), (STAGE_HEADER, outcome.stage)]
    return reply


def _is_of_system(message: Any) -> bool:
    return isinstance(message, Mapping) and message.get("role") in ("system", "developer")


def _text_of(message: Any) -> str | None:
    """The text of a message; None where it has something else, or nothing."""
    content = message.get("content") if isinstance(message, Mapping) else None
    if isinstance(content, str):
        return content or None
    if not isinstance(content, list) or not content:
        return None
    texts = [part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else None for part in content]
    return (
        "\n".join(text for text in texts if isinstance(text, str)) if all(isinstance(t, str) for t in texts) else None
    )
