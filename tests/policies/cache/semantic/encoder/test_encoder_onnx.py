"""The int8 form of an encoder: made once, loaded without PyTorch, never taken for the model that it was made of.

It starts in no time, so this is also where processes die and are refused.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio

from backends.clock import SystemClock
from backends.errors import ConfigurationError
from backends.protocol import Facts
from policies.cache.semantic.encoder.batched import EncoderFailed
from policies.cache.semantic.encoder.child import Load
from policies.cache.semantic.encoder.folder import hash_folder
from policies.cache.semantic.encoder.process import ProcessModel

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("sentence_transformers")
pytestmark = pytest.mark.asyncio(loop_scope="module")

TEXTS = ["hello", "how do I change my address", "what is the rate of exchange", ""]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny sentence-transformers model."""
    from tests.support.engine.tiny_encoder import make_tiny_encoder

    return make_tiny_encoder(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the int8 form is kept."""
    return tmp_path_factory.mktemp("onnx")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def process(tiny: Path, cache: Path) -> AsyncIterator[ProcessModel]:
    """The tiny model as int8 in a process of its own, made there."""
    model = ProcessModel(Load(model=str(tiny), kind="onnx", cache=str(cache)), SystemClock())
    await model.open()
    yield model
    await model.aclose()


async def test_int8_vectors_are_near_those_of_the_model(process: ProcessModel, tiny: Path) -> None:
    """Texts of unequal length: near, and not equal, which is why they may not share an index."""
    from sentence_transformers import SentenceTransformer

    expected = SentenceTransformer(str(tiny), device="cpu").encode(TEXTS)

    rows = await process.embed(TEXTS, Facts())

    cosines = (rows * expected).sum(axis=1) / np.linalg.norm(rows, axis=1)
    assert cosines.min() > 0.95
    assert cosines.min() < 0.99999


async def test_int8_vector_does_not_depend_on_its_neighbours(process: ProcessModel) -> None:
    """Alone or in a batch, a text has the same vector to the last bit."""
    together = await process.embed(TEXTS, Facts())

    alone = np.concatenate([await process.embed([text], Facts()) for text in TEXTS])

    assert together.tobytes() == alone.tobytes()


async def test_int8_has_no_vector_for_a_text_it_would_cut_off(process: ProcessModel) -> None:
    """As the model that it was made of: 14 words and the two tokens around them are read."""
    whole, long = await process.embed(["card " * 14, "card " * 15], Facts())

    assert whole.any()
    assert not long.any()


async def test_int8_fingerprint_is_not_that_of_the_model(process: ProcessModel, tiny: Path) -> None:
    """The same weights in another type of number have another name."""
    assert process._identity is not None
    assert process._identity.fingerprint == f"onnx:int8-1:32:{hash_folder(tiny)}"


async def test_int8_form_is_made_once_and_loaded_without_torch(tiny: Path, cache: Path, process: ProcessModel) -> None:
    """A second start finds the first one's files: all that is needed, and nothing half done beside them."""
    before = written_at(cache)
    assert sorted(before) == ["facts.json", "model.onnx", "tokenizer.json"]
    model = ProcessModel(Load(model=str(tiny), kind="onnx", cache=str(cache)), SystemClock())

    identity = await model.open()

    assert identity == process._identity
    assert written_at(cache) == before
    maps = mapped_files(model.pid)
    await model.aclose()
    assert "onnxruntime" in maps
    assert "libtorch" not in maps


async def test_process_that_dies_is_missed_and_started_anew(process: ProcessModel) -> None:
    """Killed: the next batch fails, look-ups do not wait for the new one, and after a pause it answers as before."""
    expected = await process.embed(["hello"], Facts())
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)

    with pytest.raises(EncoderFailed, match="died"):
        await process.embed(["hello"], Facts())
    with pytest.raises(EncoderFailed, match="being started"):
        await process.embed(["hello"], Facts())
    async with asyncio.timeout(120):
        while process.pid is None:
            await asyncio.sleep(0.05)

    assert (await process.embed(["hello"], Facts())).tobytes() == expected.tobytes()


async def test_process_of_another_dimension_is_a_configuration_error(tiny: Path, cache: Path) -> None:
    """A configured dimension is held, and no process is left."""
    model = ProcessModel(Load(model=str(tiny), kind="onnx", cache=str(cache)), SystemClock(), dimension=384)

    with pytest.raises(ConfigurationError, match="have 32 numbers, 384 are configured"):
        await model.open()
    assert model.pid is None


async def test_int8_without_a_folder_to_keep_it_is_a_configuration_error(tiny: Path) -> None:
    """The model's own folder may be anybody's: nothing is written there."""
    with pytest.raises(ConfigurationError, match="needs a folder"):
        await ProcessModel(Load(model=str(tiny), kind="onnx"), SystemClock()).open()


def written_at(cache: Path) -> dict[str, int]:
    """Every file below the cache's only folder, and when it was written."""
    [made] = cache.iterdir()
    return {path.name: path.stat().st_mtime_ns for path in made.iterdir()}


def mapped_files(pid: int | None) -> str:
    """What a process has loaded."""
    return Path(f"/proc/{pid}/maps").read_text()
