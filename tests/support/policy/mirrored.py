"""Backends for mirrors: two that are right or wrong as they are told, at a price, and a judge who knows."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np

from backends.charges.charge import Charge
from backends.charges.usage import Usage
from backends.clock import Clock
from backends.operations import Operation
from backends.protocol import Call, Capabilities, Reply, Statistics, Timeouts
from policies.cache.semantic.contracts import Vector
from policies.cache.semantic.learning.comparators import Comparison
from policies.cache.semantic.sameness.forms import SURE
from policies.cache.semantic.settings import JudgePolicy
from policies.mirror.preference import PreferenceJudge
from policies.mirror.settings import MirrorPolicy
from policies.mirror.stage import Mirror
from tests.support.calls import make_call

RIGHT, WRONG = "The answer is 42.", "It is 17, I am afraid."
JUDGE = JudgePolicy(route="judge", model="judge")


def chat(text: str) -> bytes:
    """A whole answer that says so."""
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    return json.dumps({"id": "c", "object": "chat.completion", "choices": [choice]}).encode()


class Answering:
    """Says what a test decides for each call, and charges for it."""

    def __init__(self, name: str, says: Callable[[Call], str], *, cost: int = 100) -> None:
        self.name = name
        self.capabilities = Capabilities(operations=frozenset({Operation.CHAT}))
        self.says = says
        self.cost = cost
        self.calls: list[Call] = []

    async def open(self) -> None:
        """Nothing."""

    async def aclose(self) -> None:
        """Nothing."""

    def statistics(self) -> Statistics:
        """Calls taken."""
        return Statistics(sent=len(self.calls))

    async def send(self, call: Call) -> Reply:
        """Its answer, whole."""
        self.calls.append(call)
        call.facts.backend = self.name
        call.facts.usage = Usage(10, 10)
        call.facts.charge(self.name, "m").settle_at(self.cost, call.facts.usage)
        return Reply(200, [(b"content-type", b"application/json")], body=chat(self.says(call)))


class Flat:
    """An encoder for which all texts are alike."""

    dimension, fingerprint = 2, "flat"

    async def open(self) -> None:
        """Nothing."""

    async def aclose(self) -> None:
        """Nothing."""

    async def encode(self, text: str, told: Callable[[Charge], None] | None = None) -> Vector:
        """Always the same."""
        return np.array([1.0, 0.0], np.float32)

    async def compare(self, left: str, right: str) -> float:
        """Only what is equal is the same."""
        return SURE if left == right else -SURE


def knows(call: Call) -> str:
    """The judge: who has the right answer."""
    assert call.body is not None
    first, second = call.body["messages"][-1]["content"].split("Second answer:")
    has_first, has_second = RIGHT in first, RIGHT in second
    return "same" if has_first == has_second else "First." if has_first else "Second."


class Mirrored:
    """A mirror whose target and candidate are right as often as `draw` says: (target, candidate) for each call."""

    def __init__(
        self, draw: Callable[[], tuple[bool, bool]], clock: Clock, seed: int, *, cost: int = 50, **settings: Any
    ) -> None:
        self._draw = draw
        self._is_right = (True, True)
        self.target = Answering("big", lambda call: RIGHT if self._is_right[0] else WRONG)
        self.candidate = Answering("new", lambda call: RIGHT if self._is_right[1] else WRONG, cost=cost)
        self.judge = Answering("judge", knows)
        random = Random(seed)
        self.policy = MirrorPolicy.model_validate(
            {"to": "new", "share": 1.0, "max_daily_tokens": 10**12, "judge": JUDGE, "promote_when": {}, **settings}
        )
        preference = PreferenceJudge(self.judge, Timeouts(), JUDGE, clock, random)
        comparison = Comparison(Flat(), None)
        self.mirror = Mirror(
            self.target, self.candidate, self.policy, comparison, preference, clock, random, route="route"
        )

    async def ask(self, **fields: Any) -> tuple[Call, Reply]:
        """One call, and what is made of its copy."""
        self._is_right = self._draw()
        call = make_call(deadline=1e12, **fields)
        reply = await self.mirror.send(call)
        await self.mirror.wait()
        return call, reply
