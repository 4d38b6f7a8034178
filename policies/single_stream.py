"""Which calls ask for one answer, and which replies are streams whose events can be read."""

from __future__ import annotations

from backends.protocol import Call, Reply


def asks_for_one_answer(call: Call) -> bool:
    """Whether there is one prompt, and one answer to it is wanted; not where the body is not known."""
    body = call.body
    if body is None:
        return False
    prompt = body.get("prompt")
    is_one_prompt = not isinstance(prompt, list) or all(isinstance(token, int) for token in prompt)
    return is_one_prompt and body.get("n") in (None, 1) and body.get("best_of") in (None, 1)


def has_readable_events(reply: Reply) -> bool:
    """Whether it is a stream of events that can be read."""
    is_sse = (reply.header(b"content-type") or b"").startswith(b"text/event-stream")
    is_plain = reply.header(b"content-encoding") in (None, b"identity")
    return reply.status < 400 and reply.stream is not None and is_sse and is_plain
