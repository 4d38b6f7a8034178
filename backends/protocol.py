"""The vocabulary every layer shares: a call goes in, a reply comes out, everything that answers is a Backend.

Policies wrap backends and are backends themselves, so a route is a stack of these.
Nothing here does any work; see `stream.py` for the pump and `clock.py` for time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum, StrEnum
from typing import Any, Protocol

import msgspec

from backends.answer_budget import AnswerBudget
from backends.charges.charge import Charge, Pricing
from backends.charges.usage import Usage
from backends.clock import Clock
from backends.drafts.facts import SpeculationFacts
from backends.drafts.prediction import Prediction
from backends.drafts.push import DraftsBy
from backends.header_names import EVERY_HEADER, HeaderNames
from backends.operations import Operation, Terms
from backends.quotas.reservation import Reservation
from backends.recorded_pace import Stopwatch
from backends.resume import BrokenAnswer, Continues, Resumed
from backends.stream import Stream, StreamEnd

Headers = list[tuple[bytes, bytes]]
"""HTTP fields as they travel: lower-case names, order and repeats kept."""


class CacheOutcome(StrEnum):
    """How a cache took part in an answer; also the value of the `x-cache` header."""

    HIT = "hit"
    SEMANTIC = "semantic"
    MISS = "miss"
    JOINED = "joined"
    BYPASS = "bypass"
    REFRESH = "refresh"


class Timeouts(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one attempt, in seconds; `total` bounds the whole call, every attempt included."""

    connect_s: float = 5.0
    first_token_s: float = 300.0
    stream_idle_s: float = 120.0
    total_s: float = 600.0


class Priority(IntEnum):
    """Who goes first where not all can; whatever is lower waits for all of what is higher."""

    HIGH = 0
    NORMAL = 1
    LOW = 2


class Slo(msgspec.Struct, frozen=True):
    """When an answer is in time, in seconds: its first token, the mean gap between the others, its end."""

    first_token_s: float
    per_1k_prompt_s: float
    token_gap_s: float
    total_s: float = math.inf

    def first_token_limit_s(self, prompt_tokens: int) -> float:
        """How long the first token of a prompt of that length may take."""
        return self.first_token_s + self.per_1k_prompt_s * prompt_tokens / 1000

    def is_met(self, prompt_tokens: int, first_token_s: float, token_gap_s: float, total_s: float) -> bool:
        """Whether an answer with these times was in time."""
        return (
            first_token_s <= self.first_token_limit_s(prompt_tokens)
            and token_gap_s <= self.token_gap_s
            and total_s <= self.total_s
        )


class SemanticFacts(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the semantic cache made of a call: why, and for an answer which entry, and how near its question was."""

    reason: str
    entry: str | None = None
    similarity: float | None = None


class PassedStage(msgspec.Struct, frozen=True):
    """A stage that a call has passed, in seconds of its clock; `details` say what came of it: `error` why it failed."""

    stage: str
    began_at: float
    ended_at: float
    details: Mapping[str, str | int]


class Facts(msgspec.Struct, eq=False):
    """What was learned on the way of one call; every stage writes its own fields, the edge reads them once.

    It travels with the call and not with the reply, so that a call that fails keeps them too. Times are seconds of the
    call's clock (monotonic). `draft`: what became of a smaller backend that may answer in place of the route's own.
    """

    attempts: int = 0
    asked_routes: set[str] | None = None
    """Routes a fallback has sent the call to: no route is asked twice, however stacks are nested."""
    backend: str | None = None
    upstream_model: str | None = None
    cache: CacheOutcome | None = None
    cache_age_s: float | None = None
    charges: list[Charge] | None = None
    """Of every attempt that was made for the call, those of hedges and of what broke off included."""
    extra: Callable[[Charge], None] | None = None
    """Is told of attempts that the gateway makes because of the call, beside it."""
    attempt_charge: Charge | None = None
    """Of the attempt that has begun last."""
    reservation: Reservation | None = None
    """Made where the attempt was let in, for the backend that it goes to."""
    conceal: Callable[[bytes], bytes] | None = None
    """Takes out of an error what its client must not see; who shows words of an upstream's error asks it first."""
    may_quote: bool = False
    """A stream has said that it failed, or is not read: what passes from now on is to be concealed."""
    resumed: list[Resumed] | None = None
    """Where the stream broke off and what was done about it; a route that asks for that fills it."""
    fallback_route: str | None = None
    draft: str | None = None
    semantic: SemanticFacts | None = None
    sent_at: float | None = None
    passed_stages: list[PassedStage] | None = None
    """The stages that it has passed; only where somebody traces it."""
    first_token_at: float | None = None
    stopwatch: Stopwatch | None = None
    """Only where a route hides from clients what was stored: its caches keep the time of answers with them."""
    stream_end: StreamEnd | None = None
    upstream_request_id: str | None = None
    usage: Usage | None = None
    is_usage_partial: bool = False
    """The upstream has not told, or not so that it can be believed, how long the whole answer is."""
    speculation: SpeculationFacts | None = None
    waited_s: float | None = None
    """In front of backends that had no room; None where nobody lets calls wait."""

    def apart(self) -> Facts:
        """Facts of an attempt that is made beside or after another one; what it costs is the call's all the same."""
        if self.charges is None:
            self.charges = []
        return Facts(charges=self.charges, asked_routes=self.asked_routes, passed_stages=self.passed_stages)

    def passed(self, stage: str, began_at: float, clock: Clock, **details: str | int) -> None:
        """The call has passed a stage, just now."""
        if self.passed_stages is not None:
            self.passed_stages.append(PassedStage(stage, began_at, clock.now(), details))

    def charge(self, backend: str, model: str, price: Pricing | None = None) -> Charge:
        """An attempt goes out."""
        charge = self.attempt_charge = Charge(backend, model, price)
        if self.charges is None:
            self.charges = [charge]
        else:
            self.charges.append(charge)
        return charge

    def adopt_answer(self, other: Facts) -> None:
        """This call is answered with the answer of another one: who gave it, and what it used."""
        self.backend = other.backend
        self.upstream_model = other.upstream_model
        self.usage = other.usage
        self.is_usage_partial = other.is_usage_partial
        self.conceal = other.conceal

    def adopt_attempt(self, other: Facts) -> None:
        """This call is answered by an attempt that had facts of its own: they take the place of those here."""
        self.adopt_answer(other)
        self.first_token_at = other.first_token_at
        self.upstream_request_id = other.upstream_request_id
        self.may_quote = other.may_quote
        self.stream_end = other.stream_end
        self.speculation = other.speculation or self.speculation
        self.sent_at = other.sent_at if self.sent_at is None else self.sent_at


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One request on its way down a stack. Never mutated: `msgspec.structs.replace` makes a changed copy.

    `raw` is the client's body as it came; `body` the same decoded (None where it is no JSON object), never written to.
    `path` is that below the API root, `query` has no question mark. `headers` are the client's fields (no credentials,
    cookies or hop-by-hop fields): a backend sends on those that its capabilities name. `deadline` is in monotonic
    seconds. `predicted` is text that the answer will probably repeat: nobody answers otherwise for it. `slo` is None
    where nobody has said when an answer is in time. `prompt_cache_key` is what calls that begin alike have in common,
    for a provider that keeps prompts. `pinned` names the only backend that may answer. `model_at` is where `raw` names
    the model, if it is a form. `resume` says that a stream that breaks off is to go on, and what has come of it.
    `terms` is how a call is charged that only passes through. `answers` bounds what is held of answers that are read
    whole. `drafts`: who means to push draft tokens onto the answer; `by_rounds`: it is to wait for them (`drafts/`).
    """

    operation: Operation
    path: str
    raw: bytes
    body: Mapping[str, Any] | None
    model: str
    deadline: float
    facts: Facts
    method: str = "POST"
    query: str = ""
    headers: Sequence[tuple[bytes, bytes]] = ()
    stream: bool = False
    include_usage: bool = False
    tenant: str = ""
    key_id: str = ""
    user: str = ""
    route: str = ""
    request_id: str = ""
    cache_control: str = ""
    timeouts: Timeouts = Timeouts()
    predicted: Prediction | None = None
    prompt_cache_key: str = ""
    pinned: str = ""
    model_at: tuple[int, int] | None = None
    slo: Slo | None = None
    priority: Priority = Priority.NORMAL
    resume: BrokenAnswer | None = None
    terms: Terms | None = None
    answers: AnswerBudget | None = None
    drafts: DraftsBy = DraftsBy.NOBODY
    by_rounds: bool = False

    @property
    def num_choices(self) -> int:
        """How many choices the answer of a chat or completion has."""
        n = (self.body or {}).get("n")
        return self.num_prompts * (n if isinstance(n, int) else 1)

    @property
    def num_prompts(self) -> int:
        """How many prompts a completion goes on with."""
        prompts = (self.body or {}).get("prompt")
        if isinstance(prompts, list) and prompts and isinstance(prompts[0], (str, list)):
            return len(prompts)
        return 1


class Reply:
    """An answer: either a whole `body` or a `stream`, never both. Its owner closes it; closing cancels upstream work.

    `headers` are end-to-end fields only, without content-length.
    """

    __slots__ = ("__weakref__", "body", "headers", "status", "stream")

    def __init__(
        self, status: int, headers: Headers, *, body: bytes | None = None, stream: Stream | None = None
    ) -> None:
        assert (body is None) != (stream is None), "a reply has a body or a stream"
        self.status = status
        self.headers = headers
        self.body = body
        self.stream = stream

    def header(self, name: bytes) -> bytes | None:
        """The first field of that (lower-case) name, or None."""
        for key, value in self.headers:
            if key == name:
                return value
        return None

    async def aclose(self) -> None:
        """Release what the answer holds. Safe to call twice; a stream that is not finished is cancelled."""
        if self.stream is not None:
            await self.stream.aclose()


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What a backend can answer. `max_context_tokens` is None where it is not known.

    `headers`: the client's fields that it reads or sends on. Callers who differ in one of these share no answer.
    `continues`: what of an answer that broke off elsewhere it can go on behind.
    """

    operations: frozenset[Operation]
    max_context_tokens: int | None = None
    headers: HeaderNames = EVERY_HEADER
    continues: frozenset[Continues] = frozenset()


class Statistics(msgspec.Struct, frozen=True, kw_only=True):
    """An immutable snapshot of a backend's counters."""

    in_flight: int = 0
    sent: int = 0
    failed: int = 0
    connections_opened: int = 0
    connections_reused: int = 0


class Backend(Protocol):
    """Takes a call, gives a reply. HTTP upstreams, the engine, and every policy around them."""

    @property
    def name(self) -> str:
        """The configured name; appears in metrics, logs and `explain`."""

    @property
    def capabilities(self) -> Capabilities:
        """What this backend can answer."""

    async def open(self) -> None:
        """Acquire what serving needs. Called once before the first `send`."""

    async def aclose(self) -> None:
        """Release everything; calls in flight are cancelled. Safe to call twice."""

    async def send(self, call: Call) -> Reply:
        """Answer the call before `call.deadline`.

        An upstream's own error answer (4xx, 5xx) is a reply. Raises: UpstreamError and its children where there
        is no answer to pass on. Cancelling the task that awaits this cancels the work behind it.
        """

    def statistics(self) -> Statistics:
        """A snapshot of the counters."""
