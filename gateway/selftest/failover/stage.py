"""Where the scenarios of failover play: the simplest policy that has somewhere else to go, a provider that fails, and a
spare one; and one call there, as the client and both upstreams saw it."""

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
    """One call as the client saw it, and as the two upstreams did."""

    answer: ReceivedAnswer | None
    """None where it had not ended in time."""
    took_s: float
    asked_at_s: tuple[float, ...]
    """When the first upstream was asked."""
    num_spare: int

    @property
    def is_rescued(self) -> bool:
        """The whole answer, and nothing that says otherwise."""
        answer = self.answer
        return answer is not None and answer.status == 200 and not answer.tells_error and answer.text() == _TEXT

    @property
    def is_silent(self) -> bool:
        """Half an answer that looks whole."""
        answer = self.answer
        return answer is not None and answer.status == 200 and answer.is_whole and not answer.tells_error

    @property
    def attempts(self) -> str:
        """For people."""
        return f"{len(self.asked_at_s)} + {self.num_spare} asked, {self.took_s:.1f} s"

    def asked_within(self, seconds: float) -> int:
        """How often the first upstream was asked in the first seconds."""
        return sum(at - self.asked_at_s[0] < seconds for at in self.asked_at_s)


def simplest(first: str, spare: str, **sections: Any) -> dict[str, Any]:
    """A route that has somewhere else to go, and says nothing more about it."""
    backends = {"first": {"type": "openai", "base_url": first}, "spare": {"type": "openai", "base_url": spare}}
    route = {"name": "chat", "match": {"models": ["*"]}, "backends": [{"ref": "first"}]}
    other = {"name": "spare", "match": {"internal": True}, "backends": [{"ref": "spare"}]}
    return {
        "version": 1,
        "backends": backends,
        "routes": [{**route, "fallbacks": {"routes": ["spare"]}, **sections}, other],
    }


async def call(child: Child, first: LyingUpstream, spare: LyingUpstream, hang_s: float) -> FailoverOutcome:
    """One streamed chat, given up after `hang_s`."""
    began = time.monotonic()
    before = first.num_asked, spare.num_asked
    body = chat("a story in sixty words", "m", stream=True, stream_options={"include_usage": True})
    try:
        answer = await child.ask(CHAT, body, timeout_s=hang_s)
    except TimeoutError:
        answer = None
    times = tuple(asked.at_s for asked in first.asked)[before[0] :]
    return FailoverOutcome(answer, time.monotonic() - began, times, spare.num_asked - before[1])


def told(model: str) -> tuple[bytes, ...]:
    """The whole answer of a model, an event a piece."""
    words = tuple(chunk({"content": word}, model=model) for word in _WORDS)
    begin, end = chunk({"role": "assistant", "content": ""}, model=model), chunk({}, "stop", model=model)
    return (begin, *words, end, usage_chunk(len(_WORDS)), DONE)


def spare_lie(asked: ReceivedRequest) -> Lie:
    """How the spare one answers: honestly, but that it goes on with nobody else's words."""
    messages = decoded(asked.body).get("messages") or [{}]
    if messages[-1].get("role") == "assistant":
        refusal = error_body("the conversation must end with a user message", kind="invalid_request_error")
        return Lie(status=400, pieces=(refusal,))
    return Lie(pieces=told("spare"))
