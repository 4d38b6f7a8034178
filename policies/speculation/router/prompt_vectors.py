"""The encoder's vectors of many prompts, for who learns from them; kept in a file, for they take minutes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from policies.cache.semantic.benchmark.vectors import Note, encode_all

_NAME = "prompts"
_LONGEST = (1024, 512, 256)
"""Characters from the end that an encoder of 256 tokens mostly, nearly always and always reads whole."""


def endings(prompt: str) -> Iterator[str]:
    """What to encode of a prompt, and what instead where the encoder cannot read that whole."""
    yield from dict.fromkeys(prompt[-num_chars:] for num_chars in _LONGEST)


def encode_prompts(prompts: Sequence[str], folder: Path, note: Note) -> NDArray[np.float32]:
    """[prompts, dimension] of length 1; zeros where nothing of a prompt can be read. `folder` keeps them."""
    tried = [list(endings(prompt)) for prompt in prompts]
    read = [texts.pop(0) for texts in tried]
    known = encode_all(read, folder, _NAME, note)
    while unread := [row for row, text in enumerate(read) if tried[row] and not known[text].any()]:
        for row in unread:
            read[row] = tried[row].pop(0)
        known = encode_all(read, folder, _NAME, note)
    return np.stack([known[text] for text in read])
