"""The interfaces between the parts of the semantic cache: encoder, index, entries, decision.

A call becomes a `Question`; the index names stored neighbours of its vector; the decision picks one or none; what the
backend answered where it was asked becomes labels, and those set the threshold.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from backends.charges.charge import Charge
from policies.cache.entry import Entry

Vector = NDArray[np.float32]
"""[dimension], normalized to length 1, so that the inner product of two vectors is their cosine."""


class Question(msgspec.Struct, frozen=True):
    """A call in two parts: the text, which may be asked in other words, and everything that must be equal.

    `scope` is who shares (tenant, route, epoch, encoder), 32 bytes; `group` is the scope and everything of the call but
    `text`, the last user text: two questions may share an answer only where their groups are equal.
    """

    scope: bytes
    group: bytes
    text: str


class StoredAnswer(msgspec.Struct, frozen=True):
    """A stored answer with its question.

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
    """The history of an entry: the weighted labels right and wrong, and how often it was served."""

    good: float = 0.0
    bad: float = 0.0
    served: int = 0


class Neighbour(msgspec.Struct, frozen=True):
    """A stored question that is similar to the one of the call. `similarity`: cosine, -1..1."""

    id: str
    similarity: float


class KnownNeighbour(msgspec.Struct, frozen=True):
    """A neighbour with its history, from which the decision is made. The decision never sees an answer's text."""

    id: str
    similarity: float
    text: str
    answer_id: str
    history: History


class Encoder(Protocol):
    """Texts to vectors, off the event loop."""

    @property
    def dimension(self) -> int:
        """The number of components of a vector."""

    @property
    def fingerprint(self) -> str:
        """Identifies weights, type and dimension: vectors of different fingerprints must never be in one index."""

    async def open(self) -> None:
        """Load the model. Raises: ConfigurationError that names the folder and what is wrong with it."""

    async def encode(self, text: str, told: Callable[[Charge], None] | None = None) -> Vector:
        """The vector of a text; equal texts are computed once. `told` is told of what a backend takes for it, perhaps
        after this has ended. Raises: EncoderBusy where too many wait already.
        """

    async def aclose(self) -> None:
        """Release the model. Safe to call twice."""


class AnswerReader(Protocol):
    """Compares answers, off the event loop."""

    async def compare(self, left: str, right: str) -> float | None:
        """The log odds that two answers say the same, calibrated for pairs of which as many do as do not; None where
        they cannot be looked at. Raises: EncoderBusy where too many wait already.
        """


class ReadingEncoder(Encoder, AnswerReader, Protocol):
    """An encoder of questions that reads answers too: what it computes for one serves the other."""


class EncoderBusy(Exception):
    """Too many texts wait to be encoded, so the look-up is a miss."""


class Index(Protocol):
    """Vectors by group: look-ups never cross groups. If a store is slow or down, a look-up is a miss, not an error."""

    async def open(self) -> None:
        """Load or connect; does not wait for a store that is down."""

    async def aclose(self) -> None:
        """Write what is unwritten, release everything. Safe to call twice."""

    async def search(self, question: Question, vector: Vector, count: int) -> Sequence[Neighbour]:
        """Up to `count` nearest entries of the question's group, nearest first."""

    def add(self, question: Question, id: str, vector: Vector) -> None:
        """Add an entry, without waiting. `search` finds it from now on, in other replicas soon."""

    def remove(self, question: Question, ids: Sequence[str]) -> None:
        """Remove entries, without waiting. Unknown ids are ignored."""


class AnswerStore(Protocol):
    """Stored answers and their histories by id, bounded, with TTLs that hits do not prolong."""

    async def open(self) -> None:
        """Acquire resources."""

    async def aclose(self) -> None:
        """Release everything. Safe to call twice."""

    async def get(self, scope: bytes, ids: Sequence[str]) -> Sequence[tuple[StoredAnswer, History] | None]:
        """Each entry of that scope with its history; None where it is gone: remove it from the index.

        Nothing at all, an empty sequence, where a store cannot say in time: a miss, and no entry is known to be gone.
        """

    def put(self, answer: StoredAnswer) -> None:
        """Store an answer, without waiting. It expires at its time, give or take a tenth.

        One whose id is known takes the place of the one before, and keeps its history and its end.
        """

    def record(self, scope: bytes, id: str, *, good: float = 0.0, bad: float = 0.0, served: int = 0) -> None:
        """Add to an entry's history. Never waits. Two bad labels, of any weight, remove it and all of its answer_id."""

    def unite(self, scope: bytes, one: str, other: str) -> None:
        """All entries of two answer_ids have one of these from now on: that of more of them. Never waits."""

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
    """A shared store does not answer, so that a listing would wrongly be empty."""


class StateStore(Protocol):
    """What decisions have learned, by scope, over restarts. A store that is down has nothing and raises nothing."""

    async def load(self, scope: bytes) -> bytes | None:
        """What was last saved for that scope, as `Decider.dump` gave it."""

    def share(self, scope: bytes, decider: Decider) -> Decider:
        """The decider to use from now on, with its loaded state. A shared store's also learns from other replicas."""

    def save(self, scope: bytes, dumped: bytes) -> None:
        """Store the present dump of the decider in use, without waiting."""


class Proposal(msgspec.Struct, frozen=True):
    """The candidate that would be served, and why: `features` are the model's inputs, in `FEATURES` order."""

    candidate: KnownNeighbour
    features: tuple[float, ...]
    guarded: bool
    """Whether a word list found a difference that similarity misses: numbers, negation, antonyms."""


class Decision(msgspec.Struct, frozen=True):
    """What to do with a proposal.

    `serve` the candidate; `shadow`: ask the backend as well, off the client's path, and report what it says with
    weight 1 / `shadow_probability`. `score` is the log odds of the candidate being right, `threshold` what it had to
    reach. `reason` is one of: learning, no_candidate, below_threshold, guarded, suspect, budget, unconfirmed, served,
    static.
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
    """Wrong answers served, estimated from labels; of `verified` among its latest 3,000 look-ups with a candidate."""
    wrong_hit_rate: float
    """`spent`, per look-up among which these were."""
    wrong_hit_rate_upper: float
    """The upper 95 % limit of that rate."""


class Decider(Protocol):
    """The policy of one scope. Pure: no clock, no input or output; randomness from the generator it was given."""

    def propose(self, text: str, candidates: Sequence[KnownNeighbour]) -> Proposal | None:
        """The best candidate by vote of answers; None where nothing is near enough."""

    def decide(self, proposal: Proposal | None) -> Decision:
        """Decide on a look-up and count it; called once for each."""

    def label(
        self, proposal: Proposal, *, rightness: float, weight: float, served_at: float | None, is_explained: bool
    ) -> None:
        """Learn what a comparison of answers says of a proposal.

        `rightness`: the probability that the two say the same, 0..1, calibrated for pairs of which as many do as do
        not; 0.5 says nothing. `weight`: 1 after a miss, 1 / probability after a shadow check. `served_at`: the score
        of the decision that served it, None after a miss. `is_explained`: what the backend said instead is known from
        another neighbour.
        """

    def gives_up(self, answer_id: str) -> bool:
        """Whether labels say that an answer no longer holds: its entries are to be deleted."""

    def state(self) -> PolicyState:
        """What has been learned."""

    def dump(self) -> bytes:
        """The whole state, to continue after a restart or in another replica."""

    def load(self, dumped: bytes) -> None:
        """Restore a dumped state. Raises: ValueError if it is of another version or damaged."""
