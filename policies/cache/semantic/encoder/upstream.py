"""Vectors from the embeddings endpoint of a backend of the policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import sha256

import msgspec
import numpy as np
from numpy.typing import NDArray

from backends.charges.charge import Pricing
from backends.clock import Clock
from backends.errors import ConfigurationError, SlipstreamError
from backends.json_errors import NOT_JSON
from backends.operations import Operation
from backends.protocol import Backend, Call, Facts, Timeouts
from policies.cache.semantic.encoder.batched import EncoderFailed, ModelIdentity, PairModel
from policies.cache.semantic.sameness.reader import Compared
from policies.pool.attempts.charging import settle_failure, settle_reply


class _Embedding(msgspec.Struct):
    index: int
    embedding: list[float]


class _Embeddings(msgspec.Struct):
    data: list[_Embedding]


_ANSWERS = msgspec.json.Decoder(_Embeddings)


class BackendModel:
    """A `TextModel` behind a backend, which somebody else opens and closes.

    `dimension` is configured, so that a gateway starts while the backend is away. The fingerprint names backend and
    model: an upstream that changes its weights under the same name is for the operator to notice.
    """

    def __init__(
        self,
        backend: Backend,
        model: str,
        *,
        dimension: int,
        clock: Clock,
        price_of: Callable[[str], Pricing | None],
        words: PairModel,
        timeout_s: float = 2.0,
    ) -> None:
        """`price_of`: what the backend takes for a model; None where nobody knows. `words`: compares answers, for a
        backend tells no tokens; opened and closed with this.
        """
        self._words = words
        self._backend = backend
        self._price_of = price_of
        self._model = model
        self._dimension = dimension
        self._clock = clock
        self._timeout_s = timeout_s

    async def open(self) -> ModelIdentity:
        """Nothing is sent to the backend. Raises: ConfigurationError where it has no embeddings."""
        if Operation.EMBEDDING not in self._backend.capabilities.operations:
            raise ConfigurationError(f"the encoder's backend {self._backend.name} has no embeddings")
        await self._words.open()
        name = sha256(f"{self._backend.name}\0{self._model}".encode()).hexdigest()[:32]
        return ModelIdentity(self._dimension, f"backend:float32:{self._dimension}:{name}")

    async def embed(self, texts: Sequence[str], facts: Facts) -> NDArray[np.float32]:
        """[texts, dimension]. Raises: EncoderFailed for any other answer than that, or none in time."""
        body = {"model": self._model, "input": list(texts), "encoding_format": "float"}
        call = Call(
            operation=Operation.EMBEDDING,
            path="/embeddings",
            raw=msgspec.json.encode(body),
            body=body,
            model=self._model,
            deadline=self._clock.now() + self._timeout_s,
            facts=facts,
            headers=[(b"content-type", b"application/json")],
            timeouts=Timeouts(first_token_s=self._timeout_s, total_s=self._timeout_s),
        )
        facts.backend, facts.upstream_model = self._backend.name, self._model
        charge = facts.charge(self._backend.name, self._model, self._price_of(self._model))
        try:
            reply = await self._backend.send(call)
        except BaseException as error:
            settle_failure(charge, call, error, was_sent=facts.sent_at is not None)
            if isinstance(error, SlipstreamError):
                raise EncoderFailed(f"the encoder's backend failed ({error.reason})") from error
            raise
        settle_reply(charge, call, reply)
        if reply.body is None or reply.status != 200:
            await reply.aclose()
            raise EncoderFailed(f"the encoder's backend answered {reply.status}")
        return self._rows(reply.body, len(texts))

    async def compare(self, left: str, right: str) -> Compared:
        """By words alone. Raises: EncoderFailed."""
        return await self._words.compare(left, right)

    async def aclose(self) -> None:
        """End the comparing of words; of the backend nothing is held. Safe to call twice."""
        await self._words.aclose()

    def _rows(self, body: bytes, num_texts: int) -> NDArray[np.float32]:
        try:
            found = _ANSWERS.decode(body).data
        except NOT_JSON as error:
            raise EncoderFailed("the encoder's backend answered something else than embeddings") from error
        if sorted(item.index for item in found) != list(range(num_texts)):
            raise EncoderFailed(f"the encoder's backend answered {len(found)} embeddings for {num_texts} texts")
        rows = np.zeros((num_texts, self._dimension), np.float32)
        for item in found:
            if len(item.embedding) != self._dimension:
                raise EncoderFailed(
                    f"the encoder's backend sends {len(item.embedding)} numbers, {self._dimension} are configured"
                )
            # Numbers beyond float32 become infinite, which no vector is: that text then has none.
            with np.errstate(over="ignore"):
                rows[item.index] = item.embedding
        return rows
