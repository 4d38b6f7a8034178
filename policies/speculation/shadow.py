"""What a draft would have said of answers that are over: learned off the path of calls, where nobody waits for it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing

from msgspec import structs

from backends.clock import Clock
from backends.protocol import Call
from policies.background import Background
from policies.speculation.control.controller import Controller
from policies.speculation.drafter import Drafter

_EVERY = 10
"""One answer in so many is scored once enough is known."""
_LENGTH = 8
"""Tokens that are guessed at once."""
_MOST_SCORED = 128
"""Tokens of one answer."""


def is_worth_scoring(controller: Controller, number: int) -> bool:
    """Whether the answer of that number is, of those that go on alone."""
    return not controller.acceptance.is_known or number % _EVERY == 0


class Shadow:
    """Of one draft: scores an answer at a time while nobody else asks the draft; what comes meanwhile is left."""

    def __init__(self, drafter: Drafter, clock: Clock) -> None:
        self._drafter = drafter
        self._clock = clock
        self._work = Background(1)
        self._num_passed = 0

    def is_due(self, controller: Controller) -> bool:
        """Whether the next answer that goes on alone is to be scored; asked once for each."""
        self._num_passed += 1
        return self._work.has_room and is_worth_scoring(controller, self._num_passed)

    def score(self, call: Call, prompt: Sequence[int], known: Sequence[int], controller: Controller) -> None:
        """An answer has ended: what the draft says of it is learned; what that costs is the call's."""
        self._work.start(self._score(call, list(prompt), list(known[:_MOST_SCORED]), controller))

    async def wait(self) -> None:
        """Wait until the answer that is being scored is."""
        await self._work.wait()

    async def aclose(self) -> None:
        """Break off what is being scored. Safe to call twice."""
        await self._work.aclose()

    async def _score(self, call: Call, prompt: list[int], known: list[int], controller: Controller) -> None:
        call = structs.replace(call, deadline=self._clock.now() + call.timeouts.total_s)
        place = 0
        while place < len(known) and not self._drafter.num_running:
            said: list[int] = []
            async with aclosing(self._drafter.tokens(call, [*prompt, *known[:place]], _LENGTH)) as pieces:
                async for tokens in pieces:
                    said += tokens
                    if len(said) >= _LENGTH:
                        break
            compared = list(zip(said[:_LENGTH], known[place:], strict=False))
            if not compared:
                return
            accepted = next((at for at, (one, other) in enumerate(compared) if one != other), len(compared))
            controller.scored(accepted, len(compared))
            place += accepted + 1
