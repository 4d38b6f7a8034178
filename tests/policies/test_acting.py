"""Which calls do more than answer, by what they ask for."""

from __future__ import annotations

from typing import Any

import pytest

from backends.operations import Metering, Operation, Terms
from policies.acting import acts, only_answers
from tests.support.calls import make_call

CHAT, RESPONSES = Operation.CHAT, Operation.RESPONSES
NAMED, OPEN = {"container_id": "cntr_1"}, {"network_policy": {"type": "allowlist", "allowed_domains": ["x.example"]}}
CLOSED = {"type": "auto", "network_policy": {"type": "disabled"}}


def tool(kind: str, **more: Any) -> dict[str, Any]:
    """A call's fields with one tool of that type."""
    return {"tools": [{"type": "function", "name": "f"}, {"type": kind, **more}]}


@pytest.mark.parametrize(
    ("operation", "extra"),
    [
        (RESPONSES, {"background": True}),
        (RESPONSES, {"conversation": "conv_1"}),
        (RESPONSES, {"conversation": {"id": "conv_1"}}),
        (RESPONSES, {"prompt": {"id": "pmpt_1"}}),
        (RESPONSES, tool("mcp", server_url="https://x.example")),
        (RESPONSES, tool("mcp_toolset", mcp_server_name="x")),
        (RESPONSES, tool("code_interpreter", container="cntr_1")),
        (RESPONSES, tool("code_interpreter", container={"type": "auto", **OPEN})),
        (RESPONSES, tool("shell", environment={"type": "container_reference", **NAMED})),
        (RESPONSES, tool("shell", environment={"type": "container_auto", **OPEN})),
        (CHAT, tool("mcp")),
        (CHAT, tool("openrouter:shell")),
        (CHAT, tool("of_tomorrow")),
        (CHAT, {"tools": [{"of_gemini": {}}]}),
        (CHAT, {"mcp_servers": [{"url": "https://x.example"}]}),
        (CHAT, {"container": "cntr_1", **tool("code_execution_20250825")}),
    ],
)
def test_call_that_acts(operation: Operation, extra: dict[str, Any]) -> None:
    """It begins a job, adds to a conversation, works at a server of the client's or in a place that stays, or nobody
    here knows what it does.
    """
    call = make_call(operation=operation, extra=extra)

    assert acts(call)
    assert not only_answers(call)


@pytest.mark.parametrize(
    "extra",
    [
        tool("web_search"),
        tool("web_search_preview_2025_03_11"),
        tool("openrouter:web_search"),
        tool("web_fetch_20250910") | {"store": True},
        tool("file_search", vector_store_ids=["vs_1"]),
        tool("code_interpreter", container=CLOSED),
        tool("code_interpreter", container={"type": "auto"}),
        tool("code_execution_20250825"),
        tool("shell", environment={"type": "local"}),
        tool("image_generation"),
        {"web_search_options": {}},
        {"search_parameters": {"mode": "auto"}},
        {"plugins": [{"id": "web"}]},
        {"store": True},
    ],
)
def test_call_that_reads_or_keeps_does_nothing_twice_but_costs(extra: dict[str, Any]) -> None:
    """After a failure it may be sent again; not without need."""
    for operation in (CHAT, RESPONSES):
        call = make_call(operation=operation, extra=extra)
        assert not acts(call)
        assert not only_answers(call)


@pytest.mark.parametrize(
    "extra",
    [
        {},
        {"tools": [], "store": False, "mcp_servers": [], "container": None},
        {"tools": None},
        {"tools": "mcp"},
        {"tools": [None, 7, {"type": 7}]},
        {"tools": [{"type": "function", "function": {"name": "mcp"}}, {"name": "x", "input_schema": {}}]},
        tool("custom"),
        tool("namespace"),
        tool("local_shell"),
        tool("text_editor_20250728"),
        {"background": True},
        {"conversation": "of a chat"},
        {"models": ["another"]},
    ],
)
def test_chat_that_only_answers(extra: dict[str, Any]) -> None:
    """Its tools are run by the client; what is no field of a chat means nothing there."""
    call = make_call(extra=extra)

    assert only_answers(call)
    assert not acts(call)


def test_operations_that_only_answer() -> None:
    """Texts and vectors; responses are kept, and what passes through may do anything unless it only reads."""
    able = {each for each in Operation if only_answers(make_call(operation=each))}

    assert able == {Operation.CHAT, Operation.COMPLETION, Operation.EMBEDDING}
    assert [acts(make_call(operation=Operation.PASSTHROUGH, method=name)) for name in ("POST", "DELETE", "GET")] == [
        True,
        True,
        False,
    ]
    assert not acts(make_call(operation=Operation.RESPONSES, body=None))


def test_text_that_passes_through_acts_by_its_tools() -> None:
    """`/messages` is read that far; what is charged in another way, or cannot be read, may do anything."""

    def passing(terms: Terms, **fields: Any) -> bool:
        return acts(make_call(operation=Operation.PASSTHROUGH, terms=terms, **fields))

    text, other = Terms(Metering.METERED, writes_text=True), Terms(Metering.UNMETERED)
    assert not passing(text)
    assert not passing(text, extra=tool("web_search_20250305") | tool("bash_20250124"))
    assert passing(text, extra=tool("mcp_toolset", mcp_server_name="x"))
    assert passing(text, extra={"container": "container_1", **tool("code_execution_20250825")})
    assert passing(text, body=None)
    assert passing(other)
