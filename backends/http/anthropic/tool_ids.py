"""The ids of tool calls as the Messages API takes them: of letters, digits, `_` and `-`, and each only once.

Other servers are not so strict: some number each answer's calls anew (`functions.weather:0`), some give them no id.
A conversation that has begun there can go on here.
"""

from __future__ import annotations

import hashlib
import re
from collections import deque

_TAKEN_THERE = re.compile(r"[a-zA-Z0-9_-]+")
_NUM_DIGITS = 24


class ToolIds:
    """The ids of one conversation, asked for in its order.

    An id that can stay stays. What another becomes depends on nothing but the conversation up to it, so it is the same
    when the conversation goes on, and the prompt cache finds it.
    """

    __slots__ = ("_given", "_has_results", "_last", "_open")

    def __init__(self) -> None:
        self._given: set[str] = set()
        self._last: dict[str, str] = {}
        self._open: dict[str, deque[str]] = {}
        """Of each id the calls of the last turn that have no result so far."""
        self._has_results = False

    def of_call(self, id: str) -> str:
        """The id of a call that an assistant has made."""
        if self._has_results:
            self._open.clear()
            self._has_results = False
        given = self._fitting(id)
        self._given.add(given)
        self._last[id] = given
        self._open.setdefault(id, deque()).append(given)
        return given

    def of_result(self, id: str) -> str:
        """The id of the call that a result is for: of several with one id they come in the order of the calls."""
        self._has_results = True
        if waiting := self._open.get(id):
            return waiting.popleft()
        return self._last.get(id) or self._fitting(id)

    def _fitting(self, id: str) -> str:
        given, number = id, 0
        while given in self._given or _TAKEN_THERE.fullmatch(given) is None:
            number += 1
            digest = hashlib.sha256(f"{number} {id}".encode("utf-8", "surrogatepass"))
            given = f"call_{digest.hexdigest()[:_NUM_DIGITS]}"
        return given
