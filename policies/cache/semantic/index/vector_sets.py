"""Vectors in Redis 8: one vector set for each group, so a look-up that crosses groups has no key to do it with."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import numpy as np

from policies.cache.redis_link import Command, RedisLink, Results, Write, prolonged
from policies.cache.semantic.contracts import Neighbour, Question, Vector


class VectorSetIndex:
    """Keeps the vectors of a group under `<prefix>:<scope in hex>:vectors:<group in hex>`, 8 bits a number.

    With each vector that comes a set lives `ttl_s` of its scope longer, and then vanishes as a whole; vectors whose
    answers are gone before go by `remove`. `is_doubted` is set where Redis says that it knows no vector sets.
    """

    def __init__(self, link: RedisLink, *, ttl_s: Callable[[bytes], float]) -> None:
        self._link = link
        self._ttl_s = ttl_s
        self.is_doubted = asyncio.Event()
        self.num_errors = 0

    async def search(self, question: Question, vector: Vector, count: int) -> Sequence[Neighbour] | None:
        """Up to `count` nearest entries of the group, nearest first; None where Redis does not say in time."""
        results = await self._link.read(
            ("VSIM", self._key(question), "FP32", _blob(vector), "WITHSCORES", "COUNT", count)
        )
        if results is None:
            return None
        self._note(results)
        reply = results[0]
        if not isinstance(reply, list):
            return []
        pairs = zip(reply[::2], reply[1::2], strict=True)
        return [Neighbour(name.decode("utf-8", "replace"), _cosine(score)) for name, score in pairs]

    def add(self, question: Question, id: str, vector: Vector) -> None:
        """Found by `search` of every replica once it is written, which is soon."""
        key = self._key(question)
        commands: tuple[Command, ...] = (
            # CAS: what takes long is done beside Redis's main thread, so other calls need not wait for it.
            ("VADD", key, "FP32", _blob(vector), id, "CAS", "Q8"),
            *prolonged(key, self._ttl_s(question.scope)),
        )
        self._link.write(("vector", question.group, id), Write(commands, on_done=self._note), vector.nbytes)

    def remove(self, question: Question, ids: Sequence[str]) -> None:
        """No longer found, soon."""
        key = self._key(question)
        for name in ids:
            command: Command = ("VREM", key, name)
            self._link.write(("no vector", question.group, name), Write((command,), on_done=self._note), 0)

    def _key(self, question: Question) -> str:
        return f"{self._link.prefix}:{question.scope.hex()}:vectors:{question.group.hex()}"

    def _note(self, results: Results) -> None:
        errors = [str(result) for result in results if isinstance(result, Exception)]
        self.num_errors += bool(errors)
        if any(error.startswith("unknown command") for error in errors):
            self.is_doubted.set()


def _blob(vector: Vector) -> bytes:
    return np.ascontiguousarray(vector, dtype="<f4").tobytes()


def _cosine(score: bytes) -> float:
    # Redis gives (1 + cosine) / 2. Eight bits may carry it a little beyond the ends.
    return min(1.0, max(-1.0, 2.0 * float(score) - 1.0))
