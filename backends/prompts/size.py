"""About how many tokens a request's prompt has, by the size of its body: before any tokenizer is asked."""

from __future__ import annotations

from backends.prompts.text import BYTES_PER_TOKEN

_LOOKED_FOR_MEDIA_BYTES = 16 * 1024
_MEDIA_FROM_BYTES = 4 * 1024
_MEDIA_TOKENS = 1000
"""About what OpenAI and Anthropic count for a picture (their guides on vision)."""
_MOST_MARKS = 1000
"""Looked at of each kind, so that a body of nothing else holds nobody up."""
_MEDIA_MARKS = (b";base64,", b'"data":"', b'"data": "')


def tokens_of_body(raw: bytes) -> int:
    """Pictures, sound and files inside of it are not text: each counts as so many tokens whatever its size."""
    if len(raw) <= _LOOKED_FOR_MEDIA_BYTES:
        return len(raw) // BYTES_PER_TOKEN
    num_media, media_bytes = _media(raw)
    return (len(raw) - media_bytes) // BYTES_PER_TOKEN + num_media * _MEDIA_TOKENS


def _media(raw: bytes) -> tuple[int, int]:
    """How many strings of base64 there are, and their bytes: what follows such a mark up to the end of its string."""
    number = num_bytes = 0
    for mark in _MEDIA_MARKS:
        end = 0
        for _ in range(_MOST_MARKS):
            at = raw.find(mark, end)
            if at < 0:
                break
            begin = at + len(mark)
            end = raw.find(b'"', begin)
            if end < 0:
                break
            if end - begin > _MEDIA_FROM_BYTES:
                number += 1
                num_bytes += end - begin
    return number, num_bytes
