"""Labelled questions as traffic: each text once, texts that come back, or pairs. Only the replay knows meanings."""

from __future__ import annotations

import gzip
import json
import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAX_QUERIES = 5_000
TRAP_REQUESTS = 3_000
_TRAP_EXPONENT = 0.7
_MAX_PAIRS = 6_000
_MAX_BYTES_OF_SIMILARITIES = 512 << 20


@dataclass(frozen=True, slots=True)
class LabelledSet:
    """A set as it is on disk. Texts of the same meaning have one answer; `pairs`: two texts and whether they do."""

    name: str
    meanings: dict[str, str]
    pairs: tuple[tuple[str, str, bool], ...] = ()

    @property
    def texts(self) -> list[str]:
        """Every text once."""
        return list(self.meanings or dict.fromkeys(text for pair in self.pairs for text in pair[:2]))


class QuestionStream:
    """Questions in the order in which they come.

    `asked` are indices of `texts`; where one is there twice, the text comes back. In pairs, text 2n + 1 is asked of a
    cache that holds text 2n and nothing else. `meanings` decide what the backend answers.
    """

    def __init__(
        self,
        texts: Sequence[str],
        meanings: Sequence[str],
        vectors: NDArray[np.float32],
        asked: Sequence[int],
        *,
        is_pairs: bool = False,
    ) -> None:
        self.texts = texts
        self.meanings = meanings
        self.asked = asked
        self.is_pairs = is_pairs
        self._vectors = vectors
        fits = not is_pairs and 4 * len(vectors) ** 2 <= _MAX_BYTES_OF_SIMILARITIES
        self._similarities = vectors @ vectors.T if fits else None

    def similarities(self, query: int, entries: NDArray[np.int64]) -> NDArray[np.float32]:
        """[entries], the cosine of a text and others."""
        if self._similarities is not None:
            found: NDArray[np.float32] = self._similarities[query, entries]
        else:
            found = self._vectors[entries] @ self._vectors[query]
        return found


def read_set(folder: Path, name: str) -> LabelledSet:
    """The set of that name: one JSON object a line, gzipped. Raises: FileNotFoundError where it is not there."""
    files = sorted(folder.glob(f"{name}_*.jsonl.gz"))
    if not files:
        raise FileNotFoundError(f"there is no {name}_*.jsonl.gz in {folder}")
    pairs: list[tuple[str, str, bool]] = []
    meanings: dict[str, str] = {}
    for row in _json_lines(files[0]):
        if "cluster" in row:
            meanings[row["text"]] = row["cluster"]
        else:
            pairs.append((row["a"], row["b"], bool(row["y"])))
    # Embedding them all would take an hour; which ones these are is the same every time.
    random.Random(1).shuffle(pairs)
    return LabelledSet(name, meanings, tuple(pairs[:_MAX_PAIRS]))


def shuffled(rows: LabelledSet, vectors: dict[str, NDArray[np.float32]], seed: int) -> QuestionStream:
    """Every text once, in an order that the seed decides, up to 5,000."""
    texts = rows.texts
    random.Random(seed).shuffle(texts)
    texts = texts[:MAX_QUERIES]
    return _stream(rows, texts, vectors, range(len(texts)))


def drifting(rows: LabelledSet, vectors: dict[str, NDArray[np.float32]], seed: int) -> QuestionStream:
    """As `shuffled`, but in the second half come meanings that nobody asked for in the first: half of all."""
    generator = random.Random(seed)
    meanings = sorted(set(rows.meanings.values()))
    late = set(generator.sample(meanings, len(meanings) // 2))
    texts = rows.texts
    generator.shuffle(texts)
    early = [text for text in texts if rows.meanings[text] not in late][: MAX_QUERIES // 2]
    late_texts = [text for text in texts if rows.meanings[text] in late][: MAX_QUERIES // 2]
    texts = early + late_texts
    return _stream(rows, texts, vectors, range(len(texts)))


def returning(rows: LabelledSet, vectors: dict[str, NDArray[np.float32]], seed: int) -> QuestionStream:
    """3,000 requests, meanings drawn with weight 1 / rank ** 0.7, one of its texts at random."""
    generator = random.Random(seed)
    by_meaning: dict[str, list[int]] = defaultdict(list)
    texts = rows.texts
    for index, text in enumerate(texts):
        by_meaning[rows.meanings[text]].append(index)
    meanings = sorted(by_meaning)
    generator.shuffle(meanings)
    weights = [(rank + 1) ** -_TRAP_EXPONENT for rank in range(len(meanings))]
    drawn = generator.choices(meanings, weights, k=TRAP_REQUESTS)
    return _stream(rows, texts, vectors, [generator.choice(by_meaning[meaning]) for meaning in drawn])


def paired(rows: LabelledSet, vectors: dict[str, NDArray[np.float32]], seed: int) -> QuestionStream:
    """Each pair a cache of its own, in an order that the seed decides, up to 5,000."""
    pairs = list(rows.pairs)
    random.Random(seed).shuffle(pairs)
    pairs = pairs[:MAX_QUERIES]
    texts = [text for pair in pairs for text in pair[:2]]
    meanings = [
        meaning
        for number, (_, _, is_same) in enumerate(pairs)
        for meaning in (f"{number}", f"{number}" if is_same else f"not {number}")
    ]
    gathered = np.stack([vectors[text] for text in texts])
    return QuestionStream(texts, meanings, gathered, range(1, len(texts), 2), is_pairs=True)


def _stream(
    rows: LabelledSet, texts: list[str], vectors: dict[str, NDArray[np.float32]], asked: Sequence[int]
) -> QuestionStream:
    gathered = np.stack([vectors[text] for text in texts])
    return QuestionStream(texts, [rows.meanings[text] for text in texts], gathered, asked)


def _json_lines(path: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)
