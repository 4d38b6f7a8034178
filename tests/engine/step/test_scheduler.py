"""The scheduler's promises, one by one, against an engine whose model reads a simulated KV memory."""

from __future__ import annotations

import pytest

from backends.engine.errors import OutOfMemory, RequestRefused
from backends.engine.sequence import State
from tests.support.engine.paged_engine import PagedEngine, expected_answer, numbers


def test_scheduler_prompt_over_the_budget_runs_in_chunks_that_end_with_pages() -> None:
    """A chunk that is not the last ends with a page when it reaches one."""
    engine = PagedEngine(8, max_batch_tokens=100)
    engine.add(numbers(200), order=0)

    spans = [(part.start, part.num_tokens, part.samples) for _ in range(4) for part in engine.step().slices]

    assert spans == [(0, 64, False), (64, 64, False), (128, 72, True)]


@pytest.mark.parametrize("max_batch_tokens", [1, 7, 64, 100, 1000])
def test_scheduler_any_chunk_size_leaves_the_answers_unchanged(max_batch_tokens: int) -> None:
    """Chunking is invisible in what is said."""
    engine = PagedEngine(32, max_batch_tokens=max_batch_tokens)
    sequences = [engine.add(numbers(length, length), order=length, max_tokens=5) for length in (1, 64, 65, 300)]

    engine.run()

    assert engine.answers == {s.order: expected_answer(s.request.prompt, 5) for s in sequences}


def test_scheduler_answers_go_before_prompts_so_that_none_stalls() -> None:
    """A long prompt of higher priority takes what the running answers leave, never their one token."""
    engine = PagedEngine(64, max_batch_tokens=64, max_sequences=4)
    for order in range(3):
        engine.add(numbers(10, order), order=order, max_tokens=50)
    engine.step()
    engine.add(numbers(500, 9), order=9, priority=-1)

    plans = [engine.step() for _ in range(5)]

    assert [len(plan.slices) for plan in plans] == [4] * 5
    assert all(plan.slices[-1].num_tokens > 1 for plan in plans)


def test_scheduler_waiting_sequences_start_by_priority_then_arrival() -> None:
    """A lower number goes first; among equals, who came first."""
    engine = PagedEngine(16, max_sequences=1)
    for order, priority in enumerate([1, 0, 1, -1]):
        engine.add(numbers(3, order), order=order, priority=priority)

    started = [engine.step().slices[0].sequence.order for _ in range(4)]

    assert started == [3, 1, 0, 2]


def test_scheduler_finished_prefix_is_shared_up_to_the_last_token() -> None:
    """A full hit leaves the last token's page to compute, and is reported as cached tokens."""
    engine = PagedEngine(16, max_batch_tokens=512)
    for order, length in enumerate((128, 128, 129, 60)):
        engine.add(numbers(length), order=order)
        engine.run()

    assert engine.computed == {0: 128, 1: 64, 2: 1, 3: 60}
    assert engine.scheduler.statistics().queried_tokens == 445
    assert engine.scheduler.statistics().hit_tokens == 192


def test_scheduler_identical_prompts_in_flight_share_pages_from_the_next_step_on() -> None:
    """Of prompts that arrive together one computes the prefix; the others wait that one step and share its pages."""
    engine = PagedEngine(16, max_batch_tokens=1024)
    sequences = [engine.add(numbers(200), order=order, max_tokens=3) for order in range(3)]

    first, second = engine.step(), engine.step()

    assert [part.sequence.order for part in first.slices] == [0]
    assert [part.sequence.order for part in second.slices] == [0, 1, 2]
    assert sequences[0].pages[:3] == sequences[1].pages[:3] == sequences[2].pages[:3]
    assert engine.computed == {0: 200, 1: 8, 2: 8}


def test_scheduler_sequence_passed_over_lets_others_start() -> None:
    """Waiting for a shared page holds up nobody who needs another."""
    engine = PagedEngine(32, max_batch_tokens=1024)
    for order, seed in enumerate([0, 0, 7]):
        engine.add(numbers(200, seed), order=order)

    plan = engine.step()

    assert [part.sequence.order for part in plan.slices] == [0, 2]


@pytest.mark.parametrize("other", [{"salt": b"b"}, {"adapter": "b"}], ids=["salt", "adapter"])
def test_scheduler_other_tenant_or_adapter_shares_nothing(other: dict[str, object]) -> None:
    """The same prompt under another salt or adapter is computed anew."""
    engine = PagedEngine(16, max_batch_tokens=512)
    engine.add(numbers(200), order=0)
    engine.run()
    engine.add(numbers(200), order=1, **other)
    engine.run()

    assert engine.computed == {0: 200, 1: 200}


@pytest.mark.parametrize(
    ("request_fields", "num_computed"),
    [
        ({"pooling": "mean"}, 300),
        ({"pooling": "last"}, 300 - 256),
        ({"prompt_logprobs": 0}, 300),
        ({"prompt_logprobs": 2, "prompt_logprobs_from": 128}, 300 - 64),
        ({"prompt_logprobs": 2, "prompt_logprobs_from": 129}, 300 - 128),
        ({"prompt_logprobs": 2, "prompt_logprobs_from": 300}, 300 - 256),
    ],
    ids=["mean", "last", "all-scored", "from-128", "from-129", "none-scored"],
)
def test_scheduler_positions_that_are_wanted_are_never_taken_from_the_cache(
    request_fields: dict[str, object], num_computed: int
) -> None:
    """Scoring position p needs the logits at p - 1; a mean needs every hidden state."""
    engine = PagedEngine(16, max_batch_tokens=512)
    engine.add(numbers(300), order=0)
    engine.run()
    engine.add(numbers(300), order=1, **request_fields)
    engine.run()

    assert engine.computed[1] == num_computed


def test_scheduler_pool_too_small_preempts_the_last_and_answers_alike() -> None:
    """Preempted sequences resume, mostly by prefix hits, and say what an unlimited pool would have them say."""
    engine = PagedEngine(9, max_batch_tokens=256)
    prompts = [numbers(60 + order, order) for order in range(4)]
    for order, prompt in enumerate(prompts):
        engine.add(prompt, order=order, max_tokens=200)

    engine.run()

    assert engine.scheduler.statistics().num_preemptions > 0
    assert engine.answers == {order: expected_answer(tuple(p), 200) for order, p in enumerate(prompts)}


def test_scheduler_preemption_takes_the_lowest_priority_then_the_latest() -> None:
    """The sequence that gives way is the one that would have started last."""
    engine = PagedEngine(6, max_batch_tokens=256)
    for order, priority in enumerate([0, 1, 0]):
        engine.add(numbers(60, order), order=order, priority=priority, max_tokens=120)
    while engine.scheduler.statistics().num_preemptions == 0:
        engine.step()

    states = {sequence.order: sequence.state for sequence in engine.alive}

    assert states == {0: State.RUNNING, 1: State.WAITING, 2: State.RUNNING}
    assert [sequence.num_computed for sequence in engine.alive if sequence.state is State.WAITING] == [0]


def test_scheduler_resumed_sequence_computes_only_its_last_page_again() -> None:
    """Preemption costs less than a page when nobody needed the room, and leaves cached_tokens as they were."""
    engine = PagedEngine(7, max_batch_tokens=512)
    engine.add(numbers(120, 0), order=0, max_tokens=20)
    late = engine.add(numbers(250, 1), order=1, max_tokens=20)
    while late.state is not State.RUNNING:
        engine.step()
    while late.state is State.RUNNING and engine.scheduler.has_work:
        engine.step()
    while late.state is State.WAITING:
        plan = engine.step()

    resumed = plan.slices[-1]

    assert resumed.sequence is late
    assert resumed.start == 256
    assert late.num_cached == 0


def test_scheduler_evicted_pages_come_back_from_the_host() -> None:
    """A prefix that gave way on the device is copied back instead of computed."""
    engine = PagedEngine(5, host_pages=8, max_batch_tokens=512)
    for order, seed in enumerate([0, 1, 0]):
        engine.add(numbers(257, seed), order=order)
        engine.run()

    assert engine.computed == {0: 257, 1: 257, 2: 1}
    assert engine.pool.statistics().num_host_hits == 4


def test_scheduler_drafts_get_only_the_budget_that_is_left() -> None:
    """Room for drafts goes to answers in order, never to prompts, until the budget is used up."""
    engine = PagedEngine(32, max_batch_tokens=16)
    for order in range(4):
        engine.add(numbers(4, order), order=order, max_tokens=50)
    engine.step(draft_room=5)

    rooms = [part.num_draft for part in engine.step(draft_room=5).slices]

    assert rooms == [5, 5, 2, 0]


def test_scheduler_first_step_of_a_prompt_gets_no_draft_room() -> None:
    """A prompt of one token does not decode yet."""
    engine = PagedEngine(4)
    engine.add([1], order=0)

    plan = engine.step(draft_room=4)

    assert plan.slices[0].num_draft == 0


def test_scheduler_drafts_stop_before_the_context_ends() -> None:
    """All drafts accepted and the token after them still fit the context."""
    engine = PagedEngine(4, max_context=70)
    sequence = engine.add(numbers(64), order=0, max_tokens=100)
    engine.step()

    plan = engine.step(draft_room=8)

    assert len(sequence.tokens) >= 66
    assert plan.slices[0].num_draft == 70 - 65 - 1


def test_scheduler_drafts_never_preempt() -> None:
    """Where no page is left, the room shrinks to what the sequence's own pages still hold."""
    engine = PagedEngine(2, max_batch_tokens=256, max_context=128)
    sequence = engine.add(numbers(62), order=0, max_tokens=60)
    engine.step()
    engine.pool.allocate(1)

    plan = engine.scheduler.schedule(draft_room=8)

    assert len(sequence.tokens) == 63
    assert plan.slices[0].num_draft == 1


def test_scheduler_prompt_over_the_context_fails_with_the_field_at_fault() -> None:
    """The plan names who failed and why; nobody else notices."""
    engine = PagedEngine(16, max_context=100)
    engine.add(numbers(101), order=0)
    engine.add(numbers(100), order=1)
    engine.add([], order=2)

    engine.run()

    assert engine.answers.keys() == {1}
    refused = engine.failures[0]
    assert isinstance(refused, RequestRefused)
    assert (refused.param, refused.code) == ("prompt", "context_length_exceeded")
    assert isinstance(engine.failures[2], RequestRefused)


def test_scheduler_prompt_over_the_whole_pool_fails_and_others_run() -> None:
    """What could not run even alone fails at once instead of waiting for ever."""
    engine = PagedEngine(2)
    engine.add(numbers(129), order=0)
    engine.add(numbers(128), order=1)

    engine.run()

    assert isinstance(engine.failures[0], OutOfMemory)
    assert engine.answers.keys() == {1}


def test_scheduler_answer_that_outgrows_the_pool_fails() -> None:
    """An answer that needs more pages than there are fails instead of preempting itself for ever."""
    engine = PagedEngine(3, max_batch_tokens=256)
    engine.add(numbers(60), order=0, max_tokens=500)

    engine.run()

    assert isinstance(engine.failures[0], OutOfMemory)
    assert engine.scheduler.statistics().num_preemptions == 0
    assert engine.pool.num_available == 3


@pytest.mark.parametrize("steps", [0, 1, 3], ids=["waiting", "in-prompt", "in-answer"])
def test_scheduler_abort_frees_all_pages_at_once(steps: int) -> None:
    """Whatever the state, and twice does no harm."""
    engine = PagedEngine(8, max_batch_tokens=128)
    sequence = engine.add(numbers(200), order=0, max_tokens=50)
    for _ in range(steps):
        engine.step()

    engine.abort(sequence)
    engine.scheduler.abort(sequence)

    assert engine.pool.num_available == 8
    assert not engine.scheduler.has_work
    engine.check_pool()


def test_scheduler_abort_of_a_preempted_sequence_leaves_nothing_behind() -> None:
    """A sequence that waits to be resumed can go like any other."""
    engine = PagedEngine(4, max_batch_tokens=256)
    engine.add(numbers(60, 0), order=0, max_tokens=120)
    late = engine.add(numbers(60, 1), order=1, max_tokens=120)
    while engine.scheduler.statistics().num_preemptions == 0:
        engine.step()

    engine.abort(late)
    engine.run()

    assert engine.answers.keys() == {0}
    assert engine.pool.num_available == 4


def test_scheduler_commit_after_an_abort_changes_nothing() -> None:
    """A slice that was under way when its sequence was aborted is dropped."""
    engine = PagedEngine(8, max_batch_tokens=256)
    sequence = engine.add(numbers(200), order=0)
    plan = engine.scheduler.schedule()
    engine.abort(sequence)

    engine.scheduler.commit(plan.slices[0], [1])

    assert sequence.tokens == numbers(200)
    assert engine.pool.statistics().num_cached == 0


def test_scheduler_rejected_drafts_never_name_a_page() -> None:
    """A page filled up by drafts of which few were accepted is not found by others before its tokens are final."""
    engine = PagedEngine(8, max_batch_tokens=256)
    sequence = engine.add(numbers(60), order=0, max_tokens=50)
    engine.step()
    (part,) = engine.scheduler.schedule(draft_room=8).slices
    sequence.draft = [0] * part.num_draft

    engine.scheduler.commit(part, [1, 2])
    engine.scheduler.finish(sequence)

    assert part.num_draft == 8
    assert sequence.num_computed == 62
    assert engine.pool.statistics().num_cached == 0


def test_scheduler_order_of_arrival_leaves_the_answers_unchanged() -> None:
    """The same requests in another order, on a pool that preempts, say the same."""
    prompts = [numbers(50 + 30 * seed, seed % 3) for seed in range(6)]
    answers = []
    for order in ([0, 1, 2, 3, 4, 5], [5, 3, 1, 0, 2, 4]):
        engine = PagedEngine(10, max_batch_tokens=100)
        for arrival, which in enumerate(order):
            engine.add(prompts[which], order=arrival, max_tokens=70)
        engine.run(draft_room=3)
        answers.append({which: engine.answers[arrival] for arrival, which in enumerate(order)})

    assert answers[0] == answers[1]


def test_scheduler_newcomer_waits_while_running_sequences_need_the_last_pages() -> None:
    """Admission leaves a free page for each running sequence, so that it does not preempt at once."""
    engine = PagedEngine(4, max_batch_tokens=512)
    engine.add(numbers(60, 0), order=0, max_tokens=20)
    engine.step()
    engine.add(numbers(170, 1), order=1)
    waits = engine.step()

    engine.run()

    assert len(waits.slices) == 1
    assert engine.scheduler.statistics().num_preemptions == 0


def test_scheduler_finished_prompt_gives_way_from_its_end() -> None:
    """The beginning of a prompt, which others may share, is evicted last."""
    engine = PagedEngine(4, max_batch_tokens=512)
    for order, length, seed in ((0, 250, 0), (1, 100, 1), (2, 250, 0)):
        engine.add(numbers(length, seed), order=order)
        engine.run()

    assert engine.computed[2] == 250 - 128
