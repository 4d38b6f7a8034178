"""The sampler gives each row what its own request asks for, whoever its neighbours are and whatever was drafted."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from backends.engine.choosing.edits import LogitEditor, LogitRows
from backends.engine.choosing.sampling import Choice, Sampler, check_params
from backends.engine.errors import RequestRefused
from backends.engine.request import Request, SamplingParams
from backends.engine.sequence import Sequence, Slice
from tests.support.kernels.chi_square import P_001, misfit

VOCAB = 32
CPU = torch.device("cpu")


def make_sequence(
    prompt: list[int],
    output: list[int] | None = None,
    *,
    seed: int = 0,
    is_seeded: bool = False,
    draft: list[int] | None = None,
    **params: Any,
) -> Sequence:
    """An answer that has come as far as `output`; `params` of its request, greedy where they name no temperature.

    `is_seeded`: the seed was given by the request.
    """
    settings = SamplingParams(**({"temperature": 0.0, "seed": seed if is_seeded else None} | params))
    request = Request(id="r", prompt=tuple(prompt), params=settings)
    return Sequence(request, 0, 0, prompt + (output or []), seed, draft=draft or [])


def sampling(sequence: Sequence) -> Slice:
    """The slice that ends with the sequence's tokens."""
    return Slice(sequence, len(sequence.tokens) - 1, 1, len(sequence.draft), samples=True)


def random_logits(rows: int, seed: int = 0, vocab: int = VOCAB) -> Tensor:
    """Logits of a wide distribution."""
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * 2


def choose(
    logits: Tensor,
    *sequences: Sequence,
    sampler: Sampler | None = None,
    probs: dict[Sequence, Tensor] | None = None,
) -> list[Choice]:
    """What a sampler chooses for these sequences; the logits stay as they are."""
    sampler = sampler or Sampler(logits.shape[1], CPU)
    return sampler.choose(logits.clone(), [sampling(sequence) for sequence in sequences], probs)


def test_greedy_rows_take_the_likeliest_and_accept_drafts_that_equal_it() -> None:
    """Up to the first draft that differs; slices that do not sample have no rows."""
    logits = random_logits(9)
    best = logits.argmax(1).tolist()
    sequences = [
        make_sequence([1], draft=[best[0], best[1]]),
        make_sequence([1], draft=[best[3], best[4] + 1, best[5]]),
        make_sequence([1]),
    ]
    prefill = Slice(make_sequence([1, 2, 3]), 0, 2, 0, samples=False)
    choices = Sampler(VOCAB, CPU).choose(logits[:8], [prefill, *map(sampling, sequences)])

    assert [(choice.tokens, choice.num_accepted) for choice in choices] == [
        (best[:3], 2),
        (best[3:5], 1),
        ([best[7]], 0),
    ]


MIXED_PARAMS = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.sampled_from([0.0, 0.7, 1.0, 2.0]),
        "top_k": st.sampled_from([1, 5, 100]),
        "top_p": st.sampled_from([0.3, 0.9]),
        "min_p": st.sampled_from([0.05]),
        "presence_penalty": st.sampled_from([1.5]),
        "frequency_penalty": st.sampled_from([-1.0]),
        "repetition_penalty": st.sampled_from([1.3]),
        "logit_bias": st.just({3: 5.0, 4: -100.0}),
        "min_tokens": st.just(4),
        "logprobs": st.sampled_from([0, 3]),
    },
)


@given(st.lists(st.tuples(MIXED_PARAMS, st.integers(0, 3)), min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_choice_does_not_depend_on_neighbours_or_their_order(
    members: list[tuple[dict[str, Any], int]], random: Any
) -> None:
    """Alone, among others and in another order, each sequence gets the same tokens and log-probabilities."""
    sequences, rows = [], []
    for number, (params, num_draft) in enumerate(members):
        draft = [random.randrange(VOCAB) for _ in range(num_draft)]
        sequences.append(make_sequence([1, 2], [3, 3, 5], seed=number * 2**61 - 9, draft=draft, **params))
        rows.append(random_logits(1 + num_draft, number))
    alone = [choose(logits, sequence)[0] for logits, sequence in zip(rows, sequences, strict=True)]
    order = list(range(len(members)))
    random.shuffle(order)
    together = choose(torch.cat([rows[index] for index in order]), *(sequences[index] for index in order))

    assert together == [alone[index] for index in order]


@given(MIXED_PARAMS, st.lists(st.integers(0, VOCAB - 1), max_size=4), st.integers(-(2**63), 2**64 - 1))
def test_proposals_made_with_certainty_change_no_token(params: dict[str, Any], draft: list[int], seed: int) -> None:
    """Verified drafts and the token behind them are what would have been drawn one at a time."""
    model = {depth: random_logits(1, depth) for depth in range(len(draft) + 1)}
    speculating = make_sequence([1], [2, 3], seed=seed, draft=draft, **params)
    tokens = choose(torch.cat([model[depth] for depth in range(len(draft) + 1)]), speculating)[0].tokens
    plain = make_sequence([1], [2, 3], seed=seed, **params)
    sampler = Sampler(VOCAB, CPU)
    for depth in range(len(tokens)):
        plain.tokens += choose(model[depth], plain, sampler=sampler)[0].tokens

    assert tokens == plain.tokens[3:]


def test_drafts_of_a_draft_model_keep_the_distribution_with_filters_and_penalties() -> None:
    """Chi-square of the first two tokens over 20,000 runs, with a draft model of other opinions."""
    params: dict[str, Any] = {"temperature": 0.9, "top_k": 12, "frequency_penalty": 1.0, "presence_penalty": 0.5}
    target, proposal = random_logits(1, 1), random_logits(1, 2)
    runs = 20_000
    sampler = Sampler(VOCAB, CPU)
    sequences = [make_sequence([1], seed=seed, **params) for seed in range(runs)]
    probs = []
    drafts: list[Tensor] = []
    for depth in range(2):
        tokens, drawn = sampler.draft(proposal.expand(runs, VOCAB).clone(), sequences, depth)
        assert drawn is not None
        drafts.append(tokens)
        probs.append(drawn)
    for sequence, draft in zip(sequences, torch.stack(drafts, 1).tolist(), strict=True):
        sequence.draft = draft
    choices = sampler.choose(
        target.expand(3 * runs, VOCAB).clone(),
        [sampling(sequence) for sequence in sequences],
        dict(zip(sequences, torch.stack(probs, 1), strict=True)),
    )
    firsts = torch.tensor([choice.tokens[0] for choice in choices])
    pairs = torch.tensor([choice.tokens[0] * VOCAB + choice.tokens[1] for choice in choices if len(choice.tokens) > 1])

    def distribution(logits: Tensor) -> Tensor:
        kept = logits >= logits.topk(12).values[-1]
        return torch.where(kept, logits / 0.9, -math.inf).softmax(0)

    first = distribution(target[0])
    second = torch.stack([distribution(target[0] - 1.5 * torch.eye(VOCAB)[token]) for token in range(VOCAB)])
    proposed = distribution(proposal[0])
    # A second token is there where the first draft was accepted.
    shared = torch.minimum(first, proposed)
    assert misfit(firsts.bincount(minlength=VOCAB), first) < P_001
    assert misfit(pairs.bincount(minlength=VOCAB**2), shared.unsqueeze(1) * second) < P_001


def test_draft_follows_the_edits_behind_what_was_drafted_before() -> None:
    """A penalty makes the draft model avoid its own proposals too; greedy drafts need no distribution."""
    sampler = Sampler(4, CPU)
    logits = torch.tensor([[3.0, 2.5, 0.0, 0.0], [3.0, 2.5, 0.0, 0.0]])
    sequences = [make_sequence([1], presence_penalty=1.0), make_sequence([1])]
    drafts = [sampler.draft(logits.clone(), sequences, depth) for depth in range(3)]

    assert [tokens.tolist() for tokens, _ in drafts] == [[0, 0], [1, 0], [0, 0]]
    assert all(probs is None for _, probs in drafts)


def test_draft_of_one_position_differs_from_the_target_draw() -> None:
    """Equal noise on both sides would accept drafts too often."""
    logits = torch.zeros(200, VOCAB)
    sequences = [make_sequence([1], seed=seed, temperature=1.0) for seed in range(200)]
    sampler = Sampler(VOCAB, CPU)
    drafted = sampler.draft(logits.clone(), sequences, 0)[0]
    chosen = torch.tensor([choice.tokens[0] for choice in choose(logits, *sequences, sampler=sampler)])

    # 200 draws agree in 6 of 32 on average.
    assert int((drafted == chosen).sum()) < 25


def test_draft_with_a_given_seed_makes_the_target_draw_where_the_distributions_are_equal() -> None:
    """The same noise on both sides, at every depth; no distribution is needed to compare."""
    logits = random_logits(3)
    sequence = make_sequence([1], seed=4, is_seeded=True, temperature=1.3, top_k=20)
    sampler = Sampler(VOCAB, CPU)
    drawn = [sampler.draft(logits[depth : depth + 1].clone(), [sequence], depth) for depth in range(2)]
    sequence.draft = [int(tokens) for tokens, _ in drawn]
    [choice] = choose(logits, sequence, sampler=sampler)

    assert choice.num_accepted == 2
    assert all(probs is None for _, probs in drawn)


@given(st.lists(st.tuples(MIXED_PARAMS, st.integers(0, 3), st.booleans()), min_size=1, max_size=5))
def test_seeded_choices_among_judged_ones_are_those_without_drafts(
    members: list[tuple[dict[str, Any], int, bool]],
) -> None:
    """Whatever the neighbours' way of verification, and whatever was drafted: a given seed fixes the tokens."""
    sampler, sequences = Sampler(VOCAB, CPU), []
    for number, (params, num_draft, is_seeded) in enumerate(members):
        sequence = make_sequence([1], [2], seed=number, is_seeded=is_seeded, **params)
        sequence.draft = [(7 * number + depth) % VOCAB for depth in range(num_draft)]
        sequences.append(sequence)
    probs = {
        sequence: torch.eye(VOCAB)[sequence.draft]
        for sequence in sequences
        if sampler.is_judged(sequence) and sequence.draft
    }
    model = random_logits(4)
    logits = torch.cat([model[: 1 + len(sequence.draft)] for sequence in sequences])
    choices = choose(logits, *sequences, sampler=sampler, probs=probs)

    for sequence, choice in zip(sequences, choices, strict=True):
        if sequence in probs:
            continue
        plain = make_sequence([1], [2], seed=sequence.seed)
        plain.request = sequence.request
        for depth, token in enumerate(choice.tokens):
            assert choose(model[depth : depth + 1], plain)[0].tokens == [token]
            plain.tokens.append(token)


def test_seeded_drafts_keep_the_distribution_and_are_accepted_often() -> None:
    """Chi-square of the first token over 20,000 seeds; accepted at least as often as coupled noise promises."""
    target, proposal = random_logits(1, 1), random_logits(1, 2) * 0.3 + random_logits(1, 1) * 0.7
    runs = 20_000
    sampler = Sampler(VOCAB, CPU)
    sequences = [make_sequence([1], seed=seed, is_seeded=True, temperature=1.0) for seed in range(runs)]
    tokens, _ = sampler.draft(proposal.expand(runs, VOCAB).clone(), sequences, 0)
    for sequence, token in zip(sequences, tokens.tolist(), strict=True):
        sequence.draft = [token]
    choices = choose(target.expand(2 * runs, VOCAB), *sequences, sampler=sampler)
    first = target[0].softmax(0)
    distance = 0.5 * float((first - proposal[0].softmax(0)).abs().sum())
    promised = (1 - distance) / (1 + distance)
    sigma = (promised * (1 - promised) / runs) ** 0.5

    assert misfit(torch.tensor([choice.tokens[0] for choice in choices]).bincount(minlength=VOCAB), first) < P_001
    assert sum(choice.num_accepted for choice in choices) / runs > promised - 3 * sigma


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logprobs_are_those_of_the_model_before_anything_is_applied(temperature: float) -> None:
    """For accepted drafts and the token behind them; the alternatives are the likeliest, best first."""
    logits = random_logits(4)
    raw = logits.log_softmax(1)
    sequences = [
        make_sequence([1], draft=[5], temperature=temperature, logit_bias={5: 100.0}, logprobs=2),
        make_sequence([1], temperature=temperature),
        make_sequence([1], temperature=temperature, logprobs=0),
    ]
    first, second, third = choose(logits, *sequences)

    assert first.tokens == [5, 5]
    assert second.logprobs is None
    assert first.logprobs is not None
    assert third.logprobs is not None
    for row, entry in enumerate(first.logprobs):
        values, tokens = raw[row].topk(2)
        assert (entry.token, entry.logprob) == (5, pytest.approx(float(raw[row, 5])))
        assert entry.top == tuple(zip(tokens.tolist(), values.tolist(), strict=True))
    (last,) = third.logprobs
    assert (last.token, last.logprob, last.top) == (third.tokens[0], pytest.approx(float(raw[3, last.token])), ())


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("num_alternatives", [0, 2])
def test_logprobs_of_penalised_tokens_are_of_the_models_own_logits(temperature: float, num_alternatives: int) -> None:
    """Whether alternatives are asked for or not, for drafts and behind them, among others who ask for other things."""
    logits = random_logits(5)
    raw = logits.log_softmax(1)
    settings: dict[str, Any] = {"temperature": temperature, "repetition_penalty": 1.4, "logprobs": num_alternatives}
    first = make_sequence([1, 4], [9], seed=3, frequency_penalty=1.5, **settings)
    [plain] = choose(logits[:1], first)
    first.draft = [*plain.tokens, 0]
    chosen, _, last = choose(
        logits,
        first,
        make_sequence([2], logprobs=1),
        make_sequence([3], temperature=0.0, logit_bias={6: 50.0}, logprobs=0),
    )

    assert chosen.logprobs is not None
    assert last.logprobs is not None
    assert chosen.num_accepted >= 1
    assert [entry.token for entry in chosen.logprobs] == chosen.tokens
    for row, entry in enumerate(chosen.logprobs):
        assert entry.logprob == float(raw[row, entry.token])
        assert len(entry.top) == num_alternatives
    assert [(entry.token, entry.logprob) for entry in last.logprobs] == [(6, float(raw[4, 6]))]


def edited_naively(logits: list[float], params: SamplingParams, prompt: list[int], output: list[int]) -> list[float]:
    """Bias and penalties of one row, token by token."""
    edited = []
    for token, value in enumerate(logits):
        value += params.logit_bias.get(token, 0.0)
        if token in prompt or token in output:
            value = value / params.repetition_penalty if value > 0 else value * params.repetition_penalty
        value -= params.frequency_penalty * output.count(token)
        value -= params.presence_penalty * (token in output)
        edited.append(value)
    return edited


@given(st.data())
def test_edits_of_every_row_are_those_of_its_own_text(data: st.DataObject) -> None:
    """Step after step, with drafts, through the greedy token that the edited logits lead to."""
    vocab = 6
    tokens = st.lists(st.integers(0, vocab - 1), max_size=4)
    sampler = Sampler(vocab, CPU)
    sequences = [
        make_sequence(
            [0, *data.draw(tokens)],
            presence_penalty=data.draw(st.sampled_from([0.0, 1.0])),
            frequency_penalty=data.draw(st.sampled_from([0.0, 0.5, -0.5])),
            repetition_penalty=data.draw(st.sampled_from([1.0, 1.7])),
            logit_bias=data.draw(st.sampled_from([{}, {2: 1.25}])),
        )
        for _ in range(data.draw(st.integers(1, 3)))
    ]
    for step in range(3):
        for sequence in sequences:
            sequence.draft = data.draw(tokens)
        logits = random_logits(sum(1 + len(sequence.draft) for sequence in sequences), step, vocab)
        choices = choose(logits, *sequences, sampler=sampler)
        rows = iter(logits.tolist())
        for sequence, choice in zip(sequences, choices, strict=True):
            expected = []
            for depth in range(1 + len(sequence.draft)):
                text = sequence.tokens[sequence.num_prompt :] + sequence.draft[:depth]
                edited = edited_naively(next(rows), sequence.request.params, list(sequence.request.prompt), text)
                expected.append(edited.index(max(edited)))
            assert choice.tokens == expected[: len(choice.tokens)]
            sequence.tokens += choice.tokens


def test_penalty_counts_are_not_inherited_by_the_next_sequence() -> None:
    """A row of counts that was given back starts from zero."""
    sampler = Sampler(4, CPU)
    logits = torch.tensor([[1.0, 0.9, 0.0, 0.0]])
    for _ in range(20):
        sequence = make_sequence([3], [0], presence_penalty=1.0)
        assert choose(logits, sequence, sampler=sampler)[0].tokens == [1]
        sampler.forget(sequence)
        fresh = make_sequence([3], presence_penalty=1.0)
        assert choose(logits, fresh, sampler=sampler)[0].tokens == [0]
        sampler.forget(fresh)


def test_biases_are_made_once_for_an_answer_and_cost_little_then() -> None:
    """There may be one for every token; all other answers of a step wait for them."""
    num_tokens = 200_000
    editor = LogitEditor(num_tokens, CPU, None, ())
    sequence = make_sequence([2], logit_bias=dict.fromkeys(range(num_tokens), 1.0))
    times = []
    for number in range(6):
        logits = torch.full((1, num_tokens), float(number))
        began = time.thread_time()
        editor.apply(logits, [LogitRows(sequence, 0)])
        times.append(time.thread_time() - began)
        assert logits.min() == logits.max() == number + 1

    assert min(times[1:]) < times[0] / 2


def test_min_tokens_forbids_the_end_until_there_are_so_many() -> None:
    """The model's ends and the request's own, also behind drafts; not a row further. One end is no token of it."""
    logits = torch.tensor([[9.0, 8.0, 7.0, 6.0]]).repeat(3, 1)
    sampler = Sampler(4, CPU, eos_token_ids=[0, 9])
    sequence = make_sequence([2], [2], draft=[2, 2], min_tokens=3, stop_token_ids=(1,))

    assert choose(logits, sequence, sampler=sampler)[0].tokens == [2, 2, 0]


def test_seed_changes_the_draw_and_nothing_else_does() -> None:
    """The same seed and position give the same token again; 50 seeds give more than one."""
    logits = random_logits(1)
    tokens = [choose(logits, make_sequence([1], seed=seed, temperature=1.5))[0].tokens for seed in range(50)]

    assert tokens == [choose(logits, make_sequence([1], seed=seed, temperature=1.5))[0].tokens for seed in range(50)]
    assert len({token for (token,) in tokens}) > 5


GOOD = SamplingParams(max_tokens=10)


@pytest.mark.parametrize(
    ("param", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_k", -1),
        ("min_p", 1.5),
        ("presence_penalty", 2.1),
        ("frequency_penalty", -2.1),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", 1e-300),
        ("repetition_penalty", 1e300),
        ("repetition_penalty", math.inf),
        ("logit_bias", {VOCAB: 1.0}),
        ("logit_bias", {1: 101.0}),
        ("stop_token_ids", (-1,)),
        ("stop", ("a", "")),
        ("logprobs", 21),
        ("seed", 2**64),
        ("min_tokens", 11),
        ("max_tokens", -1),
        ("max_tokens", 96),
    ],
)
def test_params_out_of_range_are_refused_by_name(param: str, value: Any) -> None:
    """The error names the field."""
    with pytest.raises(RequestRefused) as caught:
        check_params(replace(GOOD, **{param: value}), vocab_size=VOCAB, max_context=100, num_prompt=5)

    assert caught.value.param == param


def test_params_within_range_are_accepted() -> None:
    """The borders included."""
    edges = SamplingParams(
        max_tokens=95, min_tokens=95, top_p=1.0, top_k=0, min_p=1.0, logit_bias={VOCAB - 1: -100.0}, seed=-(2**63)
    )

    check_params(edges, vocab_size=VOCAB, max_context=100, num_prompt=5)
    check_params(replace(GOOD, max_tokens=None), vocab_size=VOCAB, max_context=100, num_prompt=99)
    check_params(replace(GOOD, max_tokens=0), vocab_size=VOCAB, max_context=100, num_prompt=100)


def test_params_of_a_prompt_that_fills_the_context_are_refused() -> None:
    """There must be room for a token."""
    with pytest.raises(RequestRefused, match="context is 100") as caught:
        check_params(replace(GOOD, max_tokens=None), vocab_size=VOCAB, max_context=100, num_prompt=100)

    assert (caught.value.param, caught.value.code) == ("prompt", "context_length_exceeded")
