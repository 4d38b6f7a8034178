"""Names for the contents of full pages: a hash of the page's tokens and of everything before them.

Two pages of one name hold the same keys and values. With 128 bits of BLAKE2b, equal names by accident are not a
concern, so tokens are not compared again on a hit.
"""

from __future__ import annotations

from array import array
from hashlib import blake2b

from kernels.paging import PAGE_SIZE

_DIGEST_BYTES = 16


def seed_hash(fingerprint: bytes, adapter: str | None, salt: bytes) -> bytes:
    """The start of a chain: no two (model, adapter, tenant) ever share a page.

    `fingerprint` stands for the weights. Each part is hashed on its own, so that moving a byte from one to the next
    gives another seed, and no adapter differs from the one named "".
    """
    parts = (fingerprint, b"" if adapter is None else b"adapter " + adapter.encode(), salt)
    return _hash(b"".join(_hash(part) for part in parts))


def extend_chain(chain: list[bytes], seed: bytes, tokens: list[int], num_blocks: int) -> None:
    """Brings `chain`, the names of the first pages of `tokens`, to at least `num_blocks` names.

    Needs num_blocks * PAGE_SIZE tokens, each in 0..2^32-1.
    """
    parent = chain[-1] if chain else seed
    for start in range(len(chain) * PAGE_SIZE, num_blocks * PAGE_SIZE, PAGE_SIZE):
        parent = _hash(parent + array("I", tokens[start : start + PAGE_SIZE]).tobytes())
        chain.append(parent)


def _hash(content: bytes) -> bytes:
    return blake2b(content, digest_size=_DIGEST_BYTES).digest()
