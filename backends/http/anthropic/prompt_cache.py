"""Tells the Messages API what of a request to keep in its prompt cache, as documented at
https://platform.claude.com/docs/en/build-with-claude/prompt-caching. Called by `anthropic_request`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_MARK = {"type": "ephemeral"}


def mark_for_cache(request: dict[str, Any]) -> None:
    """Put `cache_control` at the end of the tools, of the system text and of the messages, unless the client has put
    one anywhere.

    These are three of the four places that the API takes, in the order in which it reads: when the conversation goes
    on, all of it is found again; with another conversation, the tools and the system text are.
    """
    if "cache_control" in request or any("cache_control" in block for block in _blocks(request)):
        return
    for part in (request.get("tools"), request.get("system"), request["messages"][-1]["content"]):
        if part:
            part[-1]["cache_control"] = _MARK


def _blocks(request: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Everything that may carry a mark."""
    yield from request.get("tools", ())
    yield from request.get("system", ())
    for turn in request["messages"]:
        for block in turn["content"]:
            yield block
            yield from block.get("content", ())
