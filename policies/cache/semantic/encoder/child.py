"""The process that computes vectors, and what it and its parent say to each other over its standard streams.

Messages are msgpack behind their length. It ends when its input does, so it never outlives the gateway.
"""

from __future__ import annotations

import logging
import os
import sys
import warnings
from pathlib import Path
from typing import BinaryIO, Literal, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from backends.errors import ConfigurationError, SlipstreamError
from policies.cache.semantic.encoder.folder import find_folder
from policies.cache.semantic.sameness.reader import Compared, Reader, TokenModel

LENGTH_BYTES = 4


class Load(msgspec.Struct, frozen=True):
    """The first message: which model. `cache` is the folder in which its ONNX form is kept."""

    model: str | None = None
    kind: Literal["torch", "onnx", "words"] = "torch"
    """`words`: no model at all, only comparisons of answers by their words."""
    threads: int = 1
    cache: str | None = None


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The model is loaded."""

    dimension: int
    fingerprint: str


class Failed(msgspec.Struct, frozen=True, tag=True):
    """It could not be loaded, or not compute this batch."""

    reason: str


class Vectors(msgspec.Struct, frozen=True, tag=True):
    """One float32 row for each text, one after the other."""

    rows: bytes


class Texts(msgspec.Struct, frozen=True, tag=True):
    """To be encoded."""

    texts: list[str]


class Pair(msgspec.Struct, frozen=True, tag=True):
    """Two answers to be compared."""

    left: str
    right: str


Answer = Ready | Failed | Vectors | Compared
_ANSWERS = msgspec.msgpack.Decoder(Answer)
_QUESTIONS = msgspec.msgpack.Decoder(Texts | Pair)


def pack(message: object) -> bytes:
    """A message as it travels."""
    content = msgspec.msgpack.encode(message)
    return len(content).to_bytes(LENGTH_BYTES, "big") + content


def unpack_answer(content: bytes) -> Answer:
    """What the child has said."""
    answer: Answer = _ANSWERS.decode(content)
    return answer


class _Model(Protocol):
    dimension: int
    fingerprint: str

    def embed(self, texts: list[str]) -> NDArray[np.float32]: ...


def main() -> None:
    """Load what the first message names, then answer batches of texts until the input ends."""
    source = sys.stdin.buffer
    # Whatever a library prints must not be taken for an answer.
    with os.fdopen(os.dup(1), "wb") as target:
        os.dup2(2, 1)
        # What libraries remark upon is not for the gateway's log; what fails is told in an answer.
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        try:
            _serve(source, target)
        except (BrokenPipeError, EOFError):
            return


def _serve(source: BinaryIO, target: BinaryIO) -> None:
    load = msgspec.msgpack.decode(_read(source), type=Load)
    try:
        model = _load(load)
    except SlipstreamError as error:
        _write(target, Failed(error.message))
        return
    except Exception as error:
        # The border of this process: whatever the libraries say of a damaged model is for the operator to read.
        _write(target, Failed(f"the encoder's model {load.model} cannot be loaded: {type(error).__name__}: {error}"))
        return
    reader = Reader(model if isinstance(model, TokenModel) else None)
    _write(target, Ready(model.dimension, model.fingerprint))
    while True:
        question = _QUESTIONS.decode(_read(source))
        try:
            if isinstance(question, Pair):
                answer: Answer = reader.compare(question.left, question.right)
            else:
                answer = Vectors(np.ascontiguousarray(model.embed(question.texts), np.float32).tobytes())
        except Exception as error:
            # The same border: one batch that fails must not end the process. Texts stay out of logs.
            answer = Failed(type(error).__name__)
        _write(target, answer)


class _NoModel:
    """For who only compares words."""

    dimension = 0
    fingerprint = "words"

    def embed(self, texts: list[str]) -> NDArray[np.float32]:
        """Nothing of each."""
        return np.zeros((len(texts), 0), np.float32)


def _load(load: Load) -> _Model:
    if load.kind == "words":
        return _NoModel()
    folder = find_folder(load.model)
    if load.kind == "onnx":
        from policies.cache.semantic.encoder.onnx import OnnxModel

        if load.cache is None:
            raise ConfigurationError("the ONNX encoder needs a folder in which it keeps the int8 form of its model")
        return OnnxModel(folder, Path(load.cache), load.threads)
    from policies.cache.semantic.encoder.transformer import TransformerModel

    return TransformerModel(folder, load.threads)


def _read(source: BinaryIO) -> bytes:
    header = source.read(LENGTH_BYTES)
    if len(header) < LENGTH_BYTES:
        raise EOFError
    num_bytes = int.from_bytes(header, "big")
    content = source.read(num_bytes)
    if len(content) < num_bytes:
        raise EOFError
    return content


def _write(target: BinaryIO, answer: Answer) -> None:
    target.write(pack(answer))
    target.flush()
