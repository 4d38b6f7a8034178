"""What a replay has in the place of the world: the log's own answers for a backend, its own times for a clock."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from backends.operations import Operation
from backends.protocol import Call, Capabilities, Reply, Statistics
from policies.cache.semantic.contracts import Decision, KnownNeighbour, PolicyState, Proposal
from policies.cache.semantic.decision.proposal import propose
from policies.cache.semantic.learning.comparators import AnswerVerdict
from policies.cache.semantic.log_replay.exchanges import LoggedExchange


class LogClock:
    """Both times are the log's, so that answers expire as they would have; they never go back."""

    def __init__(self) -> None:
        self._latest = 0.0

    def now(self) -> float:
        """The same as `wall`."""
        return self._latest

    def wall(self) -> float:
        """When the latest exchange was answered; seconds since the epoch."""
        return self._latest

    def advance(self, exchange: LoggedExchange) -> None:
        """It is the time of this exchange now; of one without a time, that of the one before."""
        self._latest = max(self._latest, exchange.created or 0.0)

    async def sleep(self, seconds: float) -> None:
        """Wait; cancellable."""
        await asyncio.sleep(seconds)


class LoggedAnswers:
    """A backend that answers every call as the log did; nothing is sent anywhere."""

    def __init__(self) -> None:
        self._body = b""
        self._num_sent = 0

    @property
    def name(self) -> str:
        """It has no name of a user's."""
        return "log"

    @property
    def capabilities(self) -> Capabilities:
        """A log holds chats."""
        return Capabilities(operations=frozenset({Operation.CHAT}))

    def expect(self, body: bytes) -> None:
        """What the next calls get."""
        self._body = body

    async def open(self) -> None:
        """Nothing to acquire."""

    async def aclose(self) -> None:
        """Nothing to release."""

    async def send(self, call: Call) -> Reply:
        """The answer of the log."""
        self._num_sent += 1
        return Reply(200, [(b"content-type", b"application/json")], body=self._body)

    def statistics(self) -> Statistics:
        """How often it was asked."""
        return Statistics(sent=self._num_sent)


class ReplayedLookup(msgspec.Struct):
    """A look-up's proposal, and whether its answer says what the log says.

    `similarity`: the cosine of the two questions; None where there was no candidate.
    """

    similarity: float | None
    verdict: AnswerVerdict = AnswerVerdict.UNKNOWN


class WatchingDecider:
    """A `Decider` that serves nothing and remembers every proposal, for the curve over thresholds."""

    def __init__(self, seen: list[ReplayedLookup], *, guard_is_veto: bool) -> None:
        self._seen = seen
        self._guard_is_veto = guard_is_veto

    def propose(self, text: str, candidates: Sequence[KnownNeighbour]) -> Proposal | None:
        """As the other decisions do."""
        return propose(text, candidates)

    def decide(self, proposal: Proposal | None) -> Decision:
        """Never serves, so that every answer of the log is compared with the one proposed, and kept."""
        is_out = proposal is None or (proposal.guarded and self._guard_is_veto)
        self._seen.append(ReplayedLookup(None if is_out or proposal is None else proposal.candidate.similarity))
        return Decision(False, False, 1.0, -1.0, 1.0, "below_threshold")

    def label(
        self, proposal: Proposal, *, rightness: float, weight: float, served_at: float | None, is_explained: bool
    ) -> None:
        """Nothing: a label does not tell wrong answers from those that could not be compared."""

    def gives_up(self, answer_id: str) -> bool:
        """Never: every answer is kept."""
        return False

    def state(self) -> PolicyState:
        """It learns nothing."""
        return PolicyState("static", 0, len(self._seen), 0, 1.0, 0.0, 0.0, 0.0)

    def dump(self) -> bytes:
        """There is nothing to go on with."""
        return b""

    def load(self, dumped: bytes) -> None:
        """Nor anything to take over."""
