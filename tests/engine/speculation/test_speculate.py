"""Who proposes how much, and what is learned from it; then the answers' distribution with drafts that are drawn."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Sequence as SequenceOf
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from backends.engine.choosing.sampling import Choice
from backends.engine.engine import Engine
from backends.engine.load import load_parts
from backends.engine.request import Request, SamplingParams
from backends.engine.sequence import Sequence, Slice
from backends.engine.speculation.speculate import Speculator
from kernels.paging import PAGE_SIZE
from tests.support.engine.tiny_pair import Pair, answer, make_pair, options

REPEATING = (1, 2, 3, 4, 1, 2, 3, 4, 1, 2)
FRESH = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10)


class FixedDraft:
    """A draft model that proposes token 7 and takes no time; says what it drew from if it is `unsure`."""

    max_positions = 100
    max_tokens = 1000

    def __init__(self, *, is_unsure: bool = False) -> None:
        self.asked: list[list[int]] = []
        self.least: list[list[float]] = []
        self._is_unsure = is_unsure

    def propose(
        self, slices: SequenceOf[Slice], lengths: SequenceOf[int], least: SequenceOf[float]
    ) -> dict[Sequence, Tensor]:
        """As many tokens as were asked for."""
        self.asked.append(list(lengths))
        self.least.append(list(least))
        found = {}
        for part, length in zip(slices, lengths, strict=True):
            if length:
                part.sequence.draft = [7] * length
                found[part.sequence] = torch.full((length, 16), 1 / 16)
        return found if self._is_unsure else {}


def sequence(prompt: tuple[int, ...], **changes: Any) -> Sequence:
    """One that has sampled a token."""
    return Sequence(Request(id="a", prompt=prompt[:-1], **changes), 0, 0, list(prompt), 1)


def decoding(made: Sequence, room: int = 4) -> Slice:
    """A slice of one known token, with room for drafts."""
    return Slice(made, len(made.tokens) - 1, 1, room, True)


def make(mode: Any, draft: FixedDraft | None = None, *, below: int = 8) -> Speculator:
    """A speculator whose clock stands still."""
    return Speculator(mode, draft, most=4, below=below, now=lambda: 0.0)  # type: ignore[arg-type]


def verify(speculator: Speculator, made: Sequence, num_accepted: int, seconds: float) -> None:
    """The target's step over the sequence's draft."""
    choice = Choice([*made.draft[:num_accepted], 0], None, num_accepted)
    speculator.observe([(decoding(made), choice)], seconds)
    made.draft = []


def test_lookup_in_a_text_that_repeats_proposes_what_followed() -> None:
    """The text's own continuation, as many tokens as there is room for, as long as nothing is measured."""
    made = sequence(REPEATING)

    assert make("ngram").propose([decoding(made)]) == {}
    assert made.draft == [3, 4, 1, 2]


def test_lookup_in_a_fresh_text_proposes_nothing() -> None:
    """Without a draft model nobody else does."""
    made = sequence(FRESH)
    make("ngram").propose([decoding(made)])

    assert made.draft == []


def test_lookup_prefers_a_prediction_that_matches_as_well() -> None:
    """What the client predicts is worth more than what the text says elsewhere."""
    made = sequence(REPEATING, prediction=(9, 4, 1, 2, 5, 6, 7))
    speculator = make("ngram")
    speculator.propose([decoding(made)])
    proposed = list(made.draft)
    verify(speculator, made, 2, 1.0)

    outcome = speculator.outcome(made)
    assert proposed == [3, 4, 1, 2]  # the text's match is longer
    made = sequence((9, 4, 1, 2), prediction=(9, 4, 1, 2, 5, 6, 7))
    speculator.propose([decoding(made)])
    assert made.draft[:3] == [5, 6, 7]
    verify(speculator, made, 2, 1.0)
    assert (outcome.draft_accepted, outcome.draft_rejected) == (2, 2)
    assert speculator.outcome(made).prediction_accepted == 2
    assert speculator.statistics().accepted == {"draft": 0, "ngram": 2, "prediction": 2, "remote": 0}


def test_prediction_that_begins_as_the_answer_does_is_proposed_from_its_second_token_on() -> None:
    """Before there is a pair to look up; one that begins otherwise is not, and a longer text is taken in by and by."""
    begins, other, huge = (sequence(FRESH, prediction=text) for text in ((10, 7, 8), (9, 7, 8), (10, *range(99_999))))
    speculator = make("ngram")
    speculator.propose([decoding(begins), decoding(other), decoding(huge)])

    assert begins.draft == [7, 8, 7, 8]
    assert other.draft == []
    assert huge.draft == [0, 1, 2, 3]


def losing(speculator: Speculator, made: Sequence, steps: int) -> int:
    """Steps whose proposals are all rejected, at five times the time of one alone; in how many there were some."""
    num_proposed = 0
    for _ in range(steps):
        speculator.propose([decoding(made)])
        num_proposed += bool(made.draft)
        verify(speculator, made, 0, 0.05 if made.draft else 0.01)
    return num_proposed


def test_speculation_that_loses_is_let_be_for_all_answers_and_costs_no_room() -> None:
    """New answers do not begin to guess anew, but a prediction of their own is tried, and so are pushed tokens."""
    speculator = make("auto", FixedDraft())
    assert losing(speculator, sequence(FRESH), 126) < 30
    losing(speculator, sequence(FRESH), 300)

    assert losing(speculator, sequence(FRESH), 40) == 0
    assert speculator.room == 0
    predicted = sequence(FRESH, prediction=(*FRESH, 5, 6))
    speculator.propose([Slice(predicted, 9, 1, 0, True)])
    assert speculator.room == 4
    speculator.propose([decoding(predicted)])
    assert predicted.draft[:2] == [5, 6]


def test_step_alone_behind_guesses_is_not_what_a_step_alone_takes() -> None:
    """It takes twice as long here, as nothing can be taken over: by it guesses would pay, though all are wrong."""
    speculator, made = make("draft", FixedDraft()), sequence(FRESH)
    proposed = [True]
    for _ in range(600):
        speculator.propose([decoding(made)])
        seconds = 0.015 if made.draft else 0.02 if proposed[-1] else 0.01
        proposed.append(bool(made.draft))
        verify(speculator, made, 0, seconds)

    assert sum(proposed) < 60


def test_catching_up_with_prompts_in_steps_that_read_others_is_paid_for_too() -> None:
    """A draft that takes five steps' time and more beside each new prompt is let be, whatever it brings otherwise."""
    clock = itertools.count()
    draft: Any = FixedDraft()
    speculator = Speculator("auto", draft, most=4, below=8, now=lambda: 0.05 * next(clock))
    made, other = sequence(FRESH), sequence(FRESH)
    verify(speculator, made, 0, 0.01)
    assert speculator.room == 4
    beside = Slice(other, 0, 9, 0, False)
    for _ in range(3):
        speculator.propose([decoding(made), beside])
        speculator.observe([(decoding(made), Choice([0], None, 0)), (beside, None)], 0.1)
        made.draft = []

    assert speculator.room == 0


def test_of_many_texts_that_the_draft_lags_behind_as_many_are_caught_up_with_as_the_purse_can_pay() -> None:
    """One at first, of which nobody knows what it takes; then more, where that is known and there is enough."""
    clock = itertools.count()
    draft = FixedDraft()
    draft.max_positions = 1000
    speculator = Speculator("draft", draft, most=4, below=8, now=lambda: 1e-4 * next(clock))  # type: ignore[arg-type]
    texts = [sequence(tuple(range(1, 4 * PAGE_SIZE))) for _ in range(4)]
    verify(speculator, sequence(FRESH), 0, 0.01)

    speculator.propose([decoding(made) for made in texts])
    assert draft.asked[-1] == [4, 0, 0, 0]
    speculator.observe([(decoding(made), Choice([0], None, 0)) for made in texts], 0.01)
    speculator.propose([decoding(made) for made in texts])
    assert draft.asked[-1] == [4, 4, 4, 4]


def test_text_past_the_draft_models_context_is_no_probe_and_teaches_nothing() -> None:
    """The draft model leaves it alone, so what that takes is not what catching up takes."""
    draft = FixedDraft()
    speculator = make("draft", draft)
    made = sequence(tuple(range(1, 2 * PAGE_SIZE)))
    for _ in range(10):
        speculator.propose([decoding(made)])
        verify(speculator, made, 0, 1.0)

    assert {length for asked in draft.asked for length in asked} == {0}


def test_step_that_carries_out_nothing_teaches_nothing() -> None:
    """As where all that a step was planned for is refused, or waits for pages that come back."""
    speculator = make("auto", FixedDraft())
    verify(speculator, sequence(FRESH), 0, 0.01)
    speculator.propose([])
    speculator.observe([], 0.5)
    assert speculator.room == 4


def test_auto_without_a_match_asks_the_draft_model() -> None:
    """Each sequence of a step has its own proposer."""
    draft = FixedDraft()
    repeating, fresh = sequence(REPEATING), sequence(FRESH)
    make("auto", draft).propose([decoding(fresh), decoding(repeating)])

    assert fresh.draft == [7, 7, 7, 7]
    assert draft.asked[0][0] == 4


@pytest.mark.parametrize("mode", ["off", "auto"])
def test_room_above_the_batch_limit_or_switched_off_is_none(mode: str) -> None:
    """Pages and budget are not set aside for drafts that will not be made."""
    speculator = make(mode, FixedDraft(), below=2)
    small = speculator.room
    speculator.propose([Slice(sequence(FRESH), 9, 1, 0, True) for _ in range(3)])

    assert (small, speculator.room) == ((0, 0) if mode == "off" else (4, 0))


def test_disable_ends_all_proposals() -> None:
    """For good."""
    speculator = make("auto", FixedDraft())
    speculator.disable()

    assert speculator.room == 0


def test_drafts_that_are_never_accepted_stop_but_for_a_probe_now_and_then() -> None:
    """Rows cost time here, so useless drafts are given up, and tried again at long intervals."""
    draft = FixedDraft()
    speculator = make("draft", draft)
    made = sequence(FRESH)
    lengths = []
    for _ in range(400):
        speculator.propose([decoding(made)])
        lengths.append(len(made.draft))
        verify(speculator, made, 0, 1.0 + 0.5 * len(made.draft))

    assert lengths[0] > 0
    assert 2 <= sum(length > 0 for length in lengths[-200:]) <= 4


def test_drafts_that_are_always_accepted_stay_at_the_most() -> None:
    """Rows are cheap here, so each accepted draft is worth its row."""
    speculator = make("draft", FixedDraft())
    made = sequence(FRESH)
    lengths = []
    for _ in range(60):
        speculator.propose([decoding(made)])
        lengths.append(len(made.draft))
        verify(speculator, made, len(made.draft), 1.0 + 0.05 * len(made.draft))

    # Three steps alone, to learn what that takes.
    assert (set(lengths), lengths.count(0)) == ({0, 4}, 3)
    assert speculator.statistics().accepted_at == (57, 57, 57, 57)


def test_sure_draft_is_asked_for_more_than_the_average_pays_for() -> None:
    """The draft model gets up to twice the length, and is told how sure it has to be to go on."""
    draft, clock = FixedDraft(), itertools.count()
    speculator = Speculator("draft", draft, most=8, below=8, now=lambda: 0.1 * next(clock))  # type: ignore[arg-type]
    made = sequence(FRESH, params=SamplingParams(temperature=0))
    for number in range(40):
        speculator.propose([decoding(made, number % 8 + 1)])
        verify(speculator, made, min(1, len(made.draft)), 1.0 + 0.05 * len(made.draft))

    speculator.propose([decoding(made, 8)])

    assert 1 < draft.asked[-1][0] < 8
    assert draft.asked[-1][0] % 2 == 0
    assert 0 < draft.least[-1][0] < 1


def test_draft_that_is_drawn_is_no_longer_than_pays_for_itself() -> None:
    """It does not end by itself where the draft model is not sure."""
    draft, clock = FixedDraft(), itertools.count()
    speculator = Speculator("draft", draft, most=8, below=8, now=lambda: 0.1 * next(clock))  # type: ignore[arg-type]
    lengths = []
    for temperature in (1, 0):
        made = sequence(FRESH, params=SamplingParams(temperature=temperature))
        for number in range(40):
            speculator.propose([decoding(made, number % 8 + 1)])
            verify(speculator, made, min(1, len(made.draft)), 1.0 + 0.05 * len(made.draft))
        speculator.propose([decoding(made, 8)])
        lengths.append(draft.asked[-1][0])

    assert 0 < lengths[0] < lengths[1]


def test_draft_model_that_is_not_worth_it_is_tried_for_several_at_once_and_for_no_more() -> None:
    """A step of it takes hardly longer for eight than for one, and tells eight times as much."""
    draft = FixedDraft()
    speculator = make("draft", draft, below=32)
    texts = [sequence(FRESH) for _ in range(20)]
    for made in texts:
        made.num_drafted = len(FRESH) - 1
    for _ in range(40):
        speculator.propose([decoding(made) for made in texts])
        num_proposed = sum(len(made.draft) for made in texts)
        speculator.observe([(decoding(made), Choice([0], None, 0)) for made in texts], 1.0 + 0.02 * num_proposed)
        for made in texts:
            made.draft = []

    assert sum(draft.asked[0]) == 80
    probes = [asked for asked in draft.asked[1:] if sum(asked)]
    assert {sum(asked) for asked in probes[-2:]} == {8}
    assert max(probes[-1]) == 1


def test_long_matches_keep_a_rate_of_their_own() -> None:
    """Rejected continuations of short matches do not stop those of long ones."""
    speculator = make("ngram")
    short, long = sequence((1, 2, 3, 9, 4, 1, 2)), sequence(REPEATING)
    for _ in range(100):
        speculator.propose([decoding(short)])
        num_proposed = len(short.draft)
        verify(speculator, short, 0, 1.0 + 0.5 * len(short.draft))

    speculator.propose([decoding(long)])

    assert len(long.draft) > num_proposed


@pytest.mark.parametrize(("temperature", "least", "expected"), [(0, 0.0, 4), (0, 0.9, 1), (1, 0.9, 4)])
def test_draft_model_that_is_not_sure_ends_a_greedy_draft(
    pair: Pair, temperature: float, least: float, expected: int
) -> None:
    """Random weights are sure of nothing; a drawn token may be unlikely and yet be accepted."""
    parts = load_parts(options(pair, speculate="draft"), _stopped)
    params = SamplingParams(temperature=temperature)
    made = Sequence(Request(id="a", prompt=(5, 6, 7), params=params), 0, 0, [5, 6, 7], 1, pages=[1])
    assert parts.draft is not None

    parts.draft.propose([Slice(made, 2, 1, 4, True)], [4], [least])

    assert len(made.draft) == expected
    assert made.num_drafted == 3 + expected - 1


def test_draft_past_the_draft_models_context_is_cut() -> None:
    """A draft model may have been made for shorter texts than its target."""
    draft = FixedDraft()
    made = sequence(tuple(range(10)) * 10)
    made.tokens = made.tokens[:98]
    make("draft", draft).propose([decoding(made)])

    assert draft.asked == [[2]]


def test_distributions_of_a_step_are_of_what_was_drawn() -> None:
    """What was looked up was proposed with certainty, and has none."""
    first, second = sequence(FRESH), sequence(REPEATING)
    speculator = make("auto", FixedDraft(is_unsure=True))
    # Lookup wins where it is believed to be accepted more often.
    for _ in range(200):
        speculator.propose([decoding(second, 2)])
        verify(speculator, second, 0 if second.draft[:1] == [7] else len(second.draft), 1.0)

    probs = speculator.propose([decoding(first), decoding(second, 2)])

    assert second.draft == [3, 4]
    assert set(probs) == {first}
    assert probs[first].shape == (len(first.draft), 16)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """The models, made once."""
    return make_pair(tmp_path_factory.mktemp("pair"))


def test_drawn_drafts_of_the_target_itself_are_all_accepted(pair: Pair) -> None:
    """Both distributions are the same: a rejection would mean that rows and drafts do not belong together."""
    params = SamplingParams(max_tokens=30, ignore_eos=True)
    made = [Request(id=str(number), prompt=(number, 5, 6), params=params) for number in range(6)]
    engine = Engine(options(pair, speculate="draft", draft=pair.target, max_draft=3), now=_stopped)
    engine.start()
    try:
        answer(engine, made)
        statistics = engine.statistics().speculation
    finally:
        engine.close()

    # Rounding differs between a step of one row and one of four.
    assert statistics.accepted["draft"] >= 0.99 * statistics.proposed["draft"] > 100


@pytest.mark.parametrize("is_seeded", [True, False])
def test_answers_with_drawn_drafts_keep_the_targets_distribution(pair: Pair, is_seeded: bool) -> None:
    """All answers of three tokens out of the two likeliest at each place, counted over many seeds (chi-square)."""
    prompt, num_requests = (40, 41, 42, 43), 800
    expected = _answers_of_two(pair, prompt)
    params = SamplingParams(max_tokens=3, top_k=2, ignore_eos=True)
    given = options(pair, speculate="draft", max_draft=2, max_requests=num_requests)
    engine = Engine(given, now=_stopped, rng=random.Random(1))
    engine.start()
    try:
        made = [
            Request(id=str(number), prompt=prompt, params=replace(params, seed=number if is_seeded else None))
            for number in range(num_requests)
        ]
        found = Counter(tuple(one.tokens()) for one in answer(engine, made))
        statistics = engine.statistics().speculation
    finally:
        engine.close()

    assert set(found) <= set(expected)
    chi_square = sum(
        (found[tokens] - share * num_requests) ** 2 / (share * num_requests) for tokens, share in expected.items()
    )
    assert 0 < statistics.accepted["draft"] < statistics.proposed["draft"]
    # The 99.9th percentile with seven degrees of freedom.
    assert chi_square < 24.32


def _stopped() -> float:
    """A clock that measures nothing, so that as much is drafted as there is room for."""
    return 0.0


def _answers_of_two(pair: Pair, prompt: tuple[int, ...]) -> dict[tuple[int, ...], float]:
    """Each possible answer of three tokens and its probability, by another implementation of the target."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(pair.target)
    found: dict[tuple[int, ...], float] = {}
    for places in itertools.product((0, 1), repeat=3):
        tokens: list[int] = []
        share = 1.0
        for place in places:
            with torch.inference_mode():
                values, ids = model(torch.tensor([[*prompt, *tokens]])).logits[0, -1].topk(2)
            share *= math.exp(torch.log_softmax(values, 0)[place].item())
            tokens.append(ids[place].item())
        found[tuple(tokens)] = share
    return found
