"""Who proposes tokens for the target to verify, and how many: prompt lookup, the draft model, others, nobody.

For each sequence the proposer that promises the most tokens a second, by its acceptance so far and the step times as
measured. Proposals never change what is answered: the sampler verifies them exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field, replace
from typing import Literal

from torch import Tensor

from backends.engine.choosing.sampling import Choice
from backends.engine.options import Speculate
from backends.engine.sequence import Sequence, Slice
from backends.engine.speculation.adaptive import ALONE_WEIGHT, Acceptance, Length, Purse, StepTimeFit, best_draft
from backends.engine.speculation.draft_model import DraftModel, draft_lag
from backends.engine.speculation.ngram import SHORTEST_MATCH, NgramMatch, PairIndex, continuation
from backends.engine.speculation.pushed import PushedTokens
from kernels.paging import PAGE_SIZE

Source = Literal["draft", "ngram", "prediction", "remote"]

_SOURCES: tuple[Source, ...] = ("draft", "ngram", "prediction", "remote")
_Kind = tuple[Source, bool]
"""Who proposes, and whether it was a match of many tokens: those are accepted far more often."""
_START_RATES: dict[_Kind, float] = {
    ("draft", False): 0.7,
    ("ngram", False): 0.55,
    ("ngram", True): 0.75,
    ("prediction", False): 0.7,
    ("prediction", True): 0.85,
    ("remote", False): 0.8,
}
_LONG_MATCH = 4
_MOST_PUSHED = 8
"""Pushed tokens that are verified in one step."""
_REMOTE: _Kind = ("remote", False)
_SEQUENCE_WEIGHT = 0.1
_ENGINE_WEIGHT = 0.01
_LEARN_EVERY, _LEARN_AT = 128, (8, 9)
"""Steps of decoding, of which these are made alone."""
_NOTHING = Length(0, 0.0)
_FIRST_PROBE, _LAST_PROBE = 4, 64
"""Steps without a proposal after which one is made anyway, to learn whether it would pay by now; doubled each time."""


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
class _Record:
    """What is known of one sequence."""

    rates: dict[_Kind, Acceptance]
    prediction: list[int]
    pairs: PairIndex = field(default_factory=PairIndex)
    predicted_pairs: PairIndex = field(default_factory=PairIndex)
    pushed: PushedTokens | None = None
    kind: _Kind = ("ngram", False)
    num_idle: int = 0
    probe_after: int = _FIRST_PROBE
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
        self._target_time = StepTimeFit()
        self._draft_time = StepTimeFit()
        self._catch_up_time = StepTimeFit()
        """Of the draft model's steps over texts that it lags behind, over their tokens."""
        self._alone_time = StepTimeFit(ALONE_WEIGHT)
        """Of steps without proposals, over their sequences."""
        self._purse = Purse()
        self._num_decoded = 0
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
        wanted = [self._choose(part) for part in decoding]
        if self._draft is None or not self._may_guess:
            return {}
        lengths, num_behind = self._affordable(decoding, [draft.num_draft for draft in wanted], self._draft.max_tokens)
        began = self._now()
        probs = self._draft.propose(decoding, lengths, [draft.least for draft in wanted])
        took_s = self._now() - began
        drafted = [len(part.sequence.draft) for part, length in zip(decoding, lengths, strict=True) if length]
        num_steps = max(drafted, default=0)
        if num_behind:
            # Catching up with a prompt says nothing of the steps to come.
            steps_s = num_steps * self._draft_time.predict(len(decoding))
            self._catch_up_time.add(num_behind, max(took_s - steps_s, 0.0))
        elif num_steps:
            self._draft_time.add(len(decoding), took_s / num_steps)
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
            if not lengths[place] or lag < PAGE_SIZE:
                continue
            behind = min(num_behind + lag, most_behind)
            cost_s = self._catch_up_time.predict(behind)
            if num_behind and not (self._catch_up_time.is_known and cost_s <= self._purse.balance_s):
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
            self._target_time.add(num_rows, seconds)
            self._account(len(done), num_rows, num_tokens, seconds)
        elif self._alone_time.is_known:
            # What it takes beside prompts is not known; what it took to draft is, catching up with them above all.
            alone_s = self._alone_time.predict(len(done))
            self._purse.settle(alone_s * num_tokens / len(done), self._proposed_s, alone_s, self._catch_up_s)

    def _account(self, num_sequences: int, num_rows: int, num_accepted: int, seconds: float) -> None:
        """What a step of decoding has cost and brought, proposals and all."""
        self._num_decoded += 1
        if num_rows == num_sequences:
            self._alone_time.add(num_sequences, seconds)
        if not self._alone_time.is_known:
            return
        alone_s = self._alone_time.predict(num_sequences)
        if num_rows == num_sequences:
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

    def _choose(self, part: Slice) -> Length:
        """Looks up a draft for the slice, or says how many tokens the draft model shall propose at most."""
        sequence = part.sequence
        record = self._record(sequence)
        # Where only pushed drafts made room, it is not for the others.
        own = min(part.num_draft, self._most)
        may_guess = self._may_guess
        found = self._find(record, sequence) if self._looks_up and own and (may_guess or record.prediction) else None
        pushed = record.pushed.behind(sequence.tokens)[: part.num_draft] if record.pushed is not None else []
        lookup, draft, remote, most = _NOTHING, _NOTHING, _NOTHING, 0
        if found is not None:
            lookup = self._length(record.rates[found[0]].rate, own, None)
        if self._draft is not None and own and may_guess:
            most = min(own, self._draft.max_positions - len(sequence.tokens))
            draft = self._length(record.rates["draft", False].rate, most, self._draft_time)
        if pushed:
            remote = self._length(record.rates[_REMOTE].rate, len(pushed), None)
        chosen = max(remote, lookup, draft, key=lambda length: length.tokens_per_s)
        if not chosen.num_draft:
            record.num_idle += 1
            if record.num_idle < record.probe_after:
                return _NOTHING
        record.probe_after = _FIRST_PROBE if chosen.num_draft else min(2 * record.probe_after, _LAST_PROBE)
        record.num_idle = 0
        if pushed and chosen is remote:
            record.kind, sequence.draft = _REMOTE, pushed[: max(chosen.num_draft, 1)]
            return _NOTHING
        if found is not None and chosen is lookup:
            record.kind, text, position = found
            sequence.draft = continuation(text, position, max(chosen.num_draft, 1))
            return _NOTHING
        record.kind = ("draft", False)
        if most <= 0:
            return _NOTHING
        if not chosen.num_draft:
            return Length(1, 0.0)
        # More where it is sure: the draft model stops by itself where it is not.
        return replace(chosen, num_draft=min(most, 2 * chosen.num_draft))

    def _length(self, rate: float, most: int, draft_time: StepTimeFit | None) -> Length:
        if not self._target_time.is_known:
            return Length(max(most, 0), rate)
        return best_draft(rate, most, num_sequences=self._num_sequences, target=self._target_time, draft=draft_time)

    def _find(self, record: _Record, sequence: Sequence) -> tuple[_Kind, list[int], int] | None:
        """The better match of the text's end, in the prediction or in the text itself; the position behind it."""
        tokens = sequence.tokens
        record.pairs.extend(tokens)
        own = record.pairs.find(tokens, tokens)
        if record.prediction:
            record.predicted_pairs.extend(record.prediction)
            predicted = record.predicted_pairs.find(record.prediction, tokens)
            if sequence.num_output == 1 and record.prediction[0] == tokens[-1] and len(record.prediction) > 1:
                # Its beginning, of which no pair is there yet.
                predicted = NgramMatch(1, SHORTEST_MATCH)
            if predicted is not None and (own is None or predicted.length >= own.length):
                return ("prediction", predicted.length >= _LONG_MATCH), record.prediction, predicted.position
        return None if own is None else (("ngram", own.length >= _LONG_MATCH), tokens, own.position)

    def _record(self, sequence: Sequence) -> _Record:
        record = self._records.get(sequence)
        if record is not None:
            return record
        rates = {kind: Acceptance(shared.rate, _SEQUENCE_WEIGHT) for kind, shared in self._rates.items()}
        record = _Record(rates, list(sequence.request.prediction))
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
