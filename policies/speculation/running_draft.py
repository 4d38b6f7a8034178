"""A draft that goes on while its guesses are checked: what it says ahead is there when the verdict comes.

draft    | a b c d | e f g h | i ...
verdicts           a b c d e       it goes on: f g h are there already
                             f x   it was wrong: begun anew behind x
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import aclosing

from backends.clock import Clock
from backends.errors import SlipstreamError
from backends.protocol import Call
from policies.speculation.control.round_times import RoundTimes
from policies.speculation.drafter import Drafter
from policies.speculation.guess import Guess

_logger = logging.getLogger(__name__)
_ROUNDS_AHEAD = 4
"""A draft is asked for the tokens of so many rounds at once."""


class RunningDraft:
    """Beside one answer, asked for one round after the other. Its owner closes it; asked then, it begins anew."""

    def __init__(self, drafter: Drafter, call: Call, *, times: RoundTimes, clock: Clock) -> None:
        """What the draft takes is told to `times`."""
        self._drafter = drafter
        self._times = times
        self._clock = clock
        self._call = call
        self._is_begun = False
        self._text: list[int] = []
        """The prompt, and of the answer what was known when it began."""
        self._guess = Guess()
        self._task: asyncio.Task[None] | None = None
        self._has_said = asyncio.Event()
        self._says_end = False
        self._has_read = False
        """Whether it has the prompt already."""

    @property
    def num_ready(self) -> int:
        """Tokens that it has said, and of which nobody knows yet that they are wrong."""
        return len(self._guess.ahead) if self._is_begun else 0

    def learn(self, tokens: Sequence[int]) -> None:
        """The target has told the answer's next tokens; nothing where there is no draft."""
        if not self._is_begun:
            return
        self._guess.learn(tokens)
        if self._guess.is_wrong and self._task is not None:
            self._task.cancel()

    async def propose(self, num_tokens: int, prompt: Sequence[int], known: Sequence[int]) -> list[int] | None:
        """What it says comes next: so many tokens, or fewer where it finds the answer whole; None where it fails.

        `known`: the answer so far. With `prompt` it is where a draft begins; one that goes on has learned it.
        """
        if not self._is_begun:
            self._is_begun, self._text, self._guess = True, [*prompt, *known], Guess()
            self._says_end = self._has_read = False
        try:
            return await self._ahead(num_tokens)
        except SlipstreamError as error:
            _logger.debug("the draft of a call ended: %s", error)
        except Exception:  # a named border: a draft is a help, so its failure fails nobody
            _logger.exception("the draft of a call failed")
        return None

    async def aclose(self) -> None:
        """End it. Safe to call twice."""
        self._is_begun = False
        await self._cancel()

    async def _cancel(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            # Also takes what it has failed with, which nobody has asked for.
            await asyncio.gather(task, return_exceptions=True)

    async def _ahead(self, num_tokens: int) -> list[int]:
        guess = self._guess
        while guess.is_wrong or len(guess.ahead) < num_tokens:
            self._has_said.clear()
            if guess.is_wrong:
                await self._cancel()
            elif self._task is not None and self._task.done():
                task, self._task = self._task, None
                task.result()
            if self._task is None:
                if self._says_end and not (guess.is_wrong or guess.lag):
                    break
                self._begin(_ROUNDS_AHEAD * num_tokens)
            await self._has_said.wait()
        return guess.ahead[:num_tokens]

    def _begin(self, most: int) -> None:
        text = [*self._text, *self._guess.begin()]
        self._says_end = False
        self._task = asyncio.get_running_loop().create_task(self._listen(text, most))

    async def _listen(self, text: Sequence[int], most: int) -> None:
        num_said, num_first, began = 0, 0, self._clock.now()
        first_at = last_at = began
        try:
            async with aclosing(self._drafter.tokens(self._call, text, most)) as said:
                async for tokens in said:
                    last_at = self._clock.now()
                    if not num_said:
                        num_first, first_at = len(tokens), last_at
                    self._guess.say(tokens[: most - num_said])
                    num_said += len(tokens)
                    self._has_said.set()
                    if num_said >= most or self._guess.is_wrong:
                        return
            self._says_end = True
        finally:
            if num_said:
                first_s = first_at - began if self._has_read else None
                self._times.add_draft(first_s, num_said - num_first, last_at - first_at)
                self._has_read = True
            self._has_said.set()
