"""A choice of the older completions in both forms: whole, and as the pieces of a stream."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from policies.cache.replay.merge import CannotConvert, MergedObject, object_of

_TEXTS = frozenset({"text"})
_LOGPROB_LISTS = frozenset({"tokens", "token_logprobs", "top_logprobs", "text_offset"})
_CHOICE_FIELDS = frozenset({"index", "text", "logprobs", "finish_reason"})


def split_choice(choice: dict[str, Any], index: int) -> Iterator[dict[str, Any]]:
    """The choice as the choices of two successive chunks: the text, then the finish reason.

    Raises: CannotConvert.
    """
    if choice.get("finish_reason") is None or not isinstance(choice.get("text"), str):
        raise CannotConvert
    yield {"index": index, "text": choice["text"], "logprobs": choice.get("logprobs"), "finish_reason": None}
    rest = {name: value for name, value in choice.items() if name not in _CHOICE_FIELDS}
    yield {"index": index, "text": "", "logprobs": None, "finish_reason": choice["finish_reason"], **rest}


class CompletionChoice:
    """One choice of a stream while its chunks come in."""

    __slots__ = ("_finish_reason", "_index", "_logprobs", "_parts")

    def __init__(self, index: int) -> None:
        self._index = index
        self._parts = MergedObject(texts=_TEXTS)
        self._logprobs = MergedObject(lists=_LOGPROB_LISTS)
        self._finish_reason: str | None = None

    def add(self, choice: dict[str, Any]) -> None:
        """Take in this choice's share of one chunk.

        Raises: CannotConvert.
        """
        for name, value in choice.items():
            if name == "text" or name not in _CHOICE_FIELDS:
                self._parts.put(name, value)
        if choice.get("logprobs") is not None:
            self._logprobs.add(object_of(choice["logprobs"]))
        self._finish_reason = choice.get("finish_reason") or self._finish_reason

    def whole(self) -> dict[str, Any]:
        """The choice with its text.

        Raises: CannotConvert where it never finished.
        """
        if self._finish_reason is None:
            raise CannotConvert
        return {
            "text": "",
            **self._parts.whole(),
            "index": self._index,
            "logprobs": self._logprobs.whole() or None,
            "finish_reason": self._finish_reason,
        }
