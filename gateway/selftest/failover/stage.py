"""The setup of the failover scenarios: a minimal policy with a fallback, a provider that fails, and a spare one.

`call` makes one call and returns it as the client and both upstreams have seen it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from gateway.selftest.answers import DONE, chunk, decoded, error_body, usage_chunk
from gateway.selftest.bench import chat
from gateway.selftest.client import ReceivedAnswer
from gateway.selftest.run import CHAT, Child
from gateway.selftest.upstream import Lie, LyingUpstream, ReceivedRequest

_WORDS = tuple(f"word{number} " for number in range(60))
_TEXT = "".join(_WORDS)


@dataclass(frozen=True, slots=True)
class FailoverOutcome:
    """One call as the client and the two upstreams have seen it."""

    answer: ReceivedAnswer | None
    """None if it did not end in time."""
    took_s: float
    requested_at_s: tuple[float, ...]
    """The times of the requests to the first upstream."""
    num_spare: int

    @property
    def is_rescued(self) -> bool:
        """Whether the client got the complete answer without an error."""
        answer = self.answer
        return answer is not None and answer.status == 200 and not answer.tells_error and answer.text() == _TEXT

    @property
    def is_silent(self) -> bool:
        """Whether the client could take a truncated answer for a complete one."""
        answer = self.answer
        return answer is not None and answer.status == 200 and answer.is_whole and not answer.tells_error

    @property
    def attempts(self) -> str:
        """The requests and the time, as a text for the report."""
        return f"{len(self.requested_at_s)} + {self.num_spare} asked, {self.took_s:.1f} s"

    def requests_within(self, seconds: float) -> int:
        """How many requests the first upstream received within so many seconds of the first one."""
        return sum(at - self.requested_at_s[0] < seconds for at in self.requested_at_s)


def simplest(first: str, spare: str, **sections: Any) -> dict[str, Any]:
    """A policy of one route with a fallback, and no other settings than `sections`."""
    backends = {"first": {"type": "openai", "base_url": first}, "spare": {"type": "openai", "base_url": spare}}
    route = {"name": "chat", "match": {"models": ["*"]}, "backends": [{"ref": "first"}]}
    other = {"name": "spare", "match": {"internal": True}, "backends": [{"ref": "spare"}]}
    return {
        "version": 1,
        "backends": backends,
        "routes": [{**route, "fallbacks": {"routes": ["spare"]}, **sections}, other],
    }


async def call(child: Child, first: LyingUpstream, spare: LyingUpstream, hang_s: float) -> FailoverOutcome:
    """Make one streamed chat; after `hang_s` it counts as hanging."""
    began = time.monotonic()
    before = first.num_requests, spare.num_requests
    body = chat("a story in sixty words", "m", stream=True, stream_options={"include_usage": True})
    try:
        answer = await child.ask(CHAT, body, timeout_s=hang_s)
    except TimeoutError:
        answer = None
    times = tuple(request.at_s for request in first.requests)[before[0] :]
    return FailoverOutcome(answer, time.monotonic() - began, times, spare.num_requests - before[1])


def story_pieces(model: str) -> tuple[bytes, ...]:
    """The complete answer of a model, one event in each piece."""
    words = tuple(chunk({"content": word}, model=model) for word in _WORDS)
    begin, end = chunk({"role": "assistant", "content": ""}, model=model), chunk({}, "stop", model=model)
    return (begin, *words, end, usage_chunk(len(_WORDS)), DONE)


def spare_lie(request: ReceivedRequest) -> Lie:
    """The spare upstream answers correctly, but refuses to continue an answer that another model has begun."""
    messages = decoded(request.body).get("messages") or [{}]
    if messages[-1].get("role") == "assistant":
        refusal = error_body("the conversation must end with a user message", kind="invalid_request_error")
        return Lie(status=400, pieces=(refusal,))
    return Lie(pieces=story_pieces("spare"))
