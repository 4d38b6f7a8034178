"""An upstream that counts what it takes for each question, by a price table of its own, to the last pico-dollar."""

from __future__ import annotations

from collections import defaultdict
from decimal import Decimal
from hashlib import sha256
from typing import NamedTuple

import msgspec

from tests.support.servers.openai_server import Behaviour, OpenAIServer, Received, error

_INPUT, _CACHED, _OUTPUT = Decimal("0.145"), Decimal("0.003625"), Decimal("0.29")
"""Dollars for a million tokens: a real price list whose amounts need all twelve digits."""
PRICE = f"{{input_per_1m: {_INPUT}, cached_input_per_1m: {_CACHED}, output_per_1m: {_OUTPUT}}}"


class Used(NamedTuple):
    """What an upstream has worked on, and what it takes for that in pico-dollars."""

    prompt: int = 0
    cached: int = 0
    completion: int = 0
    cost: int = 0

    def plus(self, other: Used) -> Used:
        """Both together."""
        return Used(*(mine + others for mine, others in zip(self, other, strict=True)))


class CountingUpstream(OpenAIServer):
    """Each question has its own tokens. "broken" always fails, "shaky" whenever it is asked for the first time."""

    def __init__(self) -> None:
        super().__init__()
        self.used: defaultdict[str, Used] = defaultdict(Used)
        """By question."""
        self._met: set[str] = set()

    def plan(self, received: Received) -> Behaviour:
        """Answer, and note what that costs."""
        asked = received.json()
        question = asked["messages"][-1]["content"]
        if asked["model"] == "broken" or (asked["model"] == "shaky" and question not in self._met):
            self._met.add(question)
            return error(500)
        digits = int.from_bytes(sha256(question.encode()).digest()[:6], "big")
        prompt, completion = 1000 + digits % 9001, 1 + digits // 9001 % 777
        cached = (prompt // 128 * 128) * (digits % 3 == 0)
        dollars = (_INPUT * (prompt - cached) + _CACHED * cached + _OUTPUT * completion) / 10**6
        self.used[question] = self.used[question].plus(Used(prompt, cached, completion, int(dollars * 10**12)))
        usage = {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": cached},
        }
        head = {"id": "c", "created": 1, "model": asked["model"]}
        if not asked.get("stream"):
            choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": question}}
            whole = head | {"object": "chat.completion", "choices": [choice], "usage": usage}
            return Behaviour(body=msgspec.json.encode(whole))
        piece = head | {"object": "chat.completion.chunk"}
        said = piece | {"choices": [{"index": 0, "delta": {"role": "assistant", "content": question}}]}
        end = piece | {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
        told = piece | {"choices": [], "usage": usage}
        events = [b"data: " + msgspec.json.encode(event) + b"\n\n" for event in (said, end, told)]
        return Behaviour(events=(*events, b"data: [DONE]\n\n"))
