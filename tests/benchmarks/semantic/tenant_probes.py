"""Tries to get one tenant's answers as another: the same texts, vectors beside stored ones, forged headers.

    python -m tests.benchmarks.semantic.tenant_probes [--probes 1000000] [--tenants 50] [--questions 40]

Every probe is a whole call through the real stage: keying, index, store, a decision that serves whatever is near. It
asks for a text that a victim has stored and the prober has not; its vector is the victim's or one right beside it. For
control, victims ask for their own texts now and then, and must be served. Prints a JSON line; the exit code is 1 if a
single probe was served, or a single control was not.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Callable
from random import Random

import numpy as np

from backends.charges.charge import Charge
from backends.clock import SystemClock
from backends.operations import Operation
from backends.protocol import Call, Capabilities, Reply, Statistics
from policies.cache.semantic.answers.memory import MemoryAnswerStore
from policies.cache.semantic.answers.quotas import Quotas
from policies.cache.semantic.contracts import Vector
from policies.cache.semantic.decision.static import Static
from policies.cache.semantic.index.memory import MemoryIndex
from policies.cache.semantic.learning.decisions import LearnedDecisions
from policies.cache.semantic.sameness.forms import SURE
from policies.cache.semantic.semantic import SemanticCache, SemanticParts
from policies.cache.semantic.vector_space import VectorSpace
from policies.cache.settings import CachePolicy
from tests.support.policy.cache import chat_answer
from tests.support.policy.semantic import question

_DIMENSION = 384
_STORE_BYTES = 1024**3
_CONTROL_EVERY = 100
_FORGED = ("x-tenant", "x-user", "x-key", "x-cache", "x-cache-entry", "x-slipstream-tenant", "authorization", "cookie")


class Known:
    """An encoder that was told the vector of every text beforehand; a probe's text gets one beside a stored one."""

    dimension = _DIMENSION
    fingerprint = "probes:1"

    def __init__(self, random: np.random.Generator) -> None:
        self._random = random
        self._vectors: dict[str, Vector] = {}
        self.noise = 0.0

    async def open(self) -> None:
        """Nothing to load."""

    async def aclose(self) -> None:
        """Nothing to release."""

    async def encode(self, text: str, told: Callable[[Charge], None] | None = None) -> Vector:
        """The vector of a text, moved a little where noise is asked for."""
        vector = self._vectors.get(text)
        if vector is None:
            vector = self._vectors[text] = _unit(self._random.standard_normal(_DIMENSION, np.float32))
        if self.noise:
            return _unit(vector + self.noise * self._random.standard_normal(_DIMENSION, np.float32) / _DIMENSION**0.5)
        return vector

    async def compare(self, left: str, right: str) -> float:
        """Only what is equal is the same."""
        return SURE if left == right else -SURE


class Nobody:
    """A backend that answers each call with the tenant that asked, so that an answer tells whose it is."""

    name = "nobody"
    capabilities = Capabilities(operations=frozenset({Operation.CHAT}))
    refuses = False

    async def open(self) -> None:
        """Nothing to acquire."""

    async def aclose(self) -> None:
        """Nothing to release."""

    def statistics(self) -> Statistics:
        """Nothing is counted."""
        return Statistics()

    async def send(self, call: Call) -> Reply:
        """The tenant's name; an error while probing, so that probes store nothing."""
        if self.refuses:
            return Reply(503, [], body=b"{}")
        return Reply(200, [(b"content-type", b"application/json")], body=chat_answer(f"for {call.tenant} only"))


async def run(num_probes: int, num_tenants: int, num_questions: int) -> dict[str, object]:
    """Store every tenant's questions, then probe."""
    clock, random = SystemClock(), Random(5)
    encoder, nobody = Known(np.random.default_rng(5)), Nobody()
    index = MemoryIndex(_DIMENSION, encoder.fingerprint, clock)
    space = VectorSpace(encoder, lambda _: index)
    quotas = Quotas(_STORE_BYTES)
    answers = MemoryAnswerStore(_STORE_BYTES, clock, random, quota=quotas, on_gone=space.forget)
    policy = CachePolicy.model_validate(
        {"semantic": {"mode": "static", "threshold": 0.5, "search_timeout": "5s", "volatile_words": []}}
    )
    book = LearnedDecisions(lambda: Static(0.5, random), None)
    stage = SemanticCache(nobody, policy, SemanticParts(space, answers, book, quotas, clock, random), route="probes")
    for part in (space, answers, stage):
        await part.open()
    texts = {
        tenant: [f"what is secret number {number} of tenant {tenant} about" for number in range(num_questions)]
        for tenant in (f"t{number}" for number in range(num_tenants))
    }
    for tenant, own in texts.items():
        for text in own:
            await stage.send(question(text, tenant=tenant))
            await stage.settle()
    nobody.refuses = True
    served, controls, missed = 0, 0, 0
    began = time.process_time()
    tenants = list(texts)
    for number in range(num_probes):
        victim, prober = random.sample(tenants, 2)
        encoder.noise = random.choice((0.0, 0.05, 0.3))
        call = question(random.choice(texts[victim]), tenant=prober, user=victim, headers=_forged(random, victim))
        reply = await stage.send(call)
        served += reply.status == 200
        if number % _CONTROL_EVERY == 0:
            controls += 1
            encoder.noise = 0.05
            reply = await stage.send(question(random.choice(texts[victim]), tenant=victim))
            missed += reply.status != 200 or victim.encode() not in (reply.body or b"")
            await stage.settle()
    seconds = time.process_time() - began
    for part in (stage, answers, space):
        await part.aclose()
    stored = num_tenants * num_questions
    return {
        "probes": num_probes,
        "served": served,
        "controls": controls,
        "controls_not_served": missed,
        "stored": stored,
        "cpu_us_each": round(1e6 * seconds / (num_probes + controls), 1),
    }


def _forged(random: Random, victim: str) -> list[tuple[bytes, bytes]]:
    """Fields that claim to be the victim, or its part of the cache."""
    claims = [(name.encode(), victim.encode()) for name in random.sample(_FORGED, random.randrange(3))]
    if random.random() < 0.5:
        claims.append((b"x-cache-scope", random.choice((victim.encode(), b"", random.randbytes(8)))))
    return claims


def _unit(vector: Vector) -> Vector:
    return (vector / np.linalg.norm(vector)).astype(np.float32)


def main() -> int:
    """Run it and say what came out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--probes", type=int, default=1_000_000)
    parser.add_argument("--tenants", type=int, default=50)
    parser.add_argument("--questions", type=int, default=40)
    options = parser.parse_args()
    result = asyncio.run(run(options.probes, options.tenants, options.questions))
    print(json.dumps(result))
    return 1 if result["served"] or result["controls_not_served"] else 0


if __name__ == "__main__":
    sys.exit(main())
