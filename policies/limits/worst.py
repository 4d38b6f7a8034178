"""What a call may come to at most, read off its body before it is sent: what lies or is huge is bounded.

Who reserves asks before the call; what it has really used comes from its answer.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from backends.charges.usage import HOME_ONLY, tier_asked
from backends.operations import Operation

_LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "max_new_tokens", "n_predict")
"""Every name of the most that one choice may have, those of vLLM, TGI and llama.cpp included."""
_CHOICES = ("n", "best_of", "n_cmpl")
"""Every name of how many answers there are; the last is llama.cpp's."""
_SEVERAL_PROMPTS = ("prompt", "prompt_embeds", "messages")
"""Where a list of prompts may stand: those of a completion, beside them vLLM's that are vectors, and chats that it
answers together."""
_SEVERAL = frozenset({*_CHOICES, "prompt", "prompt_embeds"})
_BOUNDS = _SEVERAL.union(_LIMITS)
_MAX_DIGITS = 18
USUAL_MOST_TOKENS = 4096
"""Of an answer whose length the client does not bound."""
_MOST = 10**9
"""More than any answer has: larger numbers count as this one."""
_TRUE = frozenset({"1", "true", "t", "yes", "y", "on"})
_OF_TOKENS = re.compile(
    r"function|custom|namespace|local_shell|apply_patch"
    r"|(?:computer|computer_use_preview|bash|text_editor|memory)(?:_\d{8})?"
    r"|(?P<reads>mcp|mcp_toolset|tool_search\w*|web_fetch(?:_\d{8})?)"
).fullmatch
"""Types of tools of OpenAI and Anthropic that cost no more than tokens: the client runs them, or they only read, which
comes into the prompt. A provider may take money by the use for any other, as for searches and code."""
_REFERENCES = frozenset({"previous_response_id", "conversation", "container", "mcp_servers", "compaction"})
_PROMPTS = ("messages", "input", "system")
_TEXTS = frozenset(
    {
        *("text", "input_text", "output_text", "summary_text", "reasoning_text", "refusal", "message", "reasoning"),
        *("thinking", "redacted_thinking", "tool_use", "tool_result"),
        *("function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output"),
    }
)
"""Kinds of items, and of parts of their content, whose text stands in the body."""
_FURTHER_MODELS = ("models", "fallbacks", "preset")
_OFFERS_OTHERS = frozenset(_FURTHER_MODELS)
SEARCHES = ("web_search_options", "search_parameters", "plugins")
"""Fields that have a provider search, or use its own tools: OpenAI's, xAI's, OpenRouter's."""
_PAID_FIELDS = (
    *SEARCHES,
    *_FURTHER_MODELS,
    *("speed", "inference_geo"),
)
"""Fields of the body that cost more than the tokens of its model: searches; other models, perhaps dearer ones, of
OpenRouter and LiteLLM; Anthropic's haste, and its choice of a place."""
_UNMETERED = frozenset({"background", "tools", "prompt", *_PAID_FIELDS})
_SAY_MORE = frozenset({"service_tier", "context_management"}).union(_BOUNDS, _REFERENCES, _UNMETERED)


class MostOutput(NamedTuple):
    """`tokens` of each choice at most, None where the call does not say; how many choices for each of its `prompts`."""

    tokens: int | None
    choices: int
    prompts: int

    @property
    def total(self) -> int | None:
        """Of all choices together."""
        return None if self.tokens is None else self.tokens * self.choices * self.prompts


_ONE = MostOutput(None, 1, 1)
_NO_OUTPUT = MostOutput(0, 1, 1)
_CHAT, _EMBEDDING = Operation.CHAT, Operation.EMBEDDING
"""A class of an enumeration takes ten times as long to find them."""


def is_plain(body: Mapping[str, Any]) -> bool:
    """Whether it has no field but its prompt that what it may come to depends on: many have none."""
    return _SAY_MORE.isdisjoint(body)


def most_output(body: Mapping[str, Any] | None, operation: Operation) -> MostOutput:
    """What the call may have written at most.

    The largest of its limits counts, for upstreams differ in which one they read; one that cannot be read may mean
    anything. Of `best_of` answers the upstream writes all and returns `n`.
    """
    if operation is _EMBEDDING:
        return _NO_OUTPUT
    if body is None:
        return _ONE
    prompts = _num_prompts(body)
    if _BOUNDS.isdisjoint(body):
        return _ONE if prompts == 1 else MostOutput(None, 1, prompts)
    tokens: int | None = None
    for name in _LIMITS:
        value = body.get(name)
        if value is None:
            continue
        limit = _count(value)
        if limit is None:
            tokens = None
            break
        if tokens is None or limit > tokens:
            tokens = limit
    if _SEVERAL.isdisjoint(body):
        return MostOutput(tokens, 1, prompts)
    choices = 1
    for name in _CHOICES:
        value = body.get(name)
        if value is not None and value != 1:
            choices = max(choices, _count(value) or 1)
    return MostOutput(tokens, choices, prompts)


def refers_elsewhere(body: Mapping[str, Any] | None, operation: Operation) -> bool:
    """Whether a prompt may be longer than its bytes say: earlier answers, files, pictures of however few bytes; one
    that the provider sums up for its model is read twice."""
    if body is None or operation is _EMBEDDING:
        return False
    if not _REFERENCES.isdisjoint(body) and any(body.get(name) is not None for name in _REFERENCES):
        return True
    tools = body.get("tools")
    if type(tools) is list and any(_reads_more(tool) for tool in tools):
        return True
    return _is_summed_up(body.get("context_management")) or is_more_than_text(body)


def is_more_than_text(body: Mapping[str, Any]) -> bool:
    """Whether a prompt has something else than text in it."""
    for name in _PROMPTS:
        if name in body:
            items = body[name]
            if type(items) is list and _has_more_than_text(items):
                return True
    return False


def unmetered_part(body: Mapping[str, Any] | None, operation: Operation) -> str | None:
    """The field of a body that has the call cost what its answer does not tell; None where it has none.

    An answer in the background goes on without us. A provider's own tools are paid by the use, and a prompt that it
    keeps may have any of them.
    """
    if body is None or _UNMETERED.isdisjoint(body):
        return None
    if "background" in body and operation is not _CHAT and _is_true(body["background"]):
        return "background"
    for name in _PAID_FIELDS:
        value = body.get(name)
        if value is not None and not (name == "inference_geo" and _has_a_price(value, body)):
            return name
    if type(body.get("prompt")) is dict:
        return "prompt"
    tools = body.get("tools")
    for tool in tools if type(tools) is list else ():
        if (kind := kind_of_provider(tool)) is not None:
            return f"tools: {kind[:64]}"
    return None


def kind_of_provider(tool: object) -> str | None:
    """The type of a tool that a provider runs itself and may take money for by the use; None of any other."""
    if type(tool) is not dict:
        return None
    kind = tool.get("type")
    if kind == "function":
        return None
    if kind is None and "name" not in tool and "function" not in tool:
        # Gemini names its own ones so.
        kind = next(iter(tool), "")
    return kind if type(kind) is str and _OF_TOKENS(kind) is None else None


def may_be_answered_by_another(body: Mapping[str, Any] | None) -> bool:
    """Whether a body names further models, one of which its upstream may ask in place of the first."""
    return body is not None and not _OFFERS_OTHERS.isdisjoint(body)


def _reads_more(tool: object) -> bool:
    """Whether a tool may bring more into the prompt while it is answered."""
    kind = tool.get("type") if type(tool) is dict else None
    if type(kind) is not str or kind == "function":
        return False
    found = _OF_TOKENS(kind)
    return found is not None and found["reads"] is not None


def _num_prompts(body: Mapping[str, Any]) -> int:
    num_prompts = 0
    for name in _SEVERAL_PROMPTS:
        prompts = body.get(name)
        if type(prompts) is list and prompts and isinstance(prompts[0], str | list):
            num_prompts += len(prompts)
    return num_prompts or 1


def _has_a_price(place: object, body: Mapping[str, Any]) -> bool:
    """Whether it is known what it costs to be answered there: everywhere, or in the one place as a tier of its own."""
    return place == "global" or (place == HOME_ONLY and tier_asked(body) == HOME_ONLY)


def _is_summed_up(management: object) -> bool:
    """As Anthropic and OpenAI are asked for it at a length of the prompt; other edits only leave parts of it out."""
    edits = management.get("edits") if type(management) is dict else management
    return type(edits) is list and any(
        type(edit) is dict and str(edit.get("type")).startswith("compact") for edit in edits
    )


def _has_more_than_text(items: list[Any]) -> bool:
    for item in items:
        if type(item) is list and _has_more_than_text(item):
            return True
        if type(item) is not dict:
            continue
        if len(item) == 2 and "role" in item and type(item.get("content")) is str:
            # Most messages are no more than that.
            continue
        kind = item.get("type")
        if kind is None:
            # What has no type is a message, or the bare id of an earlier item; a message may have an earlier sound.
            if "role" not in item or item.get("audio") is not None:
                return True
        elif type(kind) is not str or kind not in _TEXTS:
            return True
        for name in ("content", "output"):
            content = item.get(name)
            if type(content) is dict or (type(content) is list and _has_more_than_text(content)):
                return True
    return False


def _is_true(value: object) -> bool:
    """As the laxest upstream reads a flag. An image has a `background` too, of another kind."""
    return value.strip().lower() in _TRUE if type(value) is str else bool(value)


def _count(value: object) -> int | None:
    """A number of tokens or answers as the laxest upstream may read it; None for what means no bound, or anything."""
    if type(value) is int and 0 <= value <= _MOST:
        return value
    if type(value) is str:
        text = value.strip().removeprefix("+")
        if not (text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS):
            return None
        value = int(text)
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        value = math.ceil(value)
    if not isinstance(value, int) or value < 0:
        return None
    return min(int(value), _MOST)
