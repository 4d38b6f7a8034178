"""A mirror as a backend: calls pass to the backend within, and copies of some go to a candidate once they are answered.

What comes of the copies is compared off the clients' path. Where the policy's rule is met, calls go to the candidate
from then on, and back to the backend within where that fails.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from random import Random

import msgspec

from backends.charges.charge import Charge
from backends.clock import Clock
from backends.errors import SlipstreamError
from backends.operations import Operation
from backends.protocol import Backend, Call, Facts, Reply
from backends.stream import StreamEnd
from policies.acting import acts
from policies.background import Background
from policies.beside import tell_charges
from policies.cache.entry import AnswerForm, Entry
from policies.cache.record import Recorder, entry_of_body, entry_of_events, is_shareable
from policies.cache.semantic.answer_text import text_of
from policies.cache.semantic.contracts import EncoderBusy
from policies.cache.semantic.learning.comparators import AnswerVerdict, Comparison, verdict_of
from policies.mirror.evidence import Evidence, Verdict
from policies.mirror.preference import PreferenceJudge
from policies.mirror.settings import MirrorPolicy
from policies.pool.attempts.hedge import adopt
from policies.speculation.draft import ask_draft, prompt_of
from policies.stage import Stage

_MAX_COPIES = 8
"""At once; of more calls at a time no copies are made."""
_MAX_RECORDED = 64
"""Streams at once, each of which may become a copy at its end."""
_MAX_BYTES = 1024**2
"""Of a call that is copied, which outlives its own answer here, and of an answer."""
_DAY_S = 86400.0

_logger = logging.getLogger(__name__)


class Mirror(Stage):
    """`comparison` says whether answers say the same, `judge` which of two that do not is better."""

    def __init__(
        self,
        inner: Backend,
        candidate: Backend,
        policy: MirrorPolicy,
        comparison: Comparison,
        judge: PreferenceJudge | None,
        clock: Clock,
        random: Random,
        *,
        route: str,
    ) -> None:
        super().__init__(inner)
        self._candidate = candidate
        self._policy = policy
        self._comparison = comparison
        self._judge = judge
        self._clock = clock
        self._random = random
        self._route = route
        self._copies = Background(_MAX_COPIES)
        self._num_recorded = 0
        self._day_began = clock.now()
        self._spent_today = 0
        self.evidence = Evidence()
        self.verdict: Verdict = "open"

    @property
    def policy(self) -> MirrorPolicy:
        """What it goes by."""
        return self._policy

    @property
    def is_promoted(self) -> bool:
        """Whether the candidate answers the route's calls."""
        return self.verdict == "promote"

    async def aclose(self) -> None:
        """End what is being compared, then close the backend within. Safe to call twice."""
        await self._copies.aclose()
        await super().aclose()

    def take_over(self, before: Mirror) -> None:
        """Go on with what the same mirror of a policy before has found out."""
        self.evidence, self.verdict = before.evidence, before.verdict
        self._day_began, self._spent_today = before._day_began, before._spent_today

    async def wait(self) -> None:
        """Wait until the copies that are being compared now are done."""
        await self._copies.wait()

    async def send(self, call: Call) -> Reply:
        """The backend's answer, or the promoted candidate's. Raises: as the backend within."""
        if self.is_promoted and call.operation.traits.writes_text and not call.pinned and not acts(call):
            given = await ask_draft(self._candidate, call, self._clock)
            if given is not None:
                adopt(call.facts, given.facts, given.reply)
                return given.reply
        began_at = self._clock.now()
        reply = await self._inner.send(call)
        if self._is_copied(call):
            self._keep(call, began_at, reply)
        return reply

    def _keep(self, call: Call, began_at: float, reply: Reply) -> None:
        """Compare the answer once it is whole, where there is memory for that."""
        stream, headers = reply.stream, list(reply.headers)
        if stream is None:
            if self._copies.has_room and len(reply.body or b"") <= _MAX_BYTES:
                self._begin(call, began_at, entry_of_body(call, reply, self._clock.wall()))
        elif (
            stream.end is None
            and self._num_recorded < _MAX_RECORDED
            and is_shareable(reply.status, headers, AnswerForm.SSE)
        ):
            stream.taps.append(Recorder(_MAX_BYTES, partial(self._begin_events, call, began_at, headers)))
            self._num_recorded += 1
            stream.on_end.append(self._was_recorded)

    def _was_recorded(self, _how: StreamEnd) -> None:
        self._num_recorded -= 1

    def _is_copied(self, call: Call) -> bool:
        if call.operation is not Operation.CHAT or self.verdict != "open" or len(call.raw) > _MAX_BYTES:
            return False
        if prompt_of(call) is None:
            return False
        now = self._clock.now()
        if now - self._day_began >= _DAY_S:
            self._day_began, self._spent_today = now, 0
        return self._spent_today < self._policy.max_daily_tokens and self._random.random() < self._policy.share

    def _begin_events(self, call: Call, began_at: float, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        self._begin(call, began_at, entry_of_events(call, headers, body, self._clock.wall()))

    def _begin(self, call: Call, began_at: float, ours: Entry | None) -> None:
        if ours is not None:
            self._copies.start(self._compare(call, ours, self._clock.now() - began_at))

    async def _compare(self, call: Call, ours: Entry, our_seconds: float) -> None:
        """Ask the candidate the same, and note what both answers show of it."""
        question, our_text = prompt_of(call), text_of(ours)
        if question is None or our_text is None:
            return
        began_at = self._clock.now()
        copy = self._copy(call)
        if copy is None:
            return
        told = partial(_tell, call.facts.extra) if call.facts.extra is not None else None
        try:
            theirs = await self._ask(copy)
        finally:
            tell_charges(copy.facts, told)
        their_seconds = self._clock.now() - began_at
        usage = copy.facts.usage
        self._spent_today += usage.prompt_tokens + usage.completion_tokens if usage is not None else len(copy.raw) // 4
        their_text = text_of(theirs) if theirs is not None else None
        if their_text is None:
            # Half an answer, an error or none: worse than one that was given.
            self.evidence.note_agreement(is_same=False)
            self.evidence.note_pair("ours")
            self._decide()
            return
        self.evidence.note_seconds(our_seconds, their_seconds)
        our_cost, their_cost = _cost(call.facts.charges, call.facts.backend), _cost(copy.facts.charges, None)
        if our_cost is not None and their_cost is not None:
            self.evidence.note_cost(our_cost, their_cost)
        same = await self._told_apart(question, our_text, their_text)
        if same is not AnswerVerdict.UNKNOWN:
            self.evidence.note_agreement(is_same=same is AnswerVerdict.SAME)
        if same is AnswerVerdict.SAME:
            self.evidence.note_pair("neither")
        elif self._judge is not None:
            better, tokens = await self._judge.better(question, our_text, their_text, told)
            self._spent_today += tokens
            if better is not None:
                self.evidence.note_pair(better)
        self._decide()

    async def _told_apart(self, question: str, ours: str, theirs: str) -> AnswerVerdict:
        try:
            return verdict_of(await self._comparison.compare(question, ours, theirs, may_ask=False))
        except EncoderBusy:
            return AnswerVerdict.UNKNOWN

    def _copy(self, call: Call) -> Call | None:
        """The same call for a whole answer, with facts and time of its own; None where it cannot be written."""
        body = {name: value for name, value in (call.body or {}).items() if name not in ("stream", "stream_options")}
        try:
            raw = msgspec.json.encode(body)
        except (ValueError, OverflowError, RecursionError):
            return None
        deadline = self._clock.now() + call.timeouts.total_s
        return msgspec.structs.replace(
            call, body=body, raw=raw, stream=False, include_usage=False, facts=Facts(), deadline=deadline
        )

    async def _ask(self, copy: Call) -> Entry | None:
        try:
            reply = await self._candidate.send(copy)
        except SlipstreamError:
            return None
        try:
            return entry_of_body(copy, reply, self._clock.wall())
        finally:
            await reply.aclose()

    def _decide(self) -> None:
        rule = self._policy.promote_when
        if rule is None or self.verdict != "open":
            return
        self.verdict = self.evidence.verdict(rule)
        if self.verdict != "open":
            _logger.warning(
                "mirror of route %s to %s: %s after %d pairs, %d better and %d worse",
                self._route,
                self._policy.to,
                self.verdict,
                self.evidence.num_pairs,
                self.evidence.wins,
                self.evidence.losses,
            )


def _cost(charges: Sequence[Charge] | None, backend: str | None) -> float | None:
    """What the answer cost, of the attempt at that backend; None where that is not known."""
    for charge in reversed(charges or ()):
        if backend is None or charge.backend == backend:
            return charge.cost
    return None


def _tell(extra: Callable[[Charge], None], charge: Charge) -> None:
    """Who was copied has not asked for it."""
    charge.is_for_operator = True
    extra(charge)
