"""Which calls do more than answer: what is sent twice is done twice, and no answer of theirs stands in for another.

Whoever may send a call a second time asks here, and so do the caches.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from backends.operations import Metering, Operation
from backends.protocol import Call
from policies.limits.worst import SEARCHES, kind_of_provider

_OF_RESPONSES = ("background", "conversation")
"""Fields of a responses call that begin a job, or add to what an upstream keeps."""
_PLACES = ("container", "environment")
_MAY_ACT = frozenset({"tools", "mcp_servers", "container", "prompt", *_OF_RESPONSES})
_MAY_DO_MORE = frozenset({"store", *SEARCHES}) | _MAY_ACT
_ONLY_ANSWERS = re.compile(
    r".*search.*|(?:web_fetch|code_execution)(?:_\d{8})?|url_context|code_interpreter|shell|image_generation"
).fullmatch
"""Types of tools of providers by which nothing changes: they read, or work in a place of the call's own. What others do
is not known."""


def acts(call: Call) -> bool:
    """Whether an upstream may do something for the call that happens elsewhere or outlives the answer.

    It is not sent again once somebody may have begun with it.
    """
    body = call.body
    if call.operation is Operation.PASSTHROUGH and not _is_text(call):
        return call.method not in ("GET", "HEAD")
    if body is None or _MAY_ACT.isdisjoint(body):
        return False
    if body.get("mcp_servers") or body.get("container") or any(map(_tool_acts, _tools(body))):
        return True
    # A stored prompt may be changed where it is kept, and has tools that are not seen here.
    has_stored_prompt = isinstance(body.get("prompt"), Mapping)
    return call.operation is Operation.RESPONSES and (
        has_stored_prompt or any(body.get(name) for name in _OF_RESPONSES)
    )


def only_answers(call: Call) -> bool:
    """Whether the answer is all that comes of a call, and its tokens all that it costs: nothing is kept of it, and no
    tools of its provider are used. Only then it is sent a second time without need.
    """
    if not call.operation.traits.is_repeatable:
        return False
    body = call.body
    if body is None or _MAY_DO_MORE.isdisjoint(body):
        return True
    has_more = body.get("store") or any(body.get(name) is not None for name in SEARCHES)
    return not (has_more or any(map(kind_of_provider, _tools(body))) or acts(call))


def _is_text(call: Call) -> bool:
    """Whether it passes through to a model that reads or writes text, as `/messages` does."""
    return call.body is not None and call.terms is not None and call.terms.metering is Metering.METERED


def _tools(body: Mapping[str, Any]) -> list[Any]:
    tools = body.get("tools")
    return tools if isinstance(tools, list) else []


def _tool_acts(tool: object) -> bool:
    """Whether it works at a server of the client's, in a place that outlives the call, or in one with a network; or in
    a way that is not known.
    """
    if not isinstance(tool, dict) or tool.get("type") == "function":
        return False
    if tool.get("type") in ("mcp", "mcp_toolset") or any(_is_open(tool.get(name)) for name in _PLACES):
        return True
    kind = kind_of_provider(tool)
    return kind is not None and _ONLY_ANSWERS(kind) is None


def _is_open(place: object) -> bool:
    if not isinstance(place, Mapping):
        return isinstance(place, str)
    network = place.get("network_policy")
    is_reached = isinstance(network, Mapping) and network.get("type") != "disabled"
    return place.get("container_id") is not None or is_reached
