"""Embeddings in OpenAI's shape: unit vectors, as numbers or as base64 of little-endian float32."""

from __future__ import annotations

import base64
import math
import sys
from array import array
from collections.abc import Sequence

import msgspec

from backends.charges.usage import Usage
from backends.engine.request import Event
from backends.serving.replies.parts import UsageTally


class EmbeddingAnswer:
    """The vectors of all inputs, in their order; `dimensions` keeps the first so many numbers of each."""

    def __init__(self, model: str, requests: Sequence[str], *, dimensions: int | None, is_base64: bool) -> None:
        self._model = model
        self._requests = requests
        self._dimensions = dimensions
        self._is_base64 = is_base64
        self._tally = UsageTally()
        self._vectors: dict[str, array[float]] = {}

    def take(self, event: Event) -> None:
        """Note a vector; it is scaled at once, so that the work is spread over the steps."""
        self._tally.take(event)
        if event.embedding is not None:
            self._vectors[event.request_id] = _unit(event.embedding[: self._dimensions])

    def drain(self) -> bytes:
        """Embeddings are not streamed."""
        return b""

    def finish(self) -> bytes:
        """The body."""
        usage = self.usage()
        data = [
            {"object": "embedding", "index": index, "embedding": self._written(self._vectors[request])}
            for index, request in enumerate(self._requests)
        ]
        tokens = {"prompt_tokens": usage.prompt_tokens, "total_tokens": usage.prompt_tokens}
        return msgspec.json.encode({"object": "list", "data": data, "model": self._model, "usage": tokens})

    def usage(self) -> Usage:
        """Tokens of the whole call."""
        usage = self._tally.usage()
        return Usage(usage.prompt_tokens, 0, usage.cached_tokens)

    def _written(self, vector: array[float]) -> str | list[float]:
        if not self._is_base64:
            return vector.tolist()
        if sys.byteorder == "big":
            vector.byteswap()
        return base64.b64encode(vector.tobytes()).decode("ascii")


def _unit(values: Sequence[float]) -> array[float]:
    """The vector at length one; the zero vector stays as it is."""
    length = math.sqrt(math.fsum(value * value for value in values)) or 1.0
    return array("f", [value / length for value in values])
