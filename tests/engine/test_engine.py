"""The engine's contract: events, endings, refusals, aborts, and what happens when something breaks."""

from __future__ import annotations

import os
import random
import shutil
import threading
from collections.abc import Callable, Iterator
from collections.abc import Sequence as SequenceOf
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from backends.engine.answer import Answer
from backends.engine.choosing.sampling import Choice
from backends.engine.engine import Engine
from backends.engine.errors import (
    EngineError,
    EngineStopped,
    ModelError,
    OutOfMemory,
    RequestRefused,
    is_out_of_memory,
)
from backends.engine.load import EngineParts, load_parts
from backends.engine.options import EngineOptions
from backends.engine.request import Request, SamplingParams
from backends.engine.sequence import Sequence, Slice
from backends.engine.text.tokenizer import Tokenizer
from tests.support.engine.engine_load import run_load
from tests.support.engine.tiny_pair import EOS, GREEDY, Listener, Pair, answer, make_pair, options

PROMPT = tuple(range(40, 60))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """The models, made once."""
    return make_pair(tmp_path_factory.mktemp("pair"))


@contextmanager
def running(
    pair: Pair, load: Callable[[EngineOptions, Callable[[], float]], EngineParts] = load_parts, **changes: Any
) -> Iterator[Engine]:
    """An engine at work, closed at the end."""
    engine = Engine(options(pair, **changes), load=load, rng=random.Random(1))
    engine.start()
    try:
        yield engine
    finally:
        engine.close()


@pytest.fixture(scope="module")
def engine(pair: Pair) -> Iterator[Engine]:
    """One for all tests that do not break it."""
    with running(pair) as engine:
        yield engine
        assert engine.statistics().scheduler.pool.num_used == 0


class SpacedTokenizer:
    """One word, whose leading space does not belong to a text that it begins."""

    def token_bytes(self, token: int) -> bytes:
        """In the middle of a text."""
        return b" word"

    def first_bytes(self, token: int) -> bytes:
        """At its beginning."""
        return b"word"


class Faulty:
    """A runner that fails where `fails` says so of a step's slices, or everywhere, the probe too, once `is_broken`."""

    def __init__(self, runner: Any, fails: Callable[[SequenceOf[Slice]], bool]) -> None:
        self._runner = runner
        self._fails = fails
        self.is_broken = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def run(self, slices: SequenceOf[Slice], draft_probs: Any = None) -> Any:
        """Fail, or run."""
        if self.is_broken or self._fails(slices):
            raise RuntimeError("the test breaks it")
        return self._runner.run(slices, draft_probs)

    def probe(self) -> None:
        """Fail, or run."""
        if self.is_broken:
            raise RuntimeError("the test broke it")
        self._runner.probe()


def faulty(fails: Callable[[SequenceOf[Slice]], bool], made: list[Faulty]) -> Any:
    """A loader whose runner fails; what it makes is put into `made`."""

    def load(given: EngineOptions, now: Callable[[], float]) -> EngineParts:
        parts = load_parts(given, now)
        made.append(Faulty(parts.runner, fails))
        return replace(parts, runner=made[0])  # type: ignore[arg-type]  # it has all of a runner's methods

    return load


def test_events_of_an_answer_come_once_a_step_and_end_once(engine: Engine) -> None:
    """One event a token without drafts; the last one says that it is, why, and what it used."""
    listener = Listener()
    engine.submit(Request(id="a", prompt=PROMPT, params=GREEDY), listener)
    answered = listener.wait("a")

    assert [len(event.tokens) for event in answered.events] == [1] * 24
    assert [event.is_last for event in answered.events] == [False] * 23 + [True]
    assert (answered.last.finish_reason, answered.last.stop_reason) == ("length", None)
    assert (answered.usage.prompt_tokens, answered.usage.completion_tokens) == (20, 24)
    assert answered.text() == engine.tokenizer.decode(answered.tokens())


def test_events_of_one_step_come_to_a_sink_together(engine: Engine) -> None:
    """A sink that many requests share is called once a step, not once a request."""
    listener = Listener()
    for number in range(4):
        engine.submit(Request(id=f"t{number}", prompt=(number, *PROMPT), params=GREEDY), listener)
    for number in range(4):
        listener.wait(f"t{number}")

    assert max(len(batch) for batch in listener.batches) == 4
    assert len(listener.batches) < 4 * 24


def test_answer_that_meets_a_stop_string_ends_before_it(engine: Engine) -> None:
    """The text ends where the stop string begins, which is named."""
    [plain] = answer(engine, [Request(id="a", prompt=PROMPT, params=replace(GREEDY, max_tokens=60))])
    text = plain.text()
    stop = next(text[at : at + 2] for at in range(3, len(text)) if "\ufffd" not in text[at : at + 2])
    [stopped] = answer(
        engine, [Request(id="b", prompt=PROMPT, params=replace(GREEDY, max_tokens=60, stop=("never", stop)))]
    )

    assert stopped.text() == text[: text.index(stop)]
    assert (stopped.last.finish_reason, stopped.last.stop_reason) == ("stop", stop)


@pytest.mark.parametrize("speculate", ["off", "ngram", "draft"])
def test_answer_that_meets_a_stop_token_ends_with_it(pair: Pair, speculate: str) -> None:
    """The token is named and counted, and not told, also where it is accepted in the middle of a draft."""
    with running(pair, speculate=speculate) as engine:
        [plain] = answer(engine, [Request(id="a", prompt=PROMPT, params=GREEDY)])
        stop = plain.tokens()[10]
        first = plain.tokens().index(stop)
        params = replace(GREEDY, stop_token_ids=(stop,))
        [hidden] = answer(engine, [Request(id="b", prompt=PROMPT, params=params)])
        [shown] = answer(engine, [Request(id="c", prompt=PROMPT, params=replace(params, include_stop=True))])

    assert hidden.tokens() == plain.tokens()[:first]
    assert shown.tokens() == plain.tokens()[: first + 1]
    assert (hidden.last.finish_reason, hidden.last.stop_reason) == ("stop", stop)
    assert hidden.usage.completion_tokens == first + 1


def test_answer_that_meets_the_end_of_text_says_no_stop_reason(pair: Pair) -> None:
    """The model's own end is a stop like any other, but names nothing; it can be ignored and delayed."""
    bias = {EOS: 100.0}
    params = SamplingParams(temperature=0.0, max_tokens=5, logit_bias=bias)
    with running(pair) as engine:
        ended, ignored, delayed = answer(
            engine,
            [
                Request(id="a", prompt=PROMPT, params=params),
                Request(id="b", prompt=PROMPT, params=replace(params, ignore_eos=True)),
                Request(id="c", prompt=PROMPT, params=replace(params, min_tokens=3)),
            ],
        )

    assert (ended.tokens(), ended.last.finish_reason, ended.last.stop_reason) == ([], "stop", None)
    assert ignored.tokens() == [EOS] * 5
    assert len(delayed.tokens()) == 3


def test_answers_of_one_request_differ_and_share_the_prompt(engine: Engine) -> None:
    """Each has a seed of its own; the request ends with the last of them."""
    params = SamplingParams(max_tokens=12, seed=3, ignore_eos=True)
    [answered] = answer(engine, [Request(id="a", prompt=PROMPT, params=params, n=3)])

    assert len({tuple(answered.tokens(index)) for index in range(3)}) == 3
    assert sum(event.is_last for event in answered.events) == 1
    assert answered.usage.completion_tokens == 36
    assert answered.usage.prompt_tokens == 20


def test_best_of_more_answers_are_the_likeliest_in_order(engine: Engine) -> None:
    """The best by mean log-probability come back, renumbered, without the log-probabilities nobody asked for."""
    params = SamplingParams(max_tokens=6, seed=3, ignore_eos=True, logprobs=0)
    [every] = answer(engine, [Request(id="a", prompt=PROMPT, params=params, n=4)])
    [best] = answer(engine, [Request(id="b", prompt=PROMPT, params=replace(params, logprobs=None), n=2, best_of=4)])

    scores = {
        tuple(every.tokens(index)): sum(
            logprob.logprob for event in every.events if event.index == index for logprob in event.logprobs or ()
        )
        for index in range(4)
    }
    expected = sorted(scores, key=lambda tokens: -scores[tokens])[:2]
    assert [tuple(best.tokens(index)) for index in range(2)] == expected
    assert all(event.logprobs is None for event in best.events)
    assert [event.is_last for event in best.events].index(True) == len(best.events) - 1
    assert best.usage.completion_tokens == 24


def test_seed_drawn_for_a_request_comes_from_the_generator(pair: Pair) -> None:
    """The same generator makes the same answers; without a seed two requests differ."""
    params = SamplingParams(max_tokens=12, ignore_eos=True)
    made = [Request(id=name, prompt=PROMPT, params=params) for name in "ab"]
    rounds = []
    for _ in range(2):
        with running(pair) as engine:
            rounds.append([one.tokens() for one in answer(engine, made)])

    assert rounds[0] == rounds[1]
    assert rounds[0][0] != rounds[0][1]


def test_request_without_tokens_to_make_is_scored_and_ends(engine: Engine) -> None:
    """`max_tokens` 0 with prompt log-probabilities reads the prompt and says how likely each token was."""
    params = replace(GREEDY, max_tokens=0)
    request = Request(id="a", prompt=PROMPT * 5, params=params, prompt_logprobs=2, prompt_logprobs_from=70)
    [scored] = answer(engine, [request])

    [event] = scored.events
    assert event.prompt_logprobs is not None
    assert event.prompt_logprobs[:70] == (None,) * 70
    assert [entry.token for entry in event.prompt_logprobs[70:] if entry] == list(request.prompt[70:])
    assert event.finish_reason == "length"
    assert event.is_last


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"prompt": ()}, "prompt"),
        ({"prompt": (1, 258)}, "prompt"),
        ({"prompt": (-1,)}, "prompt"),
        ({"prompt": (1,) * 513}, "prompt"),
        ({"n": 0}, "n"),
        ({"n": 3, "best_of": 2}, "best_of"),
        ({"adapter": "unknown"}, "model"),
        ({"params": SamplingParams(temperature=-1.0)}, "temperature"),
        ({"params": SamplingParams(grammar="no grammar")}, "response_format"),
    ],
    ids=lambda value: str(value)[:24],
)
def test_request_that_cannot_be_answered_is_refused_at_once(
    engine: Engine, changes: dict[str, Any], param: str
) -> None:
    """The caller learns which parameter is at fault, and nothing is queued."""
    with pytest.raises(RequestRefused) as refusal:
        engine.submit(Request(**{"id": "a", "prompt": PROMPT, **changes}), Listener())

    assert refusal.value.param == param
    assert engine.statistics().num_requests == 0


def test_request_past_the_most_in_hand_is_refused_until_one_ends(pair: Pair) -> None:
    """The queue is bounded; a second request of one id is refused too."""
    listener = Listener()
    with running(pair, max_requests=2) as engine:
        long = replace(GREEDY, max_tokens=400)
        engine.submit(Request(id="a", prompt=PROMPT, params=long), listener)
        with pytest.raises(RequestRefused, match="in hand already"):
            engine.submit(Request(id="a", prompt=PROMPT, params=long), listener)
        engine.submit(Request(id="b", prompt=PROMPT, params=long), listener)
        with pytest.raises(RequestRefused) as refusal:
            engine.submit(Request(id="c", prompt=PROMPT, params=GREEDY), listener)
        engine.abort("a")
        listener.wait("a")
        engine.submit(Request(id="c", prompt=PROMPT, params=GREEDY), listener)

        assert refusal.value.code == "engine_full"
        assert listener.wait("c").last.finish_reason == "length"


def test_abort_of_a_running_request_ends_it_and_leaves_the_others(pair: Pair) -> None:
    """It ends with a last event; its neighbour does not notice."""
    with running(pair) as engine:
        [alone] = answer(engine, [Request(id="x", prompt=PROMPT, params=GREEDY)])
        listener = Listener()
        engine.submit(Request(id="a", prompt=PROMPT, params=replace(GREEDY, max_tokens=400)), listener)
        engine.submit(Request(id="b", prompt=PROMPT, params=GREEDY), listener)
        listener.wait("a", num_events=3)
        engine.abort("a")
        engine.abort("never seen")
        aborted, other = listener.wait("a"), listener.wait("b")

        assert (aborted.last.finish_reason, aborted.last.is_last) == ("abort", True)
        assert aborted.usage.completion_tokens < 400
        assert other.tokens() == alone.tokens()
        assert engine.statistics().scheduler.pool.num_used == 0


def test_random_requests_with_aborts_leave_nothing_behind(pair: Pair) -> None:
    """Three hundred of every kind, a third aborted at random moments, all end once; no page stays in use."""
    room = 8 * 32 * 1024
    with running(
        pair, speculate="auto", kv_bytes=room, host_bytes=3 * room, max_context=256, max_sequences=6
    ) as engine:
        endings = run_load(engine, 300, seed=5)
        statistics = engine.statistics()

    assert endings.total() == 300
    assert endings["abort"] > 30
    assert statistics.scheduler.pool.num_evictions > 0
    assert statistics.num_requests == 0
    assert statistics.scheduler.pool.num_used == 0
    assert statistics.steps.num_failed == 0


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        RuntimeError("[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory"),
        MemoryError(),
    ],
    ids=["device", "host", "python"],
)
def test_request_that_runs_out_of_memory_is_told_what_to_do(pair: Pair, error: Exception) -> None:
    """It ends with an error of ours; the engine goes on."""

    def fails(slices: SequenceOf[Slice]) -> bool:
        if any(part.sequence.tokens[0] == 99 for part in slices):
            raise error
        return False

    with running(pair, load=faulty(fails, [])) as engine:
        failed, other = answer(
            engine,
            [
                Request(id="a", prompt=(99, *PROMPT), params=GREEDY),
                Request(id="b", prompt=PROMPT, params=GREEDY),
            ],
        )

    assert isinstance(failed.last.error, OutOfMemory)
    assert "shorter prompt" in str(failed.last.error)
    assert other.last.finish_reason == "length"


def test_want_of_memory_on_the_host_is_known_by_the_words_that_tell_of_it() -> None:
    """PyTorch has no error of its own for it; other runtime errors are not mistaken for one."""
    # What the address space cannot hold, no overcommitment grants.
    with pytest.raises(RuntimeError) as caught:
        torch.ones(1).expand(2**45).contiguous()

    assert is_out_of_memory(caught.value)
    assert not is_out_of_memory(RuntimeError("shapes do not fit"))


def test_thread_that_is_killed_tells_everybody(pair: Pair) -> None:
    """Not even an error that is no Exception ends it silently."""

    def fails(slices: SequenceOf[Slice]) -> bool:
        raise SystemExit("the test ends the thread")

    listener = Listener()
    with running(pair, load=faulty(fails, [])) as engine:
        for number in range(3):
            engine.submit(Request(id=str(number), prompt=PROMPT, params=GREEDY), listener)
        ended = [listener.wait(str(number)).last for number in range(3)]
        with pytest.raises(EngineStopped, match="the test ends the thread"):
            engine.submit(Request(id="a", prompt=PROMPT, params=GREEDY), listener)

    assert all(isinstance(event.error, EngineStopped) for event in ended)


def test_answer_that_continues_a_text_keeps_the_space_that_begins_it() -> None:
    """A chat's answer is a text of its own; a completion goes on where its prompt ended."""
    spaced = SpacedTokenizer()
    found = []
    for continues in (False, True):
        request = Request(id="a", prompt=(1,), params=GREEDY, continues_text=continues)
        sequence = Sequence(request, 0, 0, [1], 0)
        answering = Answer(sequence, cast(Tokenizer, spaced), eos_token_ids=frozenset(), max_context=99)
        found.append(answering.take(Choice([5, 5], None, 0)).text)

    assert found == ["word word", " word word"]


def test_queue_times_are_those_of_the_requests_that_started(pair: Pair) -> None:
    """One for each, in order, which add up to the sum."""
    with running(pair, max_sequences=1) as engine:
        answer(engine, [Request(id=str(number), prompt=(number, 1), params=GREEDY) for number in range(4)])
        statistics = engine.statistics()

    assert len(statistics.queue_times) == statistics.num_started == 4
    assert sum(statistics.queue_times) == pytest.approx(statistics.queue_s)
    # Each waits for the one before.
    assert list(statistics.queue_times) == sorted(statistics.queue_times)


def test_weights_written_anew_in_the_same_folder_have_other_pages(pair: Pair, tmp_path: Path) -> None:
    """What names cached pages follows the files, not only where they lie; a link that leads nowhere is no obstacle."""
    folder = tmp_path / "model"
    shutil.copytree(pair.target, folder)
    (folder / "LICENSE").symlink_to("nowhere")

    def first_page() -> bytes:
        parts = load_parts(options(pair, model=folder, draft=None), lambda: 0.0)
        sequence = Sequence(Request(id="a", prompt=(1,) * 65), 0, 0, [1] * 65, 0)
        parts.scheduler.add(sequence)
        parts.scheduler.schedule()
        return sequence.block_hashes[0]

    before, again = first_page(), first_page()
    weights = folder / "model.safetensors"
    os.utime(weights, ns=(weights.stat().st_atime_ns, weights.stat().st_mtime_ns + 1_000_000))

    assert before == again
    assert first_page() != before


def test_request_that_fails_alone_takes_no_other_with_it(pair: Pair) -> None:
    """A step that fails is run again one by one; only the sequence at fault ends, with an error that tells nothing."""
    poison = 99

    def fails(slices: SequenceOf[Slice]) -> bool:
        return any(part.sequence.tokens[0] == poison for part in slices)

    made = [
        Request(id=str(number), prompt=(poison if number == 2 else number, *PROMPT), params=GREEDY)
        for number in range(5)
    ]
    with running(pair) as engine:
        healthy = answer(engine, made)
    with running(pair, load=faulty(fails, [])) as engine:
        found = answer(engine, made)
        statistics = engine.statistics()

    assert [one.last.finish_reason for one in found] == ["length", "length", "error", "length", "length"]
    assert isinstance(found[2].last.error, EngineError)
    assert "test" not in str(found[2].last.error)
    assert [one.tokens() for number, one in enumerate(found) if number != 2] == [
        one.tokens() for number, one in enumerate(healthy) if number != 2
    ]
    assert statistics.scheduler.pool.num_used == 0
    assert statistics.steps.num_failed > 0


@pytest.mark.parametrize("speculate", ["off", "draft"])
def test_answer_that_is_too_much_for_its_grammar_ends_alone_and_breaks_no_step(
    pair: Pair, speculate: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It is its client's own: the others of the step stay one batch, and the log says nothing of a failure."""
    properties = {f"p{number}": {"type": "string"} for number in range(1000)}
    with running(pair, speculate=speculate) as engine:
        grammar = engine.grammars.json_schema({"type": "object", "properties": properties})
        requests = [
            Request(id=f"r{number}", prompt=(number, *PROMPT), params=replace(GREEDY, max_tokens=60))
            for number in range(4)
        ]
        alone = answer(engine, requests)
        held = [replace(each, id=f"h{each.id}", params=replace(each.params, grammar=grammar)) for each in requests[:2]]
        *beside, first, second = answer(engine, [*(replace(each, id=f"b{each.id}") for each in requests), *held])

        assert engine.statistics().steps.num_failed == 0
        assert engine.statistics().scheduler.pool.num_used == 0
    assert [each.tokens() for each in beside] == [each.tokens() for each in alone]
    for refused in (first, second):
        assert isinstance(refused.last.error, RequestRefused)
        assert refused.last.error.param == "response_format"
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_failures_one_after_the_other_do_not_stop_the_engine(pair: Pair) -> None:
    """However many requests fail: as long as a step of nothing runs, the next request is served."""

    def fails(slices: SequenceOf[Slice]) -> bool:
        return any(part.sequence.tokens[0] == 99 for part in slices)

    with running(pair, load=faulty(fails, [])) as engine:
        for number in range(10):
            [failed] = answer(engine, [Request(id=str(number), prompt=(99,), params=GREEDY)])
            assert failed.last.finish_reason == "error"
        [served] = answer(engine, [Request(id="a", prompt=PROMPT, params=GREEDY)])

    assert served.last.finish_reason == "length"


def test_device_that_breaks_stops_the_engine_and_tells_everybody(pair: Pair) -> None:
    """Running and waiting requests end with an error, and later ones are told that it stopped, and why."""
    made: list[Faulty] = []
    listener = Listener()
    with running(pair, load=faulty(lambda _: False, made), max_sequences=2) as engine:
        for number in range(5):
            params = replace(GREEDY, max_tokens=400)
            engine.submit(Request(id=str(number), prompt=(number, *PROMPT), params=params), listener)
        listener.wait("0", num_events=2)
        made[0].is_broken = True
        ended = [listener.wait(str(number)) for number in range(5)]
        engine.close()

        assert all(one.last.finish_reason == "error" and one.last.is_last for one in ended)
        with pytest.raises(EngineStopped, match="the test broke it"):
            engine.submit(Request(id="a", prompt=PROMPT, params=GREEDY), listener)


def test_drafting_that_fails_is_given_up_and_changes_nothing(pair: Pair) -> None:
    """Drafts are a help: without them the same answer comes."""
    calls = []

    def load(given: EngineOptions, now: Callable[[], float]) -> EngineParts:
        parts = load_parts(given, now)
        assert parts.draft is not None

        def fail(*arguments: Any) -> Any:
            calls.append(arguments)
            raise RuntimeError("the test breaks it")

        parts.draft.propose = fail  # type: ignore[method-assign]  # the fault that the test is about
        return parts

    with running(pair) as engine:
        [plain] = answer(engine, [Request(id="a", prompt=PROMPT, params=GREEDY)])
    with running(pair, load=load, speculate="draft") as engine:
        [answered] = answer(engine, [Request(id="a", prompt=PROMPT, params=GREEDY)])

    assert answered.tokens() == plain.tokens()
    assert len(calls) == 1


def test_close_ends_what_is_in_hand_with_an_error(pair: Pair) -> None:
    """Nobody waits for ever; closing twice is no error."""
    listener = Listener()
    with running(pair) as engine:
        for number in range(12):
            params = replace(GREEDY, max_tokens=400)
            engine.submit(Request(id=str(number), prompt=PROMPT, params=params), listener)
        engine.close()

        ended = [listener.wait(str(number)).last for number in range(12)]
        assert all(isinstance(event.error, EngineStopped) for event in ended)
        with pytest.raises(EngineStopped):
            engine.submit(Request(id="a", prompt=PROMPT, params=GREEDY), listener)


def test_sink_that_fails_loses_its_requests_and_no_others(pair: Pair) -> None:
    """A listener that has gone away does not stop the thread."""

    def gone(events: object) -> None:
        raise RuntimeError("nobody listens")

    with running(pair) as engine:
        engine.submit(Request(id="a", prompt=PROMPT, params=replace(GREEDY, max_tokens=400)), gone)
        [answered] = answer(engine, [Request(id="b", prompt=PROMPT, params=GREEDY)])

        assert answered.last.finish_reason == "length"
        assert engine.statistics().num_requests == 0
        assert engine.statistics().scheduler.pool.num_used == 0


def test_start_with_a_missing_model_raises_in_the_caller(tmp_path: Path) -> None:
    """What is wrong with the folder is told where the engine was started, and the thread ends."""
    engine = Engine(EngineOptions(model=tmp_path, device="cpu"))

    with pytest.raises(ModelError, match=str(tmp_path)):
        engine.start()
    engine.close()
    with pytest.raises(EngineStopped):
        engine.submit(Request(id="a", prompt=PROMPT), Listener())


def test_start_without_room_for_the_context_says_how_much_is_missing(pair: Pair) -> None:
    """Too little memory for one whole context is found before the first request."""
    engine = Engine(options(pair, max_context=512, kv_bytes=24 * 1024))

    with pytest.raises(OutOfMemory, match="512 tokens"):
        engine.start()


def test_start_with_a_context_beyond_the_model_names_its_own(pair: Pair) -> None:
    """A limit that the model cannot keep is refused, not cut."""
    engine = Engine(options(pair, max_context=10**6))

    with pytest.raises(ModelError, match=r"max_context is 1000000.*made for \d+ tokens"):
        engine.start()


def test_start_with_more_host_memory_than_there_is_says_what_to_do(pair: Pair) -> None:
    """Found before the first request too."""
    engine = Engine(options(pair, host_bytes=2**55))

    with pytest.raises(OutOfMemory, match="give the cache less memory"):
        engine.start()


def test_engine_of_any_device_leaves_the_callers_torch_settings_alone(pair: Pair) -> None:
    """The number of threads is set in the engine's thread only."""
    import torch

    before = torch.get_num_threads()
    with running(pair, threads=1):
        found = torch.get_num_threads()

    assert found == before


def test_submit_from_many_threads_answers_all(pair: Pair) -> None:
    """The one queue takes requests from anywhere."""
    listener = Listener()
    with running(pair) as engine:

        def submit(first: int) -> None:
            for number in range(first, first + 10):
                request = Request(id=str(number), prompt=(number, 1, 2), params=replace(GREEDY, max_tokens=3))
                engine.submit(request, listener)

        threads = [threading.Thread(target=submit, args=(first,)) for first in range(0, 40, 10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        ended = [listener.wait(str(number)) for number in range(40)]

    assert all(len(one.tokens()) == 3 for one in ended)
