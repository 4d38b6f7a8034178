"""What a call costs that only passes through: what its answer tells, nothing, or nobody knows before."""

from __future__ import annotations

import re
from collections.abc import Iterable

from backends.operations import Metering, Terms

_WRITE_TEXT = ("/messages", "/responses/compact", "/chat/completions/batch")
"""The last is vLLM's: chats of one call, answered together."""
_READ_TEXT = ("/rerank", "/score", "/classify", "/pooling")
"""Their answers tell what they used, and if not it can be estimated from what was sent: it is text."""
_LOOKS_OVER = "/moderations"
"""Who takes money for it tells what it used."""

_FREE = (
    # They count, and have no model write.
    *("/messages/count_tokens", "/responses/input_tokens", "/tokenize", "/detokenize"),
    # They keep what is sent, or change what is kept; what a model makes of it later is a call of its own.
    *("/files", "/uploads", "/uploads/*/parts", "/uploads/*/complete", "/uploads/*/cancel"),
    *("/conversations", "/conversations/*", "/conversations/*/items", "/chat/completions/chatcmpl*"),
    *("/assistants", "/assistants/*", "/threads", "/threads/*", "/threads/*/messages", "/threads/*/messages/*"),
)
"""POST to these costs nothing. What is kept for money, and what starts jobs or sessions, is not among them."""
_ENDS = (
    *("/responses/*/cancel", "/batches/*/cancel", "/fine_tuning/jobs/*/cancel", "/fine_tuning/jobs/*/pause"),
    "/threads/*/runs/*/cancel",
)
"""Nor does it to these, which end what goes on."""

_STARTS_A_RUN = "/threads/runs"
"""No thread of that name."""
_READS = frozenset({"GET", "HEAD"})


def terms_of(method: str, path: str, *, is_known: bool) -> Terms:
    """How a call is charged that has no price of its own. `path` is as `plainest` has it.

    `is_known`: its root is one of the API's. Elsewhere a GET may have a model work.

    A model that writes sound or pictures may tell what it used, and may not: before the call nobody knows.
    """
    if method == "DELETE" or (method in _READS and is_known):
        return _READING
    if method == "POST":
        if path in _WRITE_TEXT:
            return _WRITTEN
        if path in _READ_TEXT:
            return _READ
        if path == _LOOKS_OVER:
            return _LOOKED_OVER
        if _ends(path):
            return _READING
        if path != _STARTS_A_RUN and _is_free(path):
            return _NOTHING
    return _UNKNOWN


def _any_of(paths: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(re.escape(path).replace(r"\*", "[^/]+") for path in paths))


_is_free = _any_of(_FREE).fullmatch
_ends = _any_of(_ENDS).fullmatch
_WRITTEN = Terms(Metering.METERED, writes_text=True)
_READ = Terms(Metering.METERED)
_LOOKED_OVER = Terms(Metering.METERED, is_free_untold=True)
_NOTHING = Terms(Metering.FREE)
_READING = Terms(Metering.FREE, is_reading=True)
_UNKNOWN = Terms(Metering.UNMETERED)
