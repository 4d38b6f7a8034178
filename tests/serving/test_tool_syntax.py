"""Tool calls in a model's text: found in every spelling, however the text is cut, and never half shown."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.serving.tool_syntax import (
    HERMES,
    LLAMA,
    MISTRAL,
    ForcedCall,
    FunctionCall,
    ToolParser,
    ToolSyntax,
    forced_schema,
    parse_calls,
    syntax_of,
)

WEATHER = FunctionCall("weather", '{"city": "Oslo"}')
TIME = FunctionCall("time", "{}")

CASES = {
    "hermes": (HERMES, '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>', "", [WEATHER]),
    "hermes-text-before": (
        HERMES,
        'I look.\n\n<tool_call>{"name": "weather", "arguments": {"city": "Oslo"}}</tool_call>',
        "I look.",
        [WEATHER],
    ),
    "hermes-two": (
        HERMES,
        '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "time", "arguments": {}}\n</tool_call>\n',
        "",
        [WEATHER, TIME],
    ),
    "hermes-no-closing-tag": (HERMES, '<tool_call>{"name": "time", "arguments": {}}', "", [TIME]),
    "hermes-no-json": (HERMES, "a <tool_call>sorry</tool_call> b", "a<tool_call>sorry</tool_call> b", []),
    "hermes-cut": (HERMES, '<tool_call>{"name": "ti', '<tool_call>{"name": "ti', []),
    "hermes-nearly-a-tag": (HERMES, "1 < 2 and <tool> \n", "1 < 2 and <tool> \n", []),
    "llama": (LLAMA, '{"name": "weather", "parameters": {"city": "Oslo"}}', "", [WEATHER]),
    "llama-tag": (LLAMA, '<|python_tag|>{"name": "time", "parameters": {}}', "", [TIME]),
    "llama-two": (
        LLAMA,
        '{"name": "weather", "parameters": {"city": "Oslo"}}; {"name": "time", "parameters": {}}',
        "",
        [WEATHER, TIME],
    ),
    "llama-json-answer": (LLAMA, ' {"answer": 42} ', ' {"answer": 42} ', []),
    "mistral": (MISTRAL, '[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Oslo"}}]', "", [WEATHER]),
    "mistral-without-tag": (MISTRAL, '[{"name": "time", "arguments": {}}]', "", [TIME]),
    "mistral-two": (
        MISTRAL,
        '[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Oslo"}}, {"name": "time", "arguments": {}}]',
        "",
        [WEATHER, TIME],
    ),
    "mistral-args": (
        MISTRAL,
        'Well.[TOOL_CALLS]weather[ARGS]{"city": "Oslo"}[TOOL_CALLS]time[ARGS]{}',
        "Well.",
        [WEATHER, TIME],
    ),
    "text": (HERMES, " just words ", " just words ", []),
    "empty": (LLAMA, "", "", []),
}


def parse(syntax: ToolSyntax, pieces: list[str]) -> tuple[str, list[FunctionCall], list[str]]:
    """What comes out of a text that arrives in pieces: the text shown, the calls, and each text as it was shown."""
    parser = ToolParser(syntax)
    found = [*(parser.feed(piece) for piece in pieces), parser.finish()]
    texts = [piece.text for piece in found if piece.text]
    return "".join(texts), [call for piece in found for call in piece.calls], texts


@pytest.mark.parametrize("case", CASES, ids=str)
def test_parser_whole_text_gives_text_and_calls(case: str) -> None:
    """Each spelling is understood, and what is no call stays the text that it is."""
    syntax, text, shown, calls = CASES[case]

    assert parse(syntax, [text])[:2] == (shown, calls)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_parser_character_by_character_gives_the_same(case: str) -> None:
    """How the text is cut makes no difference, and no part of a tag that opened a call was shown on the way."""
    syntax, text, shown, calls = CASES[case]

    streamed, found, texts = parse(syntax, list(text))

    assert (streamed, found) == (shown, calls)
    if calls:
        assert not any(part in "".join(texts) for part in ("<", "[", "{"))


@given(
    st.sampled_from([HERMES, LLAMA, MISTRAL]),
    st.lists(
        st.sampled_from(
            [
                "<tool_call>",
                "</tool_call>",
                '{"name": "f", "arguments": {"a": 1}}',
                "[TOOL_CALLS]",
                "<tool",
                "<|python_tag|>",
                " ",
                "\n",
                "word",
                "<",
                "[",
                "{",
                '[{"name"',
                "f[ARGS]{}",
                ";",
            ]
        ),
        max_size=12,
    ),
    st.lists(st.integers(0, 200), max_size=8),
)
def test_parser_any_text_cut_anywhere_gives_the_same(syntax: ToolSyntax, parts: list[str], cuts: list[int]) -> None:
    """Whatever a model writes, streaming it shows what the whole text shows."""
    text = "".join(parts)
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    pieces = [text[begin:end] for begin, end in itertools.pairwise(places)]

    assert parse(syntax, pieces)[:2] == parse(syntax, [text])[:2]


@given(st.text(max_size=40).filter(lambda text: not text.lstrip().startswith("{") and "<" not in text))
def test_parser_text_without_tags_is_untouched(text: str) -> None:
    """A text without any tag comes out as it went in."""
    assert parse(HERMES, list(text))[:2] == (text, [])


def test_parser_shows_text_as_soon_as_it_can_be_no_tag() -> None:
    """Words are not held back for tags that have not begun."""
    parser = ToolParser(HERMES)

    assert [parser.feed(piece).text for piece in ("Hel", "lo <to", "ad>", " x")] == ["Hel", "lo", " <toad>", " x"]


def test_forced_call_by_name_takes_the_answer_as_arguments() -> None:
    """Where a grammar made the answer a function's arguments, however far they got, that is what they are."""
    parser = ForcedCall("weather")

    assert parser.feed('{"city": ').calls == ()
    parser.feed('"Os')
    assert parser.finish().calls == (FunctionCall("weather", '{"city": "Os'),)


def test_forced_call_without_a_name_reads_it_from_the_answer() -> None:
    """Where any tool may be called, the answer names it; half of one is text."""
    whole, half = ForcedCall(None), ForcedCall(None)
    whole.feed('{"name":"time","arguments":{}}')
    half.feed('{"name":"ti')

    assert (whole.finish().calls, half.finish().text) == ((TIME,), '{"name":"ti')


def test_forced_call_cut_in_its_arguments_is_a_call() -> None:
    """As for a function that is named: the arguments as far as they got."""
    cut = ForcedCall(None)
    cut.feed('{"name": "weather", "arguments": {"city": "Os')

    assert cut.finish().calls == (FunctionCall("weather", '{"city": "Os'),)


def test_forced_schema_keeps_the_references_of_each_function_within_its_arguments(tmp_path: Path) -> None:
    """Functions name definitions alike, write them as older drafts do, point anywhere below, and at themselves."""
    pytest.importorskip("llguidance")
    from backends.engine.choosing.grammar import GrammarFactory
    from backends.engine.text.tokenizer import Tokenizer
    from tests.support.engine.tiny_tokenizers import byte_level, save

    zone, again = {"$ref": "#/$defs/zone"}, {"anyOf": [{"$ref": "#"}, {"type": "null"}]}
    now = {"type": "object", "properties": {"zone": zone, "again": again}, "required": ["zone"]}
    functions: dict[str, dict[str, Any]] = {
        "now": {**now, "additionalProperties": False, "$defs": {"zone": {"enum": ["UTC", "CET"]}}},
        "set": {**now, "additionalProperties": False, "$defs": {"zone": {"enum": ["on", "off"]}}},
        "old": {"properties": {"a": {"$ref": "#/definitions/x"}}, "definitions": {"x": {"type": "integer"}}},
        "way": {"properties": {"a": {"type": "integer"}, "b": {"$ref": "#/properties/a"}}},
    }
    tokenizer = Tokenizer(save(byte_level(), tmp_path))
    grammars = GrammarFactory(tokenizer)
    grammar = grammars.json_schema(forced_schema(functions))

    def takes(text: str) -> bool:
        tokens = tokenizer.encode(text)
        return len(grammars.start(grammar).masks(tokens)) == len(tokens) + 1

    assert takes('{"name": "now", "arguments": {"zone": "UTC", "again": {"zone": "CET"}}}')
    assert takes('{"name": "set", "arguments": {"zone": "on"}}')
    assert takes('{"name": "old", "arguments": {"a": 5}}')
    assert takes('{"name": "way", "arguments": {"a": 5, "b": 6}}')
    assert not takes('{"name": "now", "arguments": {"zone": "on"}}')
    assert not takes('{"name": "set", "arguments": {"zone": "UTC"}}')
    assert not takes('{"name": "now", "arguments": {"zone": "UTC", "again": {"name": "now"')


def test_parse_calls_half_a_surrogate_pair_stays_the_escape_that_it_was_written_as() -> None:
    """No answer could be sent with it."""
    [call] = parse_calls('{"name": "f", "arguments": {"a": "\\ud83d \\ud83e\\udd80 é"}}') or ()

    assert call.arguments == '{"a": "\\ud83d 🦀 é"}'


@pytest.mark.parametrize(
    "block",
    [
        *("", "null", "[]", "[1]", '{"name": 1}', '{"name": "f", "arguments": 3}', "[" * 100_000),
        *('{"name": "\\ud83d"}', '{"name": "f", "arguments": "\\ud83d"}'),
    ],
)
def test_parse_calls_anything_else_is_none(block: str) -> None:
    """What is no call is not mistaken for one, however it is made."""
    assert parse_calls(block) is None


@pytest.mark.parametrize(
    ("rendered", "syntax"),
    [
        ('<tool_call>\n{"name": "look_up", "arguments": {"word": "draft"}}\n</tool_call>', HERMES),
        ('[TOOL_CALLS][{"name": "look_up", "arguments": {}, "id": "call12345"}]', MISTRAL),
        ('{"name": "look_up", "parameters": {"word": "draft"}}', LLAMA),
        ("Hello", None),
        ('the tools: {"name": "look_up", "description": "Looks", "parameters": {}}', None),
    ],
    ids=["hermes", "mistral", "llama", "no-tools", "unknown"],
)
def test_syntax_is_told_by_what_the_template_writes(rendered: str, syntax: ToolSyntax | None) -> None:
    """The template taught the model how to call, so its own calls say how they look."""
    assert syntax_of(rendered) is syntax
