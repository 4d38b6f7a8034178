"""What can go wrong in the engine. A tree of its own, since the engine runs where the gateway's is not installed;
the serving adapter translates it once.

    EngineError
    ├── ModelError          the folder cannot be served: which file, which field, what to do
    ├── RequestRefused      this request cannot be answered; names the parameter
    │   └── SequenceRefused in the middle of a step, whose other sequences can go on
    ├── OutOfMemory         weights or pages do not fit; says how much is missing
    └── EngineStopped       the engine was closed, or its thread died of an error that is its cause
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from backends.engine.sequence import Sequence


class EngineError(Exception):
    """Root of the tree. The message may be shown to a client and says what to do."""


class ModelError(EngineError):
    """The model folder cannot be served."""


class RequestRefused(EngineError):
    """This request cannot be answered; `param` is the OpenAI field at fault."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class SequenceRefused(RequestRefused):
    """The request of `sequence` cannot be answered any further."""

    def __init__(self, sequence: Sequence, why: RequestRefused) -> None:
        super().__init__(str(why), param=why.param, code=why.code)
        self.sequence = sequence


class OutOfMemory(EngineError):
    """Weights or pages do not fit."""


class EngineStopped(EngineError):
    """No more steps will run."""


_OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "alloc_failed", "cannot allocate memory")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory was what a computation wanted for; PyTorch tells of it in words alone where it is the host's."""
    if isinstance(error, RuntimeError):
        message = str(error).lower()
        return any(words in message for words in _OUT_OF_MEMORY)
    return isinstance(error, MemoryError)


def as_engine_error(error: Exception) -> EngineError:
    """What a client is told of an error: itself where it is ours, else one of ours with it as the cause."""
    if isinstance(error, EngineError):
        return error
    if is_out_of_memory(error):
        told: EngineError = OutOfMemory(
            "the device ran out of memory; send a shorter prompt, or give the engine a smaller max_batch_tokens, cache "
            "(memory) or number of sequences"
        )
    else:
        told = EngineError("an internal error ended this answer")
    told.__cause__ = error
    return told
