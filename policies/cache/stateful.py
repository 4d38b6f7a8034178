"""Which calls are more than an answer: it depends on more than the call says, or is not all that comes of the call.

No answer of theirs stands in for another.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from backends.operations import Operation
from backends.protocol import Call

_FIELDS = ("background", "conversation")
"""Fields of a responses call whose answer is computed later, or depends on what an upstream keeps and changes."""


def is_stateful(call: Call) -> bool:
    """Whether the answer to a call with a decoded body may be given to no other."""
    body = call.body or {}
    if acts(body):
        return True
    # A stored prompt may be changed where it is kept, and has tools that are not seen here.
    has_stored_prompt = isinstance(body.get("prompt"), Mapping)
    return call.operation is Operation.RESPONSES and (has_stored_prompt or any(body.get(name) for name in _FIELDS))


def acts(body: Mapping[str, Any]) -> bool:
    """Whether the upstream may use a tool to do something elsewhere: at a server of the client's, or in a place that
    outlives the call.
    """
    tools = body.get("tools")
    return bool(body.get("mcp_servers")) or (isinstance(tools, list) and any(map(_acts_elsewhere, tools)))


def _acts_elsewhere(tool: object) -> bool:
    if not isinstance(tool, dict):
        return False
    environment = tool.get("environment")
    return (
        tool.get("type") == "mcp"
        or isinstance(tool.get("container"), str)
        or (isinstance(environment, dict) and environment.get("container_id") is not None)
    )
