"""What a draft, its targets and all ways of having guesses checked have in common; of one route."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from backends.clock import Clock
from backends.protocol import Reply
from backends.stream import Source, Stream, StreamEnd
from policies.speculation.control.controller import Controller
from policies.speculation.drafter import Drafter
from policies.speculation.methods import Methods
from policies.speculation.settings import ExactPolicy, VerifyMethod
from policies.speculation.shadow import Shadow


class HelpedAnswer(Source, Protocol):
    """The source of an answer's stream that has a draft beside it."""

    def ended(self, how: StreamEnd) -> None:
        """The answer has ended: what the draft has done is the call's to tell."""

    @property
    def is_marked(self) -> bool:
        """Whether the target does what it was asked for, or has not come to speak yet."""


class Drafting(NamedTuple):
    """`controllers`: whether a draft pays; `methods`: how guesses are checked; both by a target's name."""

    policy: ExactPolicy
    drafter: Drafter
    shadow: Shadow
    clock: Clock
    controllers: dict[str, Controller]
    methods: dict[str, Methods]

    def helped(
        self,
        answer: HelpedAnswer,
        reply: Reply,
        method: VerifyMethod,
        name: str,
        *on_end: Callable[[StreamEnd], None],
    ) -> Reply:
        """The reply whose stream is that answer; what shows at its end that it cannot be helped so is refused then."""

        def ended(how: StreamEnd) -> None:
            answer.ended(how)
            if not answer.is_marked:
                self.methods[name].refuse(method)

        stream = Stream(answer)
        stream.on_end += [ended, *on_end]
        return Reply(reply.status, reply.headers, stream=stream)
