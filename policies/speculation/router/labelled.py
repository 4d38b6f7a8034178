"""Reads prompts of which it is known whether a small and a large model were right: JSON lines, plain or gzipped."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import msgspec

from backends.json_errors import NOT_JSON

_GZIP = b"\x1f\x8b"
_MIN_ROWS = 100
"""Of fewer there is nothing to be learned that would hold elsewhere."""


class BadLabels(ValueError):
    """A file that cannot be learned from. The message names the line and what to do."""


class LabelledPrompt(msgspec.Struct, frozen=True):
    """A prompt, how right each model was about it, 0..1, and how sure something was of the small one's answer.

    `score` is what decides at serving, where that is not the prompt: higher is likelier right. `set` is only for
    figures that are told apart; nothing is learned from it.
    """

    prompt: str
    weak: float
    strong: float
    score: float | None = None
    set: str = ""


class _Line(msgspec.Struct):
    prompt: str | None = None
    p: str | None = None
    weak: float | None = None
    w: float | None = None
    strong: float | None = None
    s: float | None = None
    score: float | None = None
    id: str | int | None = None


_DECODE = msgspec.json.Decoder(_Line).decode


def read_labelled(path: Path) -> list[LabelledPrompt]:
    """Each line's prompt: {"prompt", "weak", "strong"}, or "p", "w", "s"; "score" where there is one.

    What stands before a slash in "id" names the set. Raises: BadLabels; OSError.
    """
    data = path.read_bytes()
    if data.startswith(_GZIP):
        try:
            data = gzip.decompress(data)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise BadLabels(f"{path}: the gzip file is damaged or cut off ({error})") from error
    rows = [_row(line, f"{path}:{number}") for number, line in enumerate(data.splitlines(), 1) if line.strip()]
    if len(rows) < _MIN_ROWS:
        raise BadLabels(f"{path}: {len(rows)} labelled prompts are too few to learn from: at least {_MIN_ROWS}")
    return rows


def _row(line: bytes, place: str) -> LabelledPrompt:
    try:
        read = _DECODE(line)
    except NOT_JSON as error:
        raise BadLabels(f"{place}: {error}") from error
    prompt = read.prompt if read.prompt is not None else read.p
    weak = read.weak if read.weak is not None else read.w
    strong = read.strong if read.strong is not None else read.s
    if prompt is None or weak is None or strong is None:
        raise BadLabels(f'{place}: a line has "prompt", a text, and "weak" and "strong", from 0 (wrong) to 1 (right)')
    # NaN is in no range.
    if not (0 <= weak <= 1 and 0 <= strong <= 1):
        raise BadLabels(f'{place}: "weak" and "strong" are from 0 (wrong) to 1 (right), not {weak:g} and {strong:g}')
    group = read.id.partition("/")[0] if isinstance(read.id, str) and "/" in read.id else ""
    return LabelledPrompt(prompt, weak, strong, read.score, group)
