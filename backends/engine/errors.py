"""What can go wrong in the engine. A tree of its own, since the engine runs where the gateway's is not installed;
the serving adapter translates it once.

    EngineError
    ├── ModelError          the folder cannot be served: which file, which field, what to do
    ├── RequestRefused      this request cannot be answered; names the parameter
    ├── OutOfMemory         weights or pages do not fit; says how much is missing
    └── EngineStopped       the engine was closed, or its thread died of an error that is its cause
"""

from __future__ import annotations


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


class OutOfMemory(EngineError):
    """Weights or pages do not fit."""


class EngineStopped(EngineError):
    """No more steps will run."""
