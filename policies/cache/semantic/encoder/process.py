"""A model in a process of its own: its Python holds no lock of the gateway's, its crash is a miss, not an outage."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from backends.clock import Clock
from backends.errors import ConfigurationError
from backends.protocol import Facts
from policies.background import Background
from policies.cache.semantic.encoder.batched import EncoderFailed, ModelIdentity
from policies.cache.semantic.encoder.child import (
    LENGTH_BYTES,
    Answer,
    Failed,
    Load,
    Pair,
    Ready,
    Texts,
    Vectors,
    pack,
    unpack_answer,
)
from policies.cache.semantic.sameness.reader import Compared

_LOGGER = logging.getLogger(__name__)
_LOAD_TIMEOUT_S = 300.0
"""The first start may download a model or make its ONNX form."""
_BATCH_TIMEOUT_S = 30.0
"""A batch takes a tenth of a second; a process that a starved machine does not run must not be taken for dead."""
_GRACE_S = 1.0
_FIRST_PAUSE_S = 1.0
_MAX_PAUSE_S = 60.0
_MAX_ANSWER_BYTES = 64 * 1024 * 1024
# The child finds the same modules as its parent, wherever that was started.
_START = "import sys; sys.path[:] = {path!r}; from policies.cache.semantic.encoder.child import main; main()"


class _Child:
    """One life of the process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None, "started with pipes"
        assert process.stdout is not None, "started with pipes"
        self.process = process
        self._input = process.stdin
        self._output = process.stdout

    @classmethod
    async def start(cls) -> _Child:
        """A process that waits for its `Load`. In a session of its own: a ^C is for the gateway to handle."""
        return cls(
            await asyncio.create_subprocess_exec(
                sys.executable,
                "-c",
                _START.format(path=sys.path),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
        )

    async def ask(self, message: object, timeout_s: float) -> Answer:
        """The answer to one message.

        Raises: EOFError, OSError where the process is gone or too slow; ValueError, DecodeError for what is no answer.
        """
        answer = asyncio.get_running_loop().create_task(self._exchange(message))
        try:
            # Where this process was not run for so long, the time is up before the answer is read that has come.
            for limit_s in (timeout_s, _GRACE_S):
                await asyncio.wait((answer,), timeout=limit_s)
                if answer.done():
                    return answer.result()
            raise TimeoutError
        finally:
            answer.cancel()

    async def _exchange(self, message: object) -> Answer:
        self._input.write(pack(message))
        await self._input.drain()
        num_bytes = int.from_bytes(await self._output.readexactly(LENGTH_BYTES), "big")
        if num_bytes > _MAX_ANSWER_BYTES:
            raise ValueError(f"an answer of {num_bytes} bytes")
        return unpack_answer(await self._output.readexactly(num_bytes))

    async def end(self) -> None:
        """Kill it and wait until it is gone."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self._input.close()
        await self.process.wait()


class ProcessModel:
    """A `TextModel` in a child process, which is started anew when it dies, with growing pauses.

    While there is none, `embed` fails at once: a look-up does not wait for a model to load.
    """

    def __init__(self, load: Load, clock: Clock, *, dimension: int | None = None) -> None:
        self._load = load
        self._clock = clock
        self._dimension = dimension
        self._identity: ModelIdentity | None = None
        self._child: _Child | None = None
        self._revival = Background(1)

    @property
    def pid(self) -> int | None:
        """The process, while there is one that answers."""
        return None if self._child is None else self._child.process.pid

    async def open(self) -> ModelIdentity:
        """Start the process and load the model.

        Raises: ConfigurationError that says why there is none, or that its dimension is not the one configured.
        """
        self._child, self._identity = await self._start()
        if self._dimension not in (None, self._identity.dimension):
            await self.aclose()
            raise ConfigurationError(
                f"the encoder's vectors have {self._identity.dimension} numbers, {self._dimension} are configured"
            )
        return self._identity

    async def embed(self, texts: Sequence[str], facts: Facts) -> NDArray[np.float32]:
        """[texts, dimension], at no charge. Raises: EncoderFailed where the process is away or does not answer."""
        answer = await self._ask(Texts(list(texts)))
        if isinstance(answer, Vectors):
            return np.frombuffer(answer.rows, np.float32).reshape(len(texts), -1)
        raise _failed("a batch", answer)

    async def compare(self, left: str, right: str) -> Compared:
        """A round of it. Raises: EncoderFailed where the process is away or does not answer."""
        answer = await self._ask(Pair(left, right))
        if isinstance(answer, Compared):
            return answer
        raise _failed("a comparison", answer)

    async def aclose(self) -> None:
        """End the process. Safe to call twice."""
        await self._revival.aclose()
        child, self._child = self._child, None
        if child is not None:
            await child.end()

    async def _ask(self, question: Texts | Pair) -> Answer:
        child = self._child
        if child is None:
            raise EncoderFailed("the encoder's process is being started")
        try:
            return await child.ask(question, _BATCH_TIMEOUT_S)
        except (EOFError, OSError, ValueError, msgspec.DecodeError) as error:
            await self._bury(child, f"{type(error).__name__}, {error}" if str(error) else type(error).__name__)
            raise EncoderFailed("the encoder's process has died") from error
        except asyncio.CancelledError:
            # An answer that nobody reads would be taken for the next one's.
            self._child = None
            await child.end()
            raise

    async def _start(self) -> tuple[_Child, ModelIdentity]:
        child = await _Child.start()
        try:
            answer = await child.ask(self._load, _LOAD_TIMEOUT_S)
        except (EOFError, OSError, ValueError, msgspec.DecodeError) as error:
            await child.end()
            raise ConfigurationError(
                f"the encoder's process ended while it loaded the model {self._load.model} ({type(error).__name__})"
            ) from error
        except asyncio.CancelledError:
            await child.end()
            raise
        if isinstance(answer, Ready):
            return child, ModelIdentity(answer.dimension, answer.fingerprint)
        await child.end()
        raise ConfigurationError(
            answer.reason if isinstance(answer, Failed) else "the encoder's process is out of step"
        )

    async def _bury(self, child: _Child, reason: str) -> None:
        self._child = None
        await child.end()
        _LOGGER.warning("the encoder's process has died (%s, exit %s); look-ups miss", reason, child.process.returncode)
        self._revival.start(self._revive())

    async def _revive(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while True:
            await self._clock.sleep(pause_s)
            pause_s = min(2 * pause_s, _MAX_PAUSE_S)
            try:
                child, identity = await self._start()
            except (ConfigurationError, OSError) as error:
                _LOGGER.warning("the encoder's process does not start: %s", error)
                continue
            if identity == self._identity:
                self._child = child
                _LOGGER.info("the encoder's process works again")
                return
            await child.end()
            # Vectors of another model must not meet those of before.
            _LOGGER.error("the encoder's model has changed on disk; look-ups miss until the gateway is started anew")
            return


def _failed(what: str, answer: Answer) -> EncoderFailed:
    reason = answer.reason if isinstance(answer, Failed) else type(answer).__name__
    return EncoderFailed(f"the encoder could not compute {what} ({reason})")
