"""Rendezvous hashing: who takes what has a given key. The same in every process, and little moves as names come and go.

Thaler and Ravishankar, "Using Name-Based Mappings to Increase Hit Rates", 1998, with weights after Schindelhauer and
Schomaker, 2005; written from the papers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from hashlib import blake2b


def rendezvous(key: bytes) -> Callable[[str, float], float]:
    """What a name with its weight scores for that key: of several, the highest comes first."""
    short = blake2b(key, digest_size=16).digest()

    def score(name: str, weight: float) -> float:
        digest = blake2b(short + name.encode(), digest_size=8).digest()
        # 52 bits, so that the fraction is never rounded to 0 or 1.
        return weight / -math.log(((int.from_bytes(digest) >> 12) + 0.5) / 2**52)

    return score
