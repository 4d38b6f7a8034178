"""The verified decision: what it never does, the bound that it keeps, and what it takes with it."""

from __future__ import annotations

import math
import time
from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.cache.semantic.contracts import History, KnownNeighbour
from policies.cache.semantic.decision.bound import Bound
from policies.cache.semantic.decision.features import FEATURES
from policies.cache.semantic.decision.static import Static
from policies.cache.semantic.decision.verified import MIN_LABELS, Verified
from tests.support.policy.semantic_traffic import Chance, Seen, candidate, drive, misleading, never_sure, steep, step


def verified(seed: int = 1, rate: float = 0.01) -> Verified:
    """A decision that knows nothing."""
    return Verified(Bound(rate), Random(seed))


def chance_of_so_many(wrong: int, asked: int, rate: float) -> float:
    """Of at least so many wrong ones, were each look-up wrong with that probability."""
    fewer = (
        math.exp(
            math.lgamma(asked + 1)
            - math.lgamma(count + 1)
            - math.lgamma(asked - count + 1)
            + count * math.log(rate)
            + (asked - count) * math.log1p(-rate)
        )
        for count in range(wrong)
    )
    return 1.0 - sum(fewer)


@given(st.lists(st.booleans(), max_size=MIN_LABELS - 1), st.floats(0.45, 0.999))
@settings(max_examples=30, deadline=None)
def test_verified_below_the_labels_it_needs_serves_nothing(labels: list[bool], cosine: float) -> None:
    """However the labels turn out, and however near the candidate is."""
    decider = verified()
    for is_right in labels:
        proposal = decider.propose("how can I pay", [candidate(cosine)])
        assert proposal is not None
        decision = decider.decide(proposal)
        assert decision.reason == "learning"
        decider.label(proposal, rightness=float(is_right), weight=1.0, served_at=None, is_explained=False)

    last = decider.decide(decider.propose("how can I pay", [candidate(0.999)]))

    assert not last.serve
    assert not last.shadow
    assert last.reason == "learning"


@pytest.mark.parametrize(
    ("chance", "least_hits"),
    [(steep, 0.35), (never_sure, 0.0), (misleading, 0.05)],
    ids=lambda given: getattr(given, "__name__", ""),
)
def test_verified_on_steady_traffic_keeps_the_bound(chance: Chance, least_hits: float) -> None:
    """Over seeds the wrong answers are no more than the bound explains, and it is not kept by serving nothing."""
    seen = [drive(verified(seed), chance, 2500, Random(seed + 50)) for seed in range(3)]

    wrong, asked = sum(one.wrong for one in seen), sum(one.asked for one in seen)
    assert chance_of_so_many(wrong, asked, 0.01) > 0.01
    assert sum(one.hits for one in seen) >= least_hits * asked
    assert max(one.wrong for one in seen) <= 0.015 * 2500


def test_verified_by_precision_keeps_the_share_of_the_served() -> None:
    """The other way to say the bound: of a hundred served, three may be wrong."""
    seen = [drive(Verified(Bound(None, 0.97), Random(seed)), steep, 2500, Random(seed + 50)) for seed in range(4)]

    wrong, hits = sum(one.wrong for one in seen), sum(one.hits for one in seen)
    assert hits > 2500
    assert chance_of_so_many(wrong, hits, 0.03) > 0.01


@pytest.mark.parametrize("num_answers", [1, 40])
@pytest.mark.parametrize("seed", range(2))
def test_verified_when_meanings_change_serves_nothing_soon(seed: int, num_answers: int) -> None:
    """Of a sudden three in four are wrong, however near and of whichever answer."""
    decider, random = verified(seed), Random(seed + 7)
    before = drive(decider, steep, 2500, random, num_answers=num_answers)
    assert before.hits > 500

    after = drive(decider, lambda cosine: 0.25, 700, random, num_answers=num_answers)
    settled = drive(decider, lambda cosine: 0.25, 300, random, num_answers=num_answers)

    assert after.wrong <= 30
    assert settled.hits <= 3
    assert not decider.decide(decider.propose("how can I pay", [candidate(0.99)])).serve


def test_verified_after_a_change_does_not_serve_what_has_become_wrong_and_recovers() -> None:
    """In the changed world nothing is served any more; once cosine means something again, it serves again."""
    decider, random = verified(), Random(3)
    drive(decider, steep, 2000, random)
    changed = drive(decider, lambda cosine: 0.25, 2000, random)
    settled = drive(decider, lambda cosine: 0.25, 500, random)
    recovered = drive(decider, steep, 4000, random)

    assert changed.wrong <= 80
    assert settled.wrong <= 5
    assert recovered.hits > 400
    assert recovered.wrong <= 0.01 * recovered.asked


@pytest.mark.parametrize(("served_at", "stands_back"), [(4.0, True), (-1.0, False)])
def test_verified_expects_of_a_served_answer_what_it_did_when_it_was_served(
    served_at: float, stands_back: bool
) -> None:
    """However late the label comes: that it has learned meanwhile excuses nothing. Here nobody would serve it now."""
    decider = verified()
    drive(decider, steep, 1500, Random(1))
    far = decider.propose("how can I pay", [candidate(0.55)])
    assert far is not None
    for _ in range(12):
        decider.label(far, rightness=0.0, weight=1.0, served_at=served_at, is_explained=False)

    assert (decider.state().mode == "observe") == stands_back


def test_verified_dumped_and_loaded_goes_on_identically() -> None:
    """A restart, or another replica with the same randomness, decides the same for ever after."""
    first = verified(5)
    drive(first, steep, 1500, Random(8))
    second = verified(99)
    second.load(first.dump())
    first._random, second._random = Random(4), Random(4)

    decisions = []
    for decider in (first, second):
        random, seen = Random(21), Seen()
        decisions.append([step(decider, steep, random, seen) for _ in range(800)])

    assert decisions[0] == decisions[1]
    assert first.state() == second.state()
    assert first.dump() == second.dump()
    assert any(decision.serve for decision in decisions[0])


def test_verified_damaged_dump_is_refused_and_changes_nothing() -> None:
    """One flipped bit anywhere, a torn end, something else's dump."""
    decider = verified()
    drive(decider, steep, 300, Random(1))
    good = decider.dump()
    other = verified(2)
    before = other.dump()

    damaged = [bytes([*good[:place], good[place] ^ 4, *good[place + 1 :]]) for place in range(0, len(good), 997)]
    for bad in (b"", b"x", good[:-1], good + b"\0", Static(0.9, Random(1)).dump(), *damaged):
        with pytest.raises(ValueError):
            other.load(bad)

    assert other.dump() == before


@pytest.mark.parametrize("change", [{"version": 3}, {"features": ["cosine"]}, {"fitted": [0.0]}, {"labels": b"123"}])
def test_verified_dump_of_another_making_is_refused(change: dict[str, object]) -> None:
    """An intact dump of another version, other features, or windows that do not fit."""
    import zlib

    decider = verified()
    good = decider.dump()
    content = msgspec.msgpack.decode(good[24:]) | change
    packed = msgspec.msgpack.encode(content)

    with pytest.raises(ValueError):
        decider.load(good[:20] + zlib.crc32(packed).to_bytes(4, "big") + packed)


@pytest.mark.parametrize("rate", [0.0, 1.0, -0.01, 0.00001, 0.5, math.nan, math.inf])
def test_bound_absurd_rate_is_refused(rate: float) -> None:
    """Nothing, everything, less than nothing, and what is no number."""
    with pytest.raises(ValueError, match="max_wrong_hit_rate is"):
        Bound(rate)


@pytest.mark.parametrize("precision", [0.0, 0.3, 1.0, 1.2, -1.0, math.nan])
def test_bound_absurd_precision_is_refused(precision: float) -> None:
    """A precision of 1 cannot be kept, one under a half promises nothing."""
    with pytest.raises(ValueError, match="min_precision is"):
        Bound(None, precision)


def test_bound_of_both_kinds_or_none_is_refused() -> None:
    """One bound, said once."""
    with pytest.raises(ValueError, match="not both"):
        Bound(0.01, 0.99)
    with pytest.raises(ValueError, match="not both"):
        Bound(None, None)


def test_verified_observing_says_what_it_would_serve_and_serves_nothing() -> None:
    """The way to try it on real traffic; what it would have served is counted."""
    decider = Verified(Bound(0.01), Random(1), mode="observe")
    random, seen = Random(2), Seen()
    reasons = {step(decider, steep, random, seen).reason for _ in range(1500)}

    assert seen.hits == seen.shadows == 0
    assert "would_hit" in reasons
    assert decider.state().mode == "observe"
    assert decider.state().served > 100


def test_verified_guard_as_veto_never_serves_other_numbers() -> None:
    """The near duplicate with another number is refused, the same without the veto is judged by its labels."""
    decider = Verified(Bound(0.2), Random(1), guard="veto")
    drive(decider, lambda cosine: 1.0, 1500, Random(2))
    near = candidate(0.99, text="how can I pay 5 euros")

    vetoed = decider.decide(decider.propose("how can I pay 6 euros", [near]))
    served = decider.decide(decider.propose("how can I pay 5 euros", [near]))

    assert (vetoed.serve, vetoed.reason) == (False, "guarded")
    assert (served.serve, served.reason) == (True, "served")


def test_verified_without_candidates_proposes_nothing_and_counts_the_lookup() -> None:
    """Far neighbours are no candidates."""
    decider = verified()

    assert decider.propose("a", []) is None
    assert decider.propose("a", [candidate(0.2)]) is None
    assert decider.decide(None).reason == "no_candidate"
    assert decider.state().lookups == 1


def test_verified_labels_of_other_replicas_alone_serve_nothing_yet() -> None:
    """Labels without a look-up of one's own say nothing of what is asked here."""
    decider, random = verified(), Random(1)
    for _ in range(400):
        proposal = decider.propose("how can I pay", [candidate(0.5 + 0.499 * random.random())])
        assert proposal is not None
        decider.label(proposal, rightness=1.0, weight=1.0, served_at=None, is_explained=False)

    assert not decider.decide(decider.propose("how can I pay", [candidate(0.99)])).serve


def test_verified_shadows_risky_hits_more_often_and_weights_say_how_often() -> None:
    """The probability that is reported is the one that is drawn with."""
    decider, random, seen = verified(), Random(6), Seen()
    decisions = [step(decider, steep, random, seen) for _ in range(4000)]
    served = [decision for decision in decisions if decision.serve]
    calm = [decision for decision in served if decision.shadow_probability < 0.5]
    calm.sort(key=lambda decision: decision.score)

    assert calm[0].shadow_probability > calm[-1].shadow_probability >= 0.05
    expected = sum(decision.shadow_probability for decision in served)
    assert abs(seen.shadows - expected) < 4 * math.sqrt(expected)


def test_verified_state_estimates_what_was_wrong() -> None:
    """Within the noise of few labels, and its upper limit above it."""
    decider = verified(3)
    seen = drive(decider, steep, 2500, Random(12))
    state = decider.state()

    assert state.lookups == 2500
    assert state.served == seen.hits
    assert 0.3 * seen.wrong <= state.spent <= 3 * seen.wrong + 3
    assert state.wrong_hit_rate < state.wrong_hit_rate_upper < 0.03


def test_verified_look_up_takes_at_most_100_us_of_cpu() -> None:
    """Proposing and deciding among eight neighbours of fourteen words, the best of ten runs."""
    decider = verified()
    drive(decider, steep, 400, Random(1))
    text = "could you please tell me how I can top up my account with a card"
    near = [
        KnownNeighbour(str(place), 0.9 - place / 100, f"{text} from bank {place}", str(place % 3), History())
        for place in range(8)
    ]

    def run() -> float:
        began = time.thread_time()
        for _ in range(100):
            decider.decide(decider.propose(text, near))
        return (time.thread_time() - began) / 100

    assert min(run() for _ in range(10)) <= 100e-6


def test_answers_of_other_numbers_do_not_outvote_one_of_the_same() -> None:
    """Of questions in one frame the wrong ones are nearer; the model believes from the start that numbers matter."""
    others = [candidate(0.98, text=f"convert {n} km to miles", id=str(n), answer=str(n)) for n in range(6, 12)]
    right = candidate(0.8, text="how many miles is 5 km", id="right", answer="5")

    proposal = verified().propose("convert 5 km to miles", [*others, right])

    assert proposal is not None
    assert (proposal.candidate.id, proposal.guarded) == ("right", False)


def test_proposal_has_a_number_for_every_feature() -> None:
    """In the order of their names."""
    proposal = verified().propose("how can I pay 7 euros", [candidate(0.9, text="how can I pay 8 euros")])

    assert proposal is not None
    by_name = dict(zip(FEATURES, proposal.features, strict=True))
    assert by_name["cosine"] == 0.9
    assert by_name["near"] == pytest.approx(0.5)
    assert by_name["share"] == 1.0
    assert by_name["guard"] == 1.0
    assert proposal.guarded


def test_verified_of_comparisons_that_cannot_tell_serves_nothing_and_learns_once_they_can() -> None:
    """Thousands of labels at even odds are none; sure ones count from the first, with the doubtful in their midst."""
    decider, random = verified(), Random(1)
    for _ in range(4000):
        proposal = decider.propose("how can I pay", [candidate(0.5 + 0.499 * random.random())])
        assert proposal is not None
        assert decider.decide(proposal).reason == "learning"
        decider.label(proposal, rightness=0.5, weight=1.0, served_at=None, is_explained=False)

    later = drive(decider, steep, 3000, random)

    assert later.hits > 600
    assert later.wrong <= 0.01 * 3000
