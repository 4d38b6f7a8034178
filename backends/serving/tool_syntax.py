"""How models write tool calls, and a parser that takes them out of a text as it arrives.

Three spellings are known, told apart by how the model's chat template writes a call:

    hermes    <tool_call>{"name": ..., "arguments": {...}}</tool_call>, any number, text before them (Hermes, Qwen)
    mistral   [TOOL_CALLS][{"name": ..., "arguments": {...}}, ...] or [TOOL_CALLS]name[ARGS]{...}
    llama     {"name": ..., "parameters": {...}}; {...}, the whole answer, perhaps after <|python_tag|> (Llama 3.1)

No part of a tag is ever shown as text. What looks like a call and is none comes out as the text that it is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

_NAMED_CALL = re.compile(r"\s*(?:\[TOOL_CALLS\])?\s*([\w.-]+)\s*(?:\[CALL_ID\]\w+)?\s*(?:\[ARGS\])?\s*(?=\{)")
_CUT_CALL = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"arguments"\s*:\s*(.*)', re.DOTALL)
_BETWEEN = re.compile(r"[\s;,]*")


class FunctionCall(NamedTuple):
    """One call: `arguments` is JSON as text."""

    name: str
    arguments: str


class ParsedText(NamedTuple):
    """What came out of a text: text that can be shown, and calls that are whole."""

    text: str
    calls: tuple[FunctionCall, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolSyntax:
    """One spelling. `end` empty: calls reach to the end of the answer. `bare`: how calls begin without a tag."""

    start: str
    end: str = ""
    bare: str = ""
    id_length: int = 0
    """Characters of a call's id that the template accepts; 0 for any number."""


HERMES = ToolSyntax("<tool_call>", "</tool_call>")
MISTRAL = ToolSyntax("[TOOL_CALLS]", bare='[{"name"', id_length=9)
LLAMA = ToolSyntax("<|python_tag|>", bare="{")


SAMPLE_TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {"name": "look_up", "description": "Looks a word up.", "parameters": {"type": "object"}},
    }
]
SAMPLE_CHAT: list[dict[str, Any]] = [
    {"role": "user", "content": "Hello"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"id": "call12345", "type": "function", "function": {"name": "look_up", "arguments": {"word": "draft"}}}
        ],
    },
]
"""A chat with a call in it: how a template writes that is how its model was taught to call."""
_BARE_CALL = re.compile(r'\{"name":\s*"look_up",\s*"parameters":')


def syntax_of(rendered: str) -> ToolSyntax | None:
    """The spelling in which a chat template wrote the sample chat; None if it knows no tools."""
    if "look_up" not in rendered:
        return None
    if HERMES.start in rendered:
        return HERMES
    if MISTRAL.start in rendered:
        return MISTRAL
    return LLAMA if _BARE_CALL.search(rendered) is not None else None


class ToolParser:
    """Takes the calls out of one answer. `feed` each text as it comes, then `finish` once."""

    def __init__(self, syntax: ToolSyntax) -> None:
        self._syntax = syntax
        self._held = ""
        self._opening: str | None = None
        self._is_blank = True
        self._has_called = False

    def feed(self, text: str) -> ParsedText:
        """What this text completes."""
        self._held += text
        texts: list[str] = []
        calls: list[FunctionCall] = []
        while self._opening is not None or self._open(texts):
            end = self._syntax.end
            block, closing, rest = self._held.partition(end) if end else (self._held, "", "")
            if not closing:
                break
            self._close(block, closing, texts, calls)
            self._held = rest
        return ParsedText("".join(texts), tuple(calls))

    def finish(self) -> ParsedText:
        """What is left at the end of the answer; a call without its closing tag counts if it is whole."""
        texts: list[str] = []
        calls: list[FunctionCall] = []
        block, self._held = self._held, ""
        if self._opening is not None:
            self._close(block, "", texts, calls)
        elif block.strip() or not self._has_called:
            texts.append(block)
        return ParsedText("".join(texts), tuple(calls))

    def _open(self, texts: list[str]) -> bool:
        """Look for the beginning of a call; text before it goes out. False where none has begun."""
        held, syntax = self._held, self._syntax
        if self._is_blank and syntax.bare:
            begun = held.lstrip()
            if begun.startswith(syntax.bare):
                self._opening, self._is_blank = "", False
                return True
            if syntax.bare.startswith(begun):
                return False
        before, tag, after = held.partition(syntax.start)
        if tag:
            self._show(before.rstrip(), texts)
            self._opening, self._held, self._is_blank = tag, after, False
            return True
        end = _shown_until(held, syntax.start)
        self._show(held[:end], texts)
        self._held = held[end:]
        return False

    def _close(self, block: str, closing: str, texts: list[str], calls: list[FunctionCall]) -> None:
        found = parse_calls(block)
        if found is not None:
            calls.extend(found)
            self._has_called = True
        else:
            texts.append(f"{self._opening}{block}{closing}")
        self._opening = None

    def _show(self, text: str, texts: list[str]) -> None:
        if text:
            texts.append(text)
            self._is_blank = self._is_blank and text.isspace()


class ForcedCall:
    """An answer that is one call and nothing else, because a grammar made it so; the parser for it.

    With `name` the answer is that function's arguments, however far they got; without, it names its function itself.
    """

    def __init__(self, name: str | None) -> None:
        self._name = name
        self._held: list[str] = []

    def feed(self, text: str) -> ParsedText:
        """Nothing: a call is shown when it is whole."""
        self._held.append(text)
        return ParsedText("")

    def finish(self) -> ParsedText:
        """The call."""
        text = "".join(self._held)
        if self._name is not None:
            return ParsedText("", (FunctionCall(self._name, text),))
        calls = parse_calls(text)
        if calls is not None:
            return ParsedText("", tuple(calls))
        # The answer ended at its limit: the call as far as it got, as for a function that is named.
        cut = _CUT_CALL.match(text)
        return ParsedText(text) if cut is None else ParsedText("", (FunctionCall(json.loads(cut[1]), cut[2]),))


def forced_schema(functions: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The JSON schema of a call of one of these functions; the values are the schemas of their arguments."""
    return {
        "anyOf": [
            {
                "type": "object",
                # With an id of its own a schema is the root of its references: none lead to another function's.
                "properties": {"name": {"const": name}, "arguments": {**parameters, "$id": f"urn:function:{number}"}},
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
            for number, (name, parameters) in enumerate(functions.items())
        ]
    }


def parse_calls(block: str) -> list[FunctionCall] | None:
    """The calls that a block consists of; None where it is something else."""
    try:
        calls = list(_calls(block))
    except (ValueError, RecursionError):
        return None
    return calls or None


def _calls(block: str) -> Iterator[FunctionCall]:
    """Each call of a block. Raises: ValueError at whatever is none."""
    decoder = json.JSONDecoder(strict=False)
    at = _skip(block, 0)
    while at < len(block):
        named = _NAMED_CALL.match(block, at)
        if named is not None:
            arguments, at = decoder.raw_decode(block, named.end())
            yield _call({"name": named[1], "arguments": arguments})
        else:
            value, at = decoder.raw_decode(block, at)
            for item in value if isinstance(value, list) else [value]:
                yield _call(item)
        at = _skip(block, at)


def _skip(block: str, at: int) -> int:
    between = _BETWEEN.match(block, at)
    return between.end() if between is not None else at


def _call(value: Any) -> FunctionCall:
    name = value.get("name") if isinstance(value, dict) else None
    if not isinstance(name, str) or not name:
        raise ValueError("a call has a name")
    arguments = value.get("arguments", value.get("parameters", {}))
    if not isinstance(arguments, dict | str):
        raise ValueError("arguments are an object")
    if isinstance(arguments, dict):
        # Half of a surrogate pair can be written as an escape only.
        arguments = json.dumps(arguments, ensure_ascii=False).encode("utf-8", "backslashreplace").decode("utf-8")
    # Anywhere else it is no text, which raises a ValueError.
    (name + arguments).encode("utf-8")
    return FunctionCall(name, arguments)


def _shown_until(text: str, tag: str) -> int:
    """Where the end of a text might be the beginning of a tag, or the white space before one."""
    end = len(text)
    for size in range(min(len(tag) - 1, end), 0, -1):
        if text.endswith(tag[:size]):
            end -= size
            break
    return len(text[:end].rstrip())
