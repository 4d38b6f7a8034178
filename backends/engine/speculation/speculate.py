"""Who proposes tokens for the target to verify, and how many: prompt lookup, the draft model, others, nobody.

For each sequence the proposer, and the number of its tokens, with which the whole step promises the most tokens a
second, by acceptances so far and step times as measured. Proposals never change what is answered: the sampler verifies
them exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field

from torch import Tensor

from backends.engine.choosing.sampling import Choice
from backends.engine.options import Speculate
from backends.engine.sequence import Sequence, Slice
from backends.engine.speculation.acceptance import Acceptance
from backends.engine.speculation.draft_model import DraftModel, draft_lag
from backends.engine.speculation.lengths import Chance, best_lengths
from backends.engine.speculation.lookup import Kind, PromptLookup, Source, TokensAtHand
from backends.engine.speculation.purse import Purse
from backends.engine.speculation.pushed import PushedTokens
from backends.engine.speculation.step_time import ALONE_WEIGHT, StepTimeFit, TargetTimeFit

_SOURCES: tuple[Source, ...] = ("draft", "ngram", "prediction", "remote")
_START_RATES: dict[Kind, float] = {
    ("draft", False): 0.7,
    ("ngram", False): 0.55,
    ("ngram", True): 0.75,
    ("prediction", False): 0.7,
    ("prediction", True): 0.85,
    ("remote", False): 0.8,
}
_MOST_PUSHED = 8
"""Pushed tokens that are verified in one step."""
_REMOTE: Kind = ("remote", False)
_DRAFT: Kind = ("draft", False)
_SEQUENCE_WEIGHT = 0.1
_ENGINE_WEIGHT = 0.01
_LEARN_EVERY, _LEARN_AT = 128, (8, 9, 10)
"""Steps of decoding, of which these are made alone."""
_FIRST_PROBE, _LAST_PROBE = 4, 64
"""Steps without a proposal after which one is made anyway, to learn whether it would pay by now; doubled each time."""
_ALONE_ROWS_SHARE = 0.5
"""Of what a step takes alone, before one of fewer sequences was seen: weights take as long for one as for many."""
_CATCH_UP_SHARE = 0.5
"""Of what may be lost: the rest is to find out what the drafts are worth."""
_MOST_PROBED = 8
"""Sequences for which the draft model is tried at once, where it is not worth it by what is known."""


@dataclass(frozen=True, slots=True)
class SpeculationStatistics:
    """Tokens since the start, by who proposed them; `accepted_at[i]` counts accepted drafts at position i.

    `dropped` are pushed tokens that were never verified, because the text had gone another way by then.
    """

    proposed: dict[Source, int]
    accepted: dict[Source, int]
    accepted_at: tuple[int, ...]
    dropped: int = 0


@dataclass(slots=True)
class ProposalOutcome:
    """Proposed tokens of one sequence, by what became of them."""

    draft_accepted: int = 0
    draft_rejected: int = 0
    prediction_accepted: int = 0
    prediction_rejected: int = 0


@dataclass(slots=True)
class _Probe:
    """When to try again what is not worth it by what is known."""

    num_idle: int = 0
    after: int = _FIRST_PROBE

    def is_due(self) -> bool:
        """Counts a step without."""
        self.num_idle += 1
        if self.num_idle < self.after:
            return False
        self.num_idle, self.after = 0, min(2 * self.after, _LAST_PROBE)
        return True

    def reset(self) -> None:
        """It is worth it."""
        self.num_idle, self.after = 0, _FIRST_PROBE


@dataclass(slots=True)
class _Record:
    """What is known of one sequence."""

    rates: dict[Kind, Acceptance]
    lookup: PromptLookup
    pushed: PushedTokens | None = None
    kind: Kind = ("ngram", False)
    probe: _Probe = field(default_factory=_Probe)
    outcome: ProposalOutcome = field(default_factory=ProposalOutcome)


class Speculator:
    """Proposes for each step, and learns from what came of it. `draft` None: prompt lookup alone.

    `most` tokens a sequence, and none in steps of more than `below` sequences. `now` reads a clock in seconds.
    """

    def __init__(
        self,
        mode: Speculate,
        draft: DraftModel | None,
        *,
        most: int,
        below: int,
        now: Callable[[], float],
    ) -> None:
        self._looks_up = mode in ("auto", "ngram")
        self._draft = draft if mode in ("auto", "draft") else None
        self._most = most if mode != "off" else 0
        self._below = below
        self._now = now
        self._target_time = TargetTimeFit()
        self._draft_time = StepTimeFit()
        self._catch_up_time = StepTimeFit()
        """Of the draft model's steps over texts that it lags behind, over their tokens."""
        self._alone_time = StepTimeFit(ALONE_WEIGHT, rows_share=_ALONE_ROWS_SHARE)
        """Of steps without proposals, over their sequences."""
        self._purse = Purse()
        self._draft_probe = _Probe()
        self._num_decoded = 0
        self._was_alone = False
        self._has_predictions = False
        self._proposed_s = self._catch_up_s = 0.0
        self._rates = {kind: Acceptance(rate, _ENGINE_WEIGHT) for kind, rate in _START_RATES.items()}
        self._records: dict[Sequence, _Record] = {}
        self._num_sequences = 1
        self._num_pushed_for = 0
        self._num_dropped = 0
        self._proposed: dict[Source, int] = dict.fromkeys(_SOURCES, 0)
        self._accepted: dict[Source, int] = dict.fromkeys(_SOURCES, 0)
        self._accepted_at = [0] * most

    @property
    def room(self) -> int:
        """Draft tokens to make room for in the coming step, for each sequence."""
        if self._num_sequences > self._below or not (self._may_guess or self._has_predictions or self._num_pushed_for):
            return 0
        return max(self._most, _MOST_PUSHED) if self._num_pushed_for else self._most

    def push(self, sequence: Sequence, start: int, tokens: SequenceOf[int], most_kept: int) -> None:
        """Keeps a guess of the sequence's tokens from `start` on, for the next steps to verify."""
        record = self._record(sequence)
        if record.pushed is None:
            record.pushed = PushedTokens(most_kept)
            self._num_pushed_for += 1
        record.pushed.push(sequence.tokens, start, tokens)

    def propose(self, slices: SequenceOf[Slice]) -> dict[Sequence, Tensor]:
        """Fills `sequence.draft` of the step's sequences with at most `num_draft` tokens.

        Returns the distributions that drafts were drawn from, [tokens, vocab_size], of the sequences whose drafts are
        judged by them.
        """
        self._num_sequences = max(len(slices), 1)
        self._has_predictions = any(part.sequence.request.prediction for part in slices)
        self._proposed_s = self._catch_up_s = 0.0
        if not any(part.num_draft for part in slices):
            return {}
        began = self._now()
        probs = self._propose([part for part in slices if part.num_draft])
        self._proposed_s = self._now() - began
        return probs

    def _propose(self, decoding: list[Slice]) -> dict[Sequence, Tensor]:
        ready = [self._find_ready(part) for part in decoding]
        chances = [self._chance(part, one) for part, one in zip(decoding, ready, strict=True)]
        lengths = best_lengths(
            chances, num_sequences=self._num_sequences, target=self._target_time, draft=self._draft_time
        )
        for part, one, number in zip(decoding, ready, lengths.ready, strict=True):
            if one is not None:
                self._take(part.sequence, one, number)
        if self._draft is None or not self._may_guess:
            return {}
        drafts = lengths.drafts
        if lengths.has_drafts:
            self._draft_probe.reset()
        elif self._draft_probe.is_due():
            drafts = self._probes(decoding, chances)
        drafts = self._extended(decoding, chances, drafts)
        return self._run_draft(self._draft, decoding, drafts, lengths.least)

    def _take(self, sequence: Sequence, ready: TokensAtHand, number: int) -> None:
        """Proposes `number` tokens that are at hand, or one now and then where it is not worth it."""
        record = self._records[sequence]
        if number:
            record.probe.reset()
        elif record.probe.is_due():
            number = 1
        if number:
            record.kind, sequence.draft = ready.kind, ready.take(number)

    def _probes(self, decoding: SequenceOf[Slice], chances: SequenceOf[Chance]) -> list[int]:
        """A token of the draft model for some: a step of it costs hardly more for them than for one."""
        free = [
            place
            for place, (part, one) in enumerate(zip(decoding, chances, strict=True))
            if one.num_draft and not part.sequence.draft
        ]
        probed = set(free[:_MOST_PROBED])
        return [1 if place in probed else 0 for place in range(len(decoding))]

    def _extended(self, decoding: SequenceOf[Slice], chances: SequenceOf[Chance], drafts: SequenceOf[int]) -> list[int]:
        """More where the draft model is sure: a greedy draft ends by itself where it is not."""
        return [
            min(2 * number, one.num_draft) if part.sequence.request.params.temperature == 0 else number
            for part, one, number in zip(decoding, chances, drafts, strict=True)
        ]

    def _run_draft(
        self, draft: DraftModel, decoding: SequenceOf[Slice], wanted: SequenceOf[int], least: SequenceOf[float]
    ) -> dict[Sequence, Tensor]:
        lengths, num_behind = self._affordable(decoding, wanted, draft.max_tokens)
        began = self._now()
        probs = draft.propose(decoding, lengths, least)
        took_s = self._now() - began
        drafted = [part.sequence for part, length in zip(decoding, lengths, strict=True) if length]
        for sequence in drafted:
            self._records[sequence].kind = _DRAFT
        num_steps = max((len(sequence.draft) for sequence in drafted), default=0)
        if num_behind:
            # Catching up with a prompt says nothing of the steps to come.
            steps_s = num_steps * self._draft_time.predict(len(drafted))
            self._catch_up_time.add(num_behind, max(took_s - steps_s, 0.0))
        elif num_steps:
            self._draft_time.add(len(drafted), took_s / num_steps)
        return probs

    def _affordable(
        self, decoding: SequenceOf[Slice], wanted: SequenceOf[int], most_behind: int
    ) -> tuple[list[int], int]:
        """How many tokens each may draft, and how many the draft model catches up with for that, `most_behind` at most.

        With many prompts at once that takes many times what a try may cost. So it goes on with what is paid for, but
        always with one: else nobody would find out what drafts are worth behind a long one.
        """
        lengths, num_behind = list(wanted), 0
        for place, part in enumerate(decoding):
            lag = draft_lag(part)
            if not lengths[place] or lag <= self._most + 1:
                continue
            behind = min(num_behind + lag, most_behind)
            cost_s = self._catch_up_time.predict(behind)
            if num_behind and not (self._catch_up_time.is_known and cost_s <= _CATCH_UP_SHARE * self._purse.balance_s):
                lengths[place] = 0
                continue
            num_behind, self._catch_up_s = behind, cost_s
        return lengths, num_behind

    def observe(self, done: SequenceOf[tuple[Slice, Choice | None]], seconds: float) -> None:
        """Notes what came of a step's proposals, and its time; before anything is committed."""
        num_rows, num_tokens, is_decode = 0, 0, True
        for part, choice in done:
            num_draft = len(part.sequence.draft)
            if num_draft and choice is not None:
                self._judge(part.sequence, choice.num_accepted)
                num_tokens += choice.num_accepted
            num_rows += 1 + num_draft
            is_decode &= part.num_tokens == 1
        if not done:
            return
        if is_decode:
            self._target_time.add(len(done), num_rows - len(done), seconds)
            self._account(len(done), num_rows, num_tokens, seconds)
        elif self._alone_time.is_known:
            # What takes how long beside prompts is not known; what it took to draft is, catching up above all.
            alone_s = self._alone_time.predict(len(done))
            spent_s = self._proposed_s + (num_rows - len(done)) * self._target_time.proposal_s
            self._purse.settle(alone_s * num_tokens / len(done), spent_s, alone_s, self._catch_up_s)

    def _account(self, num_sequences: int, num_rows: int, num_accepted: int, seconds: float) -> None:
        """What a step of decoding has cost and brought, proposals and all."""
        self._num_decoded += 1
        is_alone, was_alone = num_rows == num_sequences, self._was_alone
        self._was_alone = is_alone
        # The first one behind others finds nothing of what such a step can take over from the one before.
        if is_alone and (was_alone or not self._alone_time.is_known):
            self._alone_time.add(num_sequences, seconds)
        if not self._alone_time.is_known:
            return
        alone_s = self._alone_time.predict(num_sequences)
        if is_alone:
            self._purse.earn(alone_s)
            # What it took to find nothing to propose.
            self._purse.settle(0.0, self._proposed_s, alone_s, self._catch_up_s)
        else:
            worth_s = alone_s * (1 + num_accepted / num_sequences)
            self._purse.settle(worth_s, seconds + self._proposed_s, alone_s, self._catch_up_s)

    @property
    def _may_guess(self) -> bool:
        """Whether text is looked up and drafted in the coming step; predictions and pushed drafts are tried anyway."""
        # What a step takes alone changes too.
        return self._purse.is_open and self._num_decoded % _LEARN_EVERY not in _LEARN_AT

    def disable(self) -> None:
        """Proposes nothing from here on."""
        self._most = 0

    def outcome(self, sequence: Sequence) -> ProposalOutcome:
        """What became of the sequence's proposals so far."""
        record = self._records.get(sequence)
        return ProposalOutcome() if record is None else record.outcome

    def forget(self, sequence: Sequence) -> None:
        """The sequence has ended."""
        record = self._records.pop(sequence, None)
        if record is not None and record.pushed is not None:
            self._num_pushed_for -= 1
            self._num_dropped += record.pushed.num_dropped

    def statistics(self) -> SpeculationStatistics:
        """Counts since the start."""
        return SpeculationStatistics(
            dict(self._proposed), dict(self._accepted), tuple(self._accepted_at), self._num_dropped
        )

    def _find_ready(self, part: Slice) -> TokensAtHand | None:
        """What is at hand for the slice: pushed tokens, or what its text, or its prediction, says elsewhere."""
        sequence = part.sequence
        record = self._record(sequence)
        pushed = record.pushed.behind(sequence.tokens)[: part.num_draft] if record.pushed is not None else []
        remote = TokensAtHand(_REMOTE, pushed, 0) if pushed else None
        if not (self._looks_up and self._own_room(part) and (self._may_guess or record.lookup.has_prediction)):
            return remote
        found = record.lookup.find(sequence.tokens, sequence.num_output)
        if remote is None or found is None:
            return found or remote
        return remote if record.rates[_REMOTE].rate >= record.rates[found.kind].rate else found

    def _own_room(self, part: Slice) -> int:
        """Where only pushed drafts made room, it is not for the others."""
        return min(part.num_draft, self._most)

    def _chance(self, part: Slice, ready: TokensAtHand | None) -> Chance:
        """`ready`: what is at hand."""
        sequence = part.sequence
        rates = self._records[sequence].rates
        num_ready, num_draft = 0, 0
        if ready is not None:
            num_ready = len(ready.text) if ready.kind == _REMOTE else self._own_room(part)
        if self._draft is not None and self._may_guess:
            num_draft = max(min(self._own_room(part), self._draft.max_positions - len(sequence.tokens)), 0)
        return Chance(num_ready, 0.0 if ready is None else rates[ready.kind].rate, num_draft, rates[_DRAFT].rate)

    def _record(self, sequence: Sequence) -> _Record:
        record = self._records.get(sequence)
        if record is not None:
            return record
        rates = {kind: Acceptance(shared.rate, _SEQUENCE_WEIGHT) for kind, shared in self._rates.items()}
        record = _Record(rates, PromptLookup(sequence.request.prediction))
        self._records[sequence] = record
        return record

    def _judge(self, sequence: Sequence, num_accepted: int) -> None:
        record = self._records[sequence]
        kind, num_proposed = record.kind, len(sequence.draft)
        record.rates[kind].add(num_proposed, num_accepted)
        self._rates[kind].add(num_proposed, num_accepted)
        source = kind[0]
        self._proposed[source] += num_proposed
        self._accepted[source] += num_accepted
        self._accepted_at += [0] * (num_accepted - len(self._accepted_at))
        for position in range(num_accepted):
            self._accepted_at[position] += 1
        outcome = record.outcome
        if source == "prediction":
            outcome.prediction_accepted += num_accepted
            outcome.prediction_rejected += num_proposed - num_accepted
        else:
            outcome.draft_accepted += num_accepted
            outcome.draft_rejected += num_proposed - num_accepted
