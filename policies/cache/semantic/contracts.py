"""What the parts of the semantic cache say to each other: encoder, index, entries, decision.

A call becomes a `Question`; the index names stored neighbours of its vector; the decision picks one or none; what the
backend answered where it was asked becomes labels, and those set the threshold.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from policies.cache.entry import Entry

Vector = NDArray[np.float32]
"""[dimension], of length 1: the inner product of two is their cosine."""


class Question(msgspec.Struct, frozen=True):
    """The part of a call that may be asked in other words, and all that may not.

    `scope` is who shares (tenant, route, epoch, encoder), 32 bytes; `group` is the scope and everything of the call but
    `text`, the last user text: two questions may share an answer only where their groups are equal.
    """

    scope: bytes
    group: bytes
    text: str


class StoredAnswer(msgspec.Struct, frozen=True):
    """An answer once given, under the question that it was given to.

    `answer_id` is equal for answers that were found to say the same, so that they vote together. `owner` is the key it
    was asked with. `confirmed_by_other`: a second owner's answer was found equal. Times are seconds since the epoch.
    """

    id: str
    question: Question
    answer_id: str
    entry: Entry
    model: str
    owner: str
    expires: float
    tags: tuple[str, ...] = ()
    confirmed_by_other: bool = False


class History(msgspec.Struct, frozen=True):
    """How an entry has fared: labels that found it right and wrong (weighted), and the times it was served."""

    good: float = 0.0
    bad: float = 0.0
    served: int = 0


class Neighbour(msgspec.Struct, frozen=True):
    """A stored question near the one asked. `similarity`: cosine, -1..1."""

    id: str
    similarity: float


class KnownNeighbour(msgspec.Struct, frozen=True):
    """A neighbour with what is known of it: what the decision looks at. The decision never sees an answer's text."""

    id: str
    similarity: float
    text: str
    answer_id: str
    history: History


class Encoder(Protocol):
    """Texts to vectors, off the event loop."""

    @property
    def dimension(self) -> int:
        """Numbers of a vector."""

    @property
    def fingerprint(self) -> str:
        """Names weights, type and dimension: vectors of different fingerprints must never meet in one index."""

    async def open(self) -> None:
        """Load the model. Raises: ConfigurationError that names the folder and what is wrong with it."""

    async def encode(self, text: str) -> Vector:
        """The vector of a text; equal texts are computed once. Raises: EncoderBusy where too many wait already."""

    async def aclose(self) -> None:
        """Release the model. Safe to call twice."""


class EncoderBusy(Exception):
    """More texts wait to be encoded than the encoder takes: the look-up is a miss."""


class Index(Protocol):
    """Vectors by group: look-ups never cross groups. A store that is slow or away is a miss, never an error."""

    async def open(self) -> None:
        """Load or connect; does not wait for a store that is down."""

    async def aclose(self) -> None:
        """Write what is unwritten, release everything. Safe to call twice."""

    async def search(self, question: Question, vector: Vector, count: int) -> Sequence[Neighbour]:
        """Up to `count` nearest entries of the question's group, nearest first."""

    def add(self, question: Question, id: str, vector: Vector) -> None:
        """Found by `search` from now on (by other replicas: soon). Never waits."""

    def remove(self, question: Question, ids: Sequence[str]) -> None:
        """No longer found. Unknown ids are nothing. Never waits."""


class AnswerStore(Protocol):
    """Stored answers and their histories by id, bounded, with TTLs that hits do not prolong."""

    async def open(self) -> None:
        """Acquire what keeping needs."""

    async def aclose(self) -> None:
        """Release everything. Safe to call twice."""

    async def get(self, scope: bytes, ids: Sequence[str]) -> Sequence[tuple[StoredAnswer, History] | None]:
        """Each entry of that scope with its history; None where it is gone: remove it from the index.

        Nothing at all, an empty sequence, where a store cannot say in time: a miss, and no entry is known to be gone.
        """

    def put(self, answer: StoredAnswer) -> None:
        """Keep it until it expires, give or take a tenth. Never waits.

        One whose id is known takes the place of the one before, and keeps its history and its end.
        """

    def record(self, scope: bytes, id: str, *, good: float = 0.0, bad: float = 0.0, served: int = 0) -> None:
        """Add to an entry's history. Never waits. Two bad labels, of any weight, remove it and all of its answer_id."""

    def delete(self, scope: bytes, ids: Sequence[str]) -> None:
        """Forget entries. Never waits."""

    async def listing(
        self,
        scope: bytes | None,
        count: int,
        *,
        tag: str | None = None,
        model: str | None = None,
        after: tuple[bytes, str] | None = None,
    ) -> Sequence[tuple[StoredAnswer, History]]:
        """Up to `count` entries of a scope, or of all, that have the tag and the model: for people, not for look-ups.

        In the order of scope and id, from behind `after` on; fewer than `count` are the last.
        Raises: SharedStoreUnavailable.
        """

    def statistics(self) -> AnswerStatistics:
        """A snapshot of the counters."""


class AnswerStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """An immutable snapshot of an answer store's counters.

    `entries` and `bytes` are what this process holds (for a shared store: what waits to be written). Entries go by
    being `evicted` for others, `expired`, or `rejected` by labels. `errors` are failures of the store itself;
    `dropped` is what was not taken: answers, labels, deletions.
    """

    entries: int = 0
    bytes: int = 0
    hits: int = 0
    misses: int = 0
    evicted: int = 0
    expired: int = 0
    rejected: int = 0
    errors: int = 0
    dropped: int = 0


class SharedStoreUnavailable(Exception):
    """A shared store does not answer, and an empty listing would be a lie."""


class StateStore(Protocol):
    """What decisions have learned, by scope, over restarts. A store that is away knows nothing, and raises nothing."""

    async def load(self, scope: bytes) -> bytes | None:
        """What was last saved for that scope, as `Decider.dump` gave it."""

    def share(self, scope: bytes, decider: Decider) -> Decider:
        """The decider to use from now on, with what was loaded in it: a shared store's learns with other replicas."""

    def save(self, scope: bytes, dumped: bytes) -> None:
        """Keep what the decider in use has dumped just now. Never waits."""


class Proposal(msgspec.Struct, frozen=True):
    """The candidate that would be served, and why: `features` are the model's inputs, in `FEATURES` order."""

    candidate: KnownNeighbour
    features: tuple[float, ...]
    guarded: bool
    """A word list saw a difference that similarity does not: numbers, negation, antonyms."""


class Decision(msgspec.Struct, frozen=True):
    """What to do with a proposal.

    `serve` the candidate; `shadow`: ask the backend as well, off the client's path, and report what it says with
    weight 1 / `shadow_probability`. `score` is the log odds of the candidate being right, `threshold` what it had to
    reach. `reason` is one of: learning, no_candidate, below_threshold, guarded, budget, unconfirmed, served, static.
    """

    serve: bool
    shadow: bool
    shadow_probability: float
    score: float
    threshold: float
    reason: str


class PolicyState(msgspec.Struct, frozen=True):
    """What a scope's decision has learned, for people and for metrics."""

    mode: str
    labels: int
    lookups: int
    served: int
    threshold: float
    spent: float
    """Wrong answers served, estimated from weighted labels."""
    wrong_hit_rate: float
    wrong_hit_rate_upper: float
    """The upper 95 % limit of the rate per look-up."""


class Decider(Protocol):
    """The policy of one scope. Pure: no clock, no input or output; randomness from the generator it was given."""

    def propose(self, text: str, candidates: Sequence[KnownNeighbour]) -> Proposal | None:
        """The best candidate by vote of answers; None where nothing is near enough."""

    def decide(self, proposal: Proposal | None) -> Decision:
        """Once for every look-up: counts it."""

    def label(self, proposal: Proposal, *, is_right: bool, weight: float, was_served: bool) -> None:
        """The proposal was found right or wrong. `weight`: 1 after a miss, 1 / probability after a shadow check."""

    def state(self) -> PolicyState:
        """What has been learned."""

    def dump(self) -> bytes:
        """Everything, to go on with after a restart or in another replica."""

    def load(self, dumped: bytes) -> None:
        """Take over what was dumped. Raises: ValueError where it is of another version or damaged."""
