"""The vectors of a set's texts, by the gateway's own encoder; kept in a file, for they take a minute or more."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from policies.cache.semantic.encoder.folder import find_folder
from policies.cache.semantic.encoder.transformer import TransformerModel

_BATCH = 8

Note = Callable[[int, int], None]
"""How many of how many are done."""


def encode_all(texts: Sequence[str], folder: Path, name: str, note: Note) -> dict[str, NDArray[np.float32]]:
    """Each text's vector, of length 1. What `folder` holds for that name is taken from there and completed."""
    file = folder / f"{name}.npz"
    known = _read(file)
    missing = sorted({text for text in texts if text not in known}, key=len)
    if missing:
        model = TransformerModel(find_folder(None), threads=1)
        for start in range(0, len(missing), _BATCH):
            batch = missing[start : start + _BATCH]
            rows = model.embed(batch)
            rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9)
            known.update(zip(batch, rows, strict=True))
            note(start + len(batch), len(missing))
        folder.mkdir(parents=True, exist_ok=True)
        listed = np.frombuffer(json.dumps(list(known)).encode(), np.uint8)
        np.savez(file, texts=listed, vectors=np.stack(list(known.values())))
    return known


def _read(file: Path) -> dict[str, NDArray[np.float32]]:
    if not file.is_file():
        return {}
    with np.load(file) as kept:
        texts, vectors = json.loads(kept["texts"].tobytes()), kept["vectors"]
    return dict(zip(texts, vectors, strict=True))
