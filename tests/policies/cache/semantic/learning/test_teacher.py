"""What labels a backend's answers become: a bound that is kept although comparing them is better at "same"."""

from __future__ import annotations

import math
from random import Random

import pytest

from backends.protocol import Timeouts
from policies.cache.semantic.answer_text import text_of
from policies.cache.semantic.contracts import Proposal
from policies.cache.semantic.decision.bound import Bound
from policies.cache.semantic.decision.verified import Verified
from policies.cache.semantic.learning.judge import RouteJudge
from policies.cache.semantic.learning.labels import Learning
from policies.cache.semantic.settings import JudgePolicy
from tests.support.clock import FakeClock, settle
from tests.support.policy.cache import Exchange, Upstream, chat_answer
from tests.support.policy.semantic import FixedDecider, Stage, question
from tests.support.policy.semantic_traffic import candidate

OBJECTS = ["card", "loan", "phone", "parcel", "ticket", "invoice", "password", "account", "printer", "booking"]
VARIANTS = ["lost", "broken", "old", "stolen", "new", "shared"]
FILLERS = ["please", "today", "kindly", "quickly", "somehow", "maybe", "really", "actually", "currently", "properly"]
WORDINGS = ["{}", "Sure. {}", "{} Let me know if you need more.", "Here is what I found: {}"]
NUM_LOOKUPS = 1000
RATE = 0.01


class Desk:
    """Answers that share words and numbers whatever they say, in several wordings; some are told quite differently."""

    def __init__(self, seed: int, told_differently: float) -> None:
        self.random = Random(seed)
        self.told_differently = told_differently

    def ask(self) -> str:
        """A question: another variant of an object is one word away, other fillers mean nothing."""
        fillers = self.random.sample(FILLERS, 2)
        thing, variant = self.random.choice(OBJECTS), self.random.choice(VARIANTS)
        return f"what happens with my {variant} {thing} if I need it {' '.join(fillers)}"

    def truth(self, asked: str) -> str:
        """What is right."""
        variant, thing = asked.split()[4:6]
        return f"Open the menu named settings for a {variant} {thing} and wait 5 days until our letter has come."

    def __call__(self, exchange: Exchange) -> None:
        assert exchange.call.body is not None
        said = self.truth(exchange.call.body["messages"][-1]["content"])
        if self.random.random() < self.told_differently:
            noise = " ".join(self.random.sample(FILLERS, 4))
            said = f"{said} Our office {noise} helps."
        exchange.answer(chat_answer(self.random.choice(WORDINGS).format(said)))


async def served_by(desk: Desk, seed: int) -> tuple[int, int]:
    """Hits, and wrong ones, of the real policy before that desk."""
    stage = Stage(Upstream(desk), FakeClock(), mode="verified", volatile_words=[])
    stage.deciders[:] = [Verified(Bound(RATE), Random(seed))]
    await stage.open()
    hits = wrong = 0
    for _ in range(NUM_LOOKUPS):
        asked = desk.ask()
        headers, body = await stage.ask(question(asked))
        if headers["x-cache"] == "semantic":
            hits += 1
            wrong += desk.truth(asked).encode() not in body
    await stage.aclose()
    return hits, wrong


@pytest.mark.parametrize(("told_differently", "least_hits"), [(0.0, 100), (0.5, 0)])
async def test_teacher_where_only_same_is_recognised_keeps_the_bound(told_differently: float, least_hits: int) -> None:
    """Wrong neighbours' answers are never told from paraphrases, so not one label says "different"."""
    hits, wrong = await served_by(Desk(3, told_differently), seed=4)

    assert wrong <= RATE * NUM_LOOKUPS
    assert hits >= least_hits


@pytest.mark.parametrize(("sameness", "label"), [(1.0, 1.0), (0.3, 0.3), (0.0, 0.0), (None, 0.0)])
def test_learning_takes_what_could_not_be_compared_for_wrong(sameness: float | None, label: float) -> None:
    """And everything else for as right as it probably is."""
    decider = FixedDecider()
    learning = Learning("red", decider, FixedDecider)
    proposal = Proposal(candidate(0.9), (0.9,), guarded=False)
    learning.settle(proposal, sameness, is_label=True, matters=False, weight=1.0, served_at=None)
    learning.settle(proposal, sameness, is_label=False, matters=False, weight=1.0, served_at=None)

    assert [rightness for _, rightness, _, _ in decider.given] == [label]


@pytest.mark.parametrize(("is_resting", "served"), [(False, False), (True, False), (False, True), (True, True)])
async def test_teacher_with_a_judge_labels_by_chance_never_by_verdict(is_resting: bool, served: bool) -> None:
    """A fifth of what would not be served, all that would; while the judge rests nothing, though the same is said."""
    decider = FixedDecider(0.0 if served else 2.0, shadow_probability=1.0)
    policy = JudgePolicy(route="judge", model="small", max_daily_tokens=1 if is_resting else 100_000)
    judge = RouteJudge(Upstream(lambda exchange: exchange.answer(chat_answer("no"))), Timeouts(), policy, FakeClock())
    await judge.compare("which button", "red", "blue")
    upstream = Upstream(lambda exchange: exchange.answer(chat_answer("Press the button named Forgot.")))
    stage = Stage(upstream, FakeClock(), decider=decider, judge=judge)
    await stage.open()
    for index in range(201):
        await stage.ask(question(f"how do I reset password number {index}"))
    await stage.aclose()

    expected = (0, 0) if is_resting else (20, 60)
    if served and not is_resting:
        expected = (200, 200)
    assert expected[0] <= len(decider.given) <= expected[1]


@pytest.mark.parametrize(
    ("log_odds", "votes_together", "bad"),
    [(5.0, True, 0.0), (1.0, False, 0.0), (-1.0, False, 1.0), (-5.0, False, 1.0)],
)
async def test_teacher_acts_on_what_is_sure_and_learns_from_the_rest(
    log_odds: float, votes_together: bool, bad: float
) -> None:
    """Doubt is no mark against an entry and joins no answers, but the decision learns how large it is."""
    decider = FixedDecider(0.0, shadow_probability=1.0)
    said = iter(range(100))
    upstream = Upstream(lambda exchange: exchange.answer(chat_answer(f"Open the menu named number {next(said)}.")))
    stage = await Stage(upstream, FakeClock(), decider=decider).open()
    stage.encoder.sameness = log_odds
    await stage.ask(question("how do I reset my password"))
    await stage.ask(question("how do I reset my own password"))
    histories = [history for _, history in await stage.answers.listing(None, 10)]
    answer_ids = {answer.answer_id for answer, _ in await stage.answers.listing(None, 10)}

    assert max(history.bad for history in histories) == pytest.approx(bad, abs=1e-3)
    assert (len(answer_ids) == 1) is votes_together
    assert decider.given[0][1] == pytest.approx(1 / (1 + math.exp(-log_odds)))
    await stage.aclose()


async def test_teacher_compares_what_is_worded_most_alike_of_answers_that_say_the_same() -> None:
    """The nearest question's answer has other words; that of another, known to say the same, has the very same."""
    decider = FixedDecider(2.0)
    said = ["Open the menu named Start.", "Press the green button twice.", "Press the green button twice."]
    texts = iter(said)
    upstream = Upstream(lambda exchange: exchange.answer(chat_answer(next(texts))))
    stage = await Stage(upstream, FakeClock(), decider=decider).open()
    stage.encoder.sameness = 5.0
    await stage.ask(question("how do I reset my password"))
    await stage.ask(question("how do I reset the password please"))
    stage.encoder.sameness = None
    await stage.ask(question("how do I reset my password quickly"))
    (first,) = [
        entry.id for entry, _ in await stage.answers.listing(None, 10) if entry.question.text.endswith("my password")
    ]

    assert decider.given[-1][0] == first
    assert decider.given[-1][1] == 1.0
    await stage.aclose()


@pytest.mark.parametrize("scope", ["tenant", "global"])
async def test_teacher_makes_one_of_answers_that_a_new_one_shows_to_be_the_same(scope: str) -> None:
    """Each wording began by itself. On a route for everybody what was stored before stays as it was."""
    said = iter(range(100))
    upstream = Upstream(lambda exchange: exchange.answer(chat_answer(f"Open the menu named number {next(said)}.")))
    stage = await Stage(upstream, FakeClock(), decider=FixedDecider(2.0), cache={"scope": scope}).open()
    stage.encoder.sameness = 0.0
    for asked in ("how do I reset my password", "how do I reset the password please", "how do I reset it, my password"):
        await stage.ask(question(asked))
    stage.encoder.sameness = 5.0
    apart = {answer.answer_id for answer, _ in await stage.answers.listing(None, 10)}
    await stage.ask(question("how do I reset my own password"))
    answer_ids = {answer.answer_id for answer, _ in await stage.answers.listing(None, 10)}

    assert len(apart) == 3
    assert len(answer_ids) == (1 if scope == "tenant" else 3)
    await stage.aclose()


async def test_teacher_makes_one_of_all_that_say_the_same_however_far_they_are() -> None:
    """More entries than a look-up finds say what one of its neighbours says."""
    said = iter([*["Press the green button."] * 20, "Press the button.", "Press the round button."])
    upstream = Upstream(lambda exchange: exchange.answer(chat_answer(next(said))))
    stage = await Stage(upstream, FakeClock(), decider=FixedDecider(2.0)).open()
    stage.encoder.sameness = 0.0
    for number in range(21):
        await stage.ask(question(f"how do I reset my password number {number}"))
    apart = {answer.answer_id for answer, _ in await stage.answers.listing(None, 30)}
    stage.encoder.sameness = 5.0
    await stage.ask(question("please how do I reset my password number 20"))
    answer_ids = [answer.answer_id for answer, _ in await stage.answers.listing(None, 30)]

    assert len(apart) == 2
    assert len(answer_ids) == 22
    assert len(set(answer_ids)) == 1
    await stage.aclose()


async def test_teacher_passes_over_neighbours_that_share_hardly_a_word_with_the_answer() -> None:
    """The comparison would call all of them the same; only the proposal is compared whatever its words are."""
    said = iter([*(f"Open the menu named number {number}." for number in range(3)), "Wait until our letter has come."])
    upstream = Upstream(lambda exchange: exchange.answer(chat_answer(next(said))))
    stage = await Stage(upstream, FakeClock(), decider=FixedDecider(2.0)).open()
    stage.encoder.sameness = 0.0
    for asked in ("how do I reset my password", "how do I reset the password please", "how do I reset it, my password"):
        await stage.ask(question(asked))
    stage.encoder.sameness = 5.0
    await stage.ask(question("how do I reset my own password"))
    answer_ids = {answer.answer_id for answer, _ in await stage.answers.listing(None, 10)}

    assert len(answer_ids) == 3
    await stage.aclose()


async def test_teacher_compares_a_proposal_only_where_many_answers_wait() -> None:
    """Each gets its label; other neighbours' answers are compared again as soon as few wait."""
    said = iter(range(100))
    upstream = Upstream(lambda exchange: exchange.answer(chat_answer(f"Open the menu named number {next(said)}.")))
    decider = FixedDecider(2.0)
    stage = await Stage(upstream, FakeClock(), decider=decider).open()
    stage.encoder.sameness = 0.0
    for asked in ("how do I reset my password", "how do I reset the password please", "how do I reset it, my password"):
        await stage.ask(question(asked))
    stage.encoder.may_compare.clear()
    before, num_labels = stage.encoder.num_compared, len(decider.given)
    for number in range(10):
        reply = await stage.cache.send(question(f"how do I reset my own password {number}"))
        await reply.aclose()
    await settle()
    stage.encoder.may_compare.set()
    await stage.cache.settle()
    together = stage.encoder.num_compared - before
    await stage.ask(question("how do I reset my password now"))

    assert len(decider.given) - num_labels == 11
    assert 10 < together <= 10 + 2 * 4
    assert stage.encoder.num_compared - before - together == 3
    await stage.aclose()


@pytest.mark.parametrize(("mode", "num_kept"), [("verified", 1 + 16 + 1), ("static", 1 + 100 + 1)])
async def test_teacher_stores_an_answer_before_it_is_compared(mode: str, num_kept: int) -> None:
    """Whoever asks meanwhile finds it. What there is no room to compare is stored only where no bound is promised, or
    where there is nothing to compare it with.
    """
    said = iter(range(1000))
    upstream = Upstream(lambda exchange: exchange.answer(chat_answer(f"Open the menu named number {next(said)}.")))
    decider = FixedDecider(2.0)
    stage = await Stage(upstream, FakeClock(), decider=decider, mode=mode).open()
    stage.encoder.sameness = 5.0
    await stage.ask(question("how do I reset my password"))
    stage.encoder.may_compare.clear()
    for number in range(100):
        reply = await stage.cache.send(question(f"how do I reset my own password {number}"))
        await reply.aclose()
    reply = await stage.cache.send(question("how do I reset my password", extra={"seed": 7}))
    await reply.aclose()
    await settle()
    waiting = await stage.answers.listing(None, 200)
    stage.encoder.may_compare.set()
    await stage.cache.settle()
    learned = await stage.answers.listing(None, 200)

    assert len({answer.answer_id for answer, _ in waiting}) == len(waiting) == num_kept
    assert stage.cache.take_tally().dropped == 100 - 16 + 1
    assert len(decider.given) == 16
    assert len(learned) == num_kept == sum(map(len, stage.index.groups.values()))
    assert len({answer.answer_id for answer, _ in learned}) == num_kept - 16
    await stage.aclose()


@pytest.mark.parametrize(("mode", "last"), [("verified", []), ("static", ["Open the menu named number 17."])])
async def test_teacher_without_room_forgets_what_is_out_of_date(mode: str, last: list[str]) -> None:
    """A text was asked again: what it was answered before goes, though the new answer may not take its place."""
    said = iter(range(1000))
    upstream = Upstream(lambda exchange: exchange.answer(chat_answer(f"Open the menu named number {next(said)}.")))
    stage = await Stage(upstream, FakeClock(), decider=FixedDecider(2.0), mode=mode).open()
    stage.encoder.sameness = 0.0
    again = question("how do I reset my password")
    await stage.ask(again)
    stage.encoder.may_compare.clear()
    for call in [*(question(f"how do I reset my own password {number}") for number in range(16)), again]:
        reply = await stage.cache.send(call)
        await reply.aclose()
    stage.encoder.may_compare.set()
    await stage.cache.settle()

    kept = [answer for answer, _ in await stage.answers.listing(None, 200)]
    assert len(kept) == 16 + len(last)
    assert [text_of(answer.entry) for answer in kept if answer.question.text == "how do I reset my password"] == last
    await stage.aclose()


@pytest.mark.parametrize("is_checked", [False, True])
async def test_teacher_without_room_for_checks_ends_in_doubt(is_checked: bool) -> None:
    """What was to be checked and was not counts as unknown; misses that find no room do not."""
    said = iter(range(1000))
    upstream = Upstream(lambda exchange: exchange.answer(chat_answer(f"Open the menu named number {next(said)}.")))
    decider = FixedDecider(0.0 if is_checked else 2.0, shadow_probability=1.0)
    stage = await Stage(upstream, FakeClock(), decider=decider, mode="verified", max_shadows=1).open()
    await stage.ask(question("how do I reset my password"))
    stage.encoder.may_compare.clear()
    reasons = []
    for number in range(1 + 16 + 50 + 1):
        reply = await stage.cache.send(question(f"how do I reset my own password {number}"))
        reasons.append(dict(reply.headers)[b"x-cache-reason"].decode())
        await reply.aclose()
        await settle()

    (learning,) = stage.book.all()
    assert learning.is_in_doubt is is_checked
    assert reasons[1:] == (["shadow_busy"] * 66 + ["unlabelled"] if is_checked else ["below_threshold"] * 67)
    stage.encoder.may_compare.set()
    await stage.cache.settle()
    await stage.aclose()


@pytest.mark.parametrize("mode", ["verified", "static"])
@pytest.mark.parametrize("served", [False, True])
async def test_teacher_takes_a_busy_reader_for_no_label(served: bool, mode: str) -> None:
    """Neither right nor wrong, and no history of an entry; the answer is kept, by itself, only where no bound is
    promised. Too many end in doubt.
    """
    decider = FixedDecider(0.0 if served else 2.0, shadow_probability=1.0)
    said = iter(range(100))
    upstream = Upstream(lambda exchange: exchange.answer(chat_answer(f"Open the menu named number {next(said)}.")))
    stage = await Stage(upstream, FakeClock(), decider=decider, mode=mode).open()
    await stage.ask(question("how do I reset my password"))
    stage.encoder.is_reader_busy = True
    for number in range(60):
        await stage.ask(question(f"how do I reset my password number {number}"))
    taken = stage.cache.take_tally()
    histories = [history for _, history in await stage.answers.listing(None, 100)]

    assert decider.given == []
    assert not taken.labels
    assert taken.dropped == 60
    assert len(histories) == (61 if mode == "static" else 1) == sum(map(len, stage.index.groups.values()))
    assert all(history.good == history.bad == 0 for history in histories)
    (learning,) = stage.book.all()
    assert learning.is_in_doubt is served
    await stage.aclose()
