"""From logits to tokens: what the sampling parameters ask for, with drafts verified on the way.

Batches of greedy rows without extras take one argmax; everything else is paid for only by the batches that use it.
The order of what is applied is vLLM's: log-probabilities are of the model's own logits; then the edits of `edits.py`;
then penalties, temperature, min-p, top-k and top-p, which are the `sample` operation's. It also tells a token's own
log-probability, where logits have no edits and nobody asks for alternatives.

A request that gives a seed gets the same tokens whatever is drafted: its tokens are drawn first, and drafts accepted
that equal them; its draft model draws with the same noise, so that they often do. Without a seed drafts are accepted by
rejection sampling, which accepts the most (docs/decisions/011).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, replace
from itertools import islice

import torch
from torch import Tensor

from backends.engine.choosing.edits import LogitEditor, LogitRows, edits_logits
from backends.engine.choosing.grammar import GrammarFactory
from backends.engine.choosing.penalties import PenaltyCounts, has_penalty
from backends.engine.choosing.sampling_params import check_params
from backends.engine.request import TokenLogprob
from backends.engine.sequence import Sequence, Slice
from kernels.choice.random import TARGET_STREAM
from kernels.choice.sample import SampleRows, likeliest_reference
from kernels.dispatch import Ops, select_ops

__all__ = ["Choice", "Sampler", "check_params"]

_GREEDY_BELOW = 1e-5
"""Temperatures below this are greedy: logits divided by them could overflow."""
_SEED_RANGE = 1 << 64
_OTHER_SEED = 1 << 63
"""Turns a seed into that of a draft's own noise: the engine draws seeds of 63 bits, so they never meet."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What follows a sequence's tokens: its first `num_accepted` drafts and one more token.

    `logprobs` has an entry for each of `tokens`, None where they were not asked for.
    """

    tokens: list[int]
    logprobs: list[TokenLogprob] | None
    num_accepted: int


@dataclass(frozen=True, slots=True)
class _Rules:
    """How a sequence is drawn, as far as it stays the same from step to step.

    `is_judged`: its draft model's proposals are verified by rejection sampling, and not by drawing first.
    """

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int
    draft_seed: int
    is_judged: bool
    has_edits: bool
    has_penalties: bool
    num_logprobs: int | None

    @property
    def is_plain(self) -> bool:
        """Whether the likeliest token of the model's own logits is all that is wanted."""
        return self.takes_likeliest and not self.has_edits and self.num_logprobs is None

    @property
    def takes_likeliest(self) -> bool:
        """Whether the token is the likeliest of the edited logits."""
        return self.temperature == 0 and not self.has_penalties

    @property
    def tells_own(self) -> bool:
        """Whether the `sample` operation knows all the log-probabilities that are asked for."""
        return self.num_logprobs == 0 and not self.has_edits


class Sampler:
    """Chooses the tokens of all sequences of a step. Owned by the engine's thread.

    `eos_token_ids` are what `min_tokens` forbids. A request with a grammar needs `grammars`. `ops` None: torch twins.
    """

    def __init__(
        self,
        vocab_size: int,
        device: torch.device,
        grammars: GrammarFactory | None = None,
        *,
        eos_token_ids: Collection[int] = (),
        ops: Ops | None = None,
    ) -> None:
        self._vocab_size = vocab_size
        self._device = device
        self._ops = select_ops(device.type, reference=True) if ops is None else ops
        self._editor = LogitEditor(vocab_size, device, grammars, eos_token_ids)
        self._counts = PenaltyCounts(vocab_size, device)
        self._rules: dict[Sequence, _Rules] = {}
        self._drawn: list[Tensor] = []
        self._last_rows: dict[bool, tuple[list[tuple[Sequence, int]], SampleRows]] = {}

    def choose(
        self, logits: Tensor, slices: SequenceOf[Slice], draft_probs: Mapping[Sequence, Tensor] | None = None
    ) -> list[Choice]:
        """A choice for each slice that samples, in order.

        `logits`: [rows, vocab] float32, for each of these slices one row behind its known tokens and one behind each
        token of `sequence.draft`; overwritten. `draft_probs`: for each sequence that `is_judged` what its drafts were
        drawn from, [draft tokens, vocab] float32; the other drafts count as proposed with certainty.
        """
        sequences = [part.sequence for part in slices if part.samples]
        rules = [self._rules_of(sequence) for sequence in sequences]
        if all(rule.is_plain for rule in rules):
            return _matched(sequences, likeliest_reference(logits).tolist())
        step: list[LogitRows] = []
        for sequence in sequences:
            step.append(LogitRows(sequence, step[-1].end if step else 0, sequence.draft))
        is_judged = [bool(draft_probs and rows.drafts and rows.sequence in draft_probs) for rows in step]
        # How many alternatives are to be found in the model's logits before they are edited.
        nums_raw = [
            None if rule.tells_own and not judged else rule.num_logprobs
            for rule, judged in zip(rules, is_judged, strict=True)
        ]
        raw = _raw_logprobs(logits, step, nums_raw)
        self._edit(logits, step, rules)
        if all(rule.takes_likeliest and not rule.tells_own for rule in rules):
            choices = _matched(sequences, likeliest_reference(logits).tolist())
        else:
            choices = self._verify(logits, step, rules, is_judged, draft_probs or {})
        return choices if raw is None else _with_logprobs(choices, raw, step, nums_raw)

    def draft(self, logits: Tensor, sequences: SequenceOf[Sequence], depth: int) -> tuple[Tensor, Tensor | None]:
        """What a draft model proposes behind `depth` tokens that it has proposed already, in the calls before.

        `logits`: [sequences, vocab] float32, overwritten. Returns the tokens, [sequences] int64, and the distributions
        they were drawn from, [sequences, vocab] float32, None where no sequence `is_judged` by them.
        """
        if not depth:
            self._drawn.clear()
        rules = [self._rules_of(sequence) for sequence in sequences]
        before: SequenceOf[SequenceOf[int]] = [()] * len(sequences)
        if self._drawn and any(rule.has_edits or rule.has_penalties for rule in rules):
            # What was proposed counts as if it belonged to the text.
            before = torch.stack(self._drawn, dim=1).tolist()
        step = [LogitRows(sequence, index, before=before[index]) for index, sequence in enumerate(sequences)]
        self._edit(logits, step, rules)
        if all(rule.takes_likeliest for rule in rules):
            tokens, probs = likeliest_reference(logits), None
        else:
            rows = self._rows(step, rules, is_draft=True, depth=depth)
            if any(rule.is_judged for rule in rules):
                tokens, probs = self._ops.sample_with_probs(logits, rows, TARGET_STREAM)
            else:
                tokens, probs = self._ops.sample(logits, rows, TARGET_STREAM), None
        self._drawn.append(tokens)
        return tokens, probs

    def is_judged(self, sequence: Sequence) -> bool:
        """Whether its draft model's proposals are verified by their distributions: drawn, and without a seed given."""
        return self._rules_of(sequence).is_judged

    def forget(self, sequence: Sequence) -> None:
        """Drops what is kept of a sequence that has ended."""
        self._rules.pop(sequence, None)
        self._editor.forget(sequence)
        self._counts.forget(sequence)

    def _rules_of(self, sequence: Sequence) -> _Rules:
        rules = self._rules.get(sequence)
        if rules is None:
            params = sequence.request.params
            is_greedy = params.temperature < _GREEDY_BELOW or params.top_k == 1
            is_seeded = params.seed is not None
            rules = self._rules[sequence] = _Rules(
                temperature=0.0 if is_greedy else params.temperature,
                top_k=params.top_k if 0 < params.top_k < self._vocab_size else self._vocab_size,
                top_p=params.top_p,
                min_p=params.min_p,
                seed=_signed(sequence.seed),
                draft_seed=_signed(sequence.seed if is_seeded else sequence.seed ^ _OTHER_SEED),
                is_judged=not (is_greedy or is_seeded),
                has_edits=edits_logits(params),
                has_penalties=has_penalty(params),
                num_logprobs=params.logprobs,
            )
        return rules

    def _rows(
        self, step: list[LogitRows], rules: list[_Rules], *, is_draft: bool = False, depth: int = 0
    ) -> SampleRows:
        """How each row is drawn; positions are `depth` further than the rows tell."""
        positions: list[int] = []
        members: list[tuple[Sequence, int]] = []
        for rows in step:
            position, count = len(rows.sequence.tokens) + depth, 1 + len(rows.drafts)
            positions += range(position, position + count)
            members.append((rows.sequence, count))
        last_members, last = self._last_rows.get(is_draft, (None, None))
        where = torch.tensor(positions, device=self._device)
        penalties = self._counts.penalties(step) if any(rule.has_penalties for rule in rules) else None
        if last is not None and last_members == members:
            # Written out: `replace` costs as much as five tensors.
            return SampleRows(
                last.seeds, where, last.temperature, last.top_k, last.top_p, last.min_p, last.is_greedy, penalties
            )
        integers, numbers, is_greedy = [], [], []
        for (_, count), rule in zip(members, rules, strict=True):
            integers += [(rule.draft_seed if is_draft else rule.seed, rule.top_k)] * count
            numbers += [(rule.temperature or 1.0, rule.top_p, rule.min_p)] * count
            is_greedy += [not rule.temperature] * count
        seeds, top_k = torch.tensor(integers, device=self._device).t().contiguous().unbind(0)
        temperature, top_p, min_p = torch.tensor(numbers, device=self._device).t().contiguous().unbind(0)
        drawn = [rule for rule in rules if rule.temperature]
        made = SampleRows(
            seeds=seeds,
            positions=where,
            temperature=temperature,
            top_k=top_k if any(rule.top_k < self._vocab_size for rule in drawn) else None,
            top_p=top_p if any(rule.top_p < 1 for rule in drawn) else None,
            min_p=min_p if any(rule.min_p > 0 for rule in drawn) else None,
            is_greedy=torch.tensor(is_greedy, device=self._device) if len(drawn) < len(rules) else None,
        )
        # Most steps have the same sequences as the one before.
        self._last_rows[is_draft] = (members, made)
        return made if penalties is None else replace(made, penalties=penalties)

    def _verify(
        self,
        logits: Tensor,
        step: list[LogitRows],
        rules: list[_Rules],
        is_judged: list[bool],
        draft_probs: Mapping[Sequence, Tensor],
    ) -> list[Choice]:
        """Each sequence by its own way of two."""
        if not any(is_judged):
            return self._draw(logits, step, rules)
        if all(is_judged):
            return self._judge(logits, step, rules, draft_probs)
        choices: dict[int, Choice] = {}
        for kind in (True, False):
            members = [index for index, found in enumerate(is_judged) if found is kind]
            part: list[LogitRows] = []
            where: list[int] = []
            for rows in (step[index] for index in members):
                part.append(LogitRows(rows.sequence, len(where), rows.drafts))
                where += range(rows.first, rows.end)
            own = [rules[index] for index in members]
            found = self._judge(logits[where], part, own, draft_probs) if kind else self._draw(logits[where], part, own)
            choices.update(zip(members, found, strict=True))
        return [choices[index] for index in range(len(step))]

    def _draw(self, logits: Tensor, step: list[LogitRows], rules: list[_Rules]) -> list[Choice]:
        """Draws first and compares then: a certain proposal x is accepted with probability p(x), as it should be, and
        the tokens are those drawn without any proposals.
        """
        sequences, sample_rows = [rows.sequence for rows in step], self._rows(step, rules)
        if not any(rule.tells_own for rule in rules):
            return _matched(sequences, self._ops.sample(logits, sample_rows, TARGET_STREAM).tolist())
        tokens, logprobs = self._ops.sample_with_logprobs(logits, sample_rows, TARGET_STREAM)
        choices = _matched(sequences, tokens.tolist())
        told = logprobs.tolist()
        return [
            replace(choice, logprobs=list(map(TokenLogprob, choice.tokens, told[rows.first :])))
            if rule.tells_own
            else choice
            for choice, rows, rule in zip(choices, step, rules, strict=True)
        ]

    def _judge(
        self, logits: Tensor, step: list[LogitRows], rules: list[_Rules], draft_probs: Mapping[Sequence, Tensor]
    ) -> list[Choice]:
        """Rejection sampling, of what was drawn from `draft_probs`."""
        sample_rows = self._rows(step, rules)
        accepted, following = self._ops.reject(
            self._ops.probabilities(logits, sample_rows),
            torch.cat([draft_probs[rows.sequence] for rows in step]),
            torch.tensor([token for rows in step for token in rows.drafts], device=self._device),
            torch.tensor([0, *(rows.end for rows in step)], device=self._device),
            sample_rows,
        )
        return [
            Choice([*rows.drafts[:num_accepted], token], None, num_accepted)
            for rows, num_accepted, token in zip(step, accepted.tolist(), following.tolist(), strict=True)
        ]

    def _edit(self, logits: Tensor, step: list[LogitRows], rules: list[_Rules]) -> None:
        edited = [rows for rows, rule in zip(step, rules, strict=True) if rule.has_edits]
        if edited:
            self._editor.apply(logits, edited)


def _raw_logprobs(logits: Tensor, step: list[LogitRows], nums_raw: list[int | None]) -> Tensor | None:
    """The model's own log-probabilities in the rows of sequences with a number, one after the other."""
    wanted = [
        row for rows, num in zip(step, nums_raw, strict=True) if num is not None for row in range(rows.first, rows.end)
    ]
    if not wanted:
        return None
    return (logits if len(wanted) == len(logits) else logits[wanted]).log_softmax(dim=1)


def _matched(sequences: list[Sequence], tokens: list[int]) -> list[Choice]:
    """Accepts the drafts that equal what was chosen in their place."""
    choices = []
    first = 0
    for sequence in sequences:
        num_accepted = 0
        for draft in sequence.draft:
            if draft != tokens[first + num_accepted]:
                break
            num_accepted += 1
        choices.append(Choice(tokens[first : first + num_accepted + 1], None, num_accepted))
        first += 1 + len(sequence.draft)
    return choices


def _with_logprobs(
    choices: list[Choice], raw: Tensor, step: list[LogitRows], nums_raw: list[int | None]
) -> list[Choice]:
    """The choices with log-probabilities from `raw`, and so many alternatives, where there is a number."""
    places: list[int] = []
    tokens: list[int] = []
    first = 0
    for choice, rows, num in zip(choices, step, nums_raw, strict=True):
        if num is not None:
            places += range(first, first + len(choice.tokens))
            tokens += choice.tokens
            first += rows.end - rows.first
    raw = raw if len(places) == len(raw) else raw[places]
    chosen = raw.gather(1, torch.tensor(tokens, device=raw.device).unsqueeze(1)).squeeze(1).tolist()
    most = max(num or 0 for num in nums_raw)
    top_values, top_tokens = (tensor.tolist() for tensor in raw.topk(min(most, raw.shape[1]), dim=1))
    entries = iter(zip(tokens, chosen, top_tokens, top_values, strict=True))
    found = []
    for choice, num in zip(choices, nums_raw, strict=True):
        if num is not None:
            logprobs = [
                TokenLogprob(token, logprob, tuple(zip(ids[:num], values[:num], strict=True)))
                for token, logprob, ids, values in islice(entries, len(choice.tokens))
            ]
            choice = replace(choice, logprobs=logprobs)
        found.append(choice)
    return found


def _signed(seed: int) -> int:
    """The seed's low 64 bits, as int64 holds them."""
    seed %= _SEED_RANGE
    return seed - _SEED_RANGE if seed >= _SEED_RANGE // 2 else seed
