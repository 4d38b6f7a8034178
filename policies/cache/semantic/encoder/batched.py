"""Texts to vectors for a gateway that must not wait: an LRU, shared work, small batches, a bounded queue.

The model itself is a `TextModel`: a child process (`process.py`) or a backend (`upstream.py`).
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from backends.charges.charge import Charge
from backends.clock import Clock
from backends.protocol import Facts
from policies.batching.merge import portions_of, share_charges
from policies.cache.semantic.contracts import EncoderBusy, Vector
from policies.cache.semantic.sameness.reader import Compared
from policies.loop import Loop

_LOGGER = logging.getLogger(__name__)
_MAX_BATCH = 8
"""Larger ones are slower a text at these lengths: padding (measured, docs/performance.md)."""
_MAX_CHARS = 16_384
"""Longer texts than any model here reads whole; they are not sent to it."""
_MIN_LENGTH = 1e-6


class EncoderFailed(EncoderBusy):
    """No vector of this text: the model is away, or cannot read the text whole. A miss, as when it is busy."""


class ModelIdentity(msgspec.Struct, frozen=True):
    """Numbers of a vector, and the name of weights, number type and dimension."""

    dimension: int
    fingerprint: str


class PairModel(Protocol):
    """Compares answers somewhere else than on the event loop, one pair at a time."""

    async def open(self) -> ModelIdentity:
        """Load it. Raises: ConfigurationError that says what is wrong with it."""

    async def compare(self, left: str, right: str) -> Compared:
        """A round of comparing two answers; the same is asked again until it is done. Raises: EncoderFailed."""

    async def aclose(self) -> None:
        """Release it. Safe to call twice."""


class TextModel(PairModel, Protocol):
    """Computes vectors too, one batch at a time."""

    async def embed(self, texts: Sequence[str], facts: Facts) -> NDArray[np.float32]:
        """[texts, dimension] of any length; a row of zeros for a text that it cannot read whole. What a backend takes
        for that is charged to the facts.

        Raises: EncoderFailed where there is no answer.
        """


class EncoderStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Totals since the start; `waiting` is now."""

    hits: int
    encoded: int
    batches: int
    busy: int
    failed: int
    waiting: int


class _Job:
    """A text on its way and how many wait for it; the first who says whom to tell pays."""

    __slots__ = ("key", "num_waiting", "text", "told", "vector")

    def __init__(self, key: bytes, text: str, vector: asyncio.Future[Vector]) -> None:
        self.key = key
        self.text = text
        self.vector = vector
        self.num_waiting = 0
        self.told: Callable[[Charge], None] | None = None


class _Pair:
    """Two answers that somebody waits to have compared."""

    __slots__ = ("left", "log_odds", "right")

    def __init__(self, left: str, right: str, log_odds: asyncio.Future[float | None]) -> None:
        self.left = left
        self.right = right
        self.log_odds = log_odds


class BatchingEncoder:
    """An `Encoder` over a `TextModel`, which it owns.

    An idle model starts on a text at once; what comes meanwhile goes together, 8 at most, as soon as it is idle again.
    Between two batches there is one round of one comparison, whose texts nobody's question waits for longer than that.
    `max_vectors` are kept, read-only; more than `max_waiting` texts beside those in work are refused.
    """

    def __init__(self, model: TextModel, clock: Clock, *, max_vectors: int = 4096, max_waiting: int = 64) -> None:
        self._model = model
        self._max_vectors = max_vectors
        self._max_waiting = max_waiting
        self._identity: ModelIdentity | None = None
        self._vectors: OrderedDict[bytes, Vector] = OrderedDict()
        self._jobs: dict[bytes, _Job] = {}
        self._waiting: dict[bytes, _Job] = {}
        self._pairs: deque[_Pair] = deque()
        self._has_waiting = asyncio.Event()
        self._loop = Loop("encoder", clock)
        self._is_open = False
        self._hits = self._encoded = self._batches = self._busy = self._failed = 0

    @property
    def dimension(self) -> int:
        """Numbers of a vector; known once open."""
        return self._known().dimension

    @property
    def fingerprint(self) -> str:
        """Names weights, type and dimension; known once open."""
        return self._known().fingerprint

    async def open(self) -> None:
        """Load the model. Raises: ConfigurationError."""
        self._identity = await self._model.open()
        self._loop.start(self._run)
        self._is_open = True

    async def aclose(self) -> None:
        """Release the model; whoever still waits gets EncoderFailed. Safe to call twice."""
        self._is_open = False
        await self._loop.aclose()
        self._fail(list(self._jobs.values()), "the encoder is closed")
        for pair in self._pairs:
            self._fail_pair(pair, "the encoder is closed")
        self._pairs.clear()
        await self._model.aclose()

    async def encode(self, text: str, told: Callable[[Charge], None] | None = None) -> Vector:
        """The vector of a text, read-only. Half a surrogate pair counts as a question mark. `told`: as in `Encoder`.

        Raises: EncoderBusy where too many wait, EncoderFailed where there will be none.
        """
        if not self._is_open or len(text) > _MAX_CHARS:
            self._failed += 1
            raise EncoderFailed("the text is too long to be encoded" if self._is_open else "the encoder is closed")
        content = text.encode("utf-8", "replace")
        key = hashlib.sha256(content).digest()
        vector = self._vectors.get(key)
        if vector is not None:
            self._vectors.move_to_end(key)
            self._hits += 1
            return vector
        job = self._jobs.get(key) or self._queue(key, content.decode())
        job.num_waiting += 1
        job.told = job.told or told
        try:
            # Shielded: who leaves must not take the answer from the others.
            return await asyncio.shield(job.vector)
        finally:
            job.num_waiting -= 1
            if not job.num_waiting and self._waiting.get(key) is job:
                del self._waiting[key], self._jobs[key]

    async def compare(self, left: str, right: str) -> float | None:
        """As in `Encoder`. Raises: EncoderBusy where too many wait, EncoderFailed where there is no process for it."""
        if not self._is_open:
            raise EncoderFailed("the encoder is closed")
        if len(self._pairs) >= self._max_waiting:
            self._busy += 1
            raise EncoderBusy(f"{self._max_waiting} pairs of answers wait to be compared")
        pair = _Pair(_whole(left), _whole(right), asyncio.get_running_loop().create_future())
        self._pairs.append(pair)
        self._has_waiting.set()
        return await pair.log_odds

    def statistics(self) -> EncoderStatistics:
        """A snapshot of the counters."""
        return EncoderStatistics(
            hits=self._hits,
            encoded=self._encoded,
            batches=self._batches,
            busy=self._busy,
            failed=self._failed,
            waiting=len(self._waiting),
        )

    def _known(self) -> ModelIdentity:
        assert self._identity is not None, "an encoder is opened before it is asked"
        return self._identity

    def _queue(self, key: bytes, text: str) -> _Job:
        if len(self._waiting) >= self._max_waiting:
            self._busy += 1
            raise EncoderBusy(f"{self._max_waiting} texts wait to be encoded")
        job = _Job(key, text, asyncio.get_running_loop().create_future())
        self._jobs[key] = self._waiting[key] = job
        self._has_waiting.set()
        return job

    async def _run(self) -> None:
        while True:
            await self._has_waiting.wait()
            batch = [job for job, _ in zip(self._waiting.values(), range(_MAX_BATCH), strict=False)]
            for job in batch:
                del self._waiting[job.key]
            if not self._waiting and not self._pairs:
                self._has_waiting.clear()
            if batch:
                facts = Facts()
                try:
                    await self._encode(batch, facts)
                finally:
                    _tell(batch, facts)
            if self._pairs:
                await self._compare(self._pairs[0])

    async def _encode(self, batch: list[_Job], facts: Facts) -> None:
        self._batches += 1
        try:
            rows = await self._model.embed([job.text for job in batch], facts)
        except EncoderFailed as error:
            self._fail(batch, str(error))
            return
        except Exception as error:
            # The border of a background task: later texts need it. Only the kind of error, texts stay out of logs.
            _LOGGER.error("the encoder failed on %d texts: %s", len(batch), type(error).__name__)
            self._fail(batch, "the encoder failed")
            return
        if rows.shape != (len(batch), self.dimension):
            _LOGGER.error("the encoder's vectors are %s instead of %s", rows.shape, (len(batch), self.dimension))
            self._fail(batch, "the encoder's vectors are of another dimension")
            return
        for job, row in zip(batch, rows, strict=True):
            length = float(np.linalg.norm(row))
            if not _MIN_LENGTH < length < np.inf:
                self._fail([job], "the model cannot read the text whole")
                continue
            self._encoded += 1
            vector: Vector = (row / length).astype(np.float32)
            vector.flags.writeable = False
            self._keep(job.key, vector)
            del self._jobs[job.key]
            job.vector.set_result(vector)

    async def _compare(self, pair: _Pair) -> None:
        """One round of the first pair, which leaves the queue when it is done or nobody waits for it any more."""
        if not pair.log_odds.done():
            try:
                compared = await self._model.compare(pair.left, pair.right)
            except EncoderFailed as error:
                self._fail_pair(pair, str(error))
            else:
                if not compared.is_done:
                    return
                if not pair.log_odds.done():
                    pair.log_odds.set_result(compared.log_odds)
        if self._pairs and self._pairs[0] is pair:
            self._pairs.popleft()

    def _fail_pair(self, pair: _Pair, reason: str) -> None:
        if not pair.log_odds.done():
            self._failed += 1
            pair.log_odds.set_exception(EncoderFailed(reason))

    def _keep(self, key: bytes, vector: Vector) -> None:
        self._vectors[key] = vector
        if len(self._vectors) > self._max_vectors:
            self._vectors.popitem(last=False)

    def _fail(self, jobs: Sequence[_Job], reason: str) -> None:
        for job in jobs:
            self._failed += 1
            self._jobs.pop(job.key, None)
            self._waiting.pop(job.key, None)
            job.vector.set_exception(EncoderFailed(reason))
            # Who waited for it may have left: then nobody takes the exception, which is no mistake.
            job.vector.exception()


def _whole(text: str) -> str:
    """Without halves of surrogate pairs, which no message carries."""
    return text.encode("utf-8", "replace").decode()


def _tell(batch: Sequence[_Job], facts: Facts) -> None:
    """Who asked for a text bears its share of what the batch has taken."""
    if not facts.charges:
        return
    shares = [Charge("", "") for _ in batch]
    share_charges(facts, shares, portions_of([[job.text] for job in batch]))
    for job, share in zip(batch, shares, strict=True):
        if job.told is not None:
            job.told(share)
