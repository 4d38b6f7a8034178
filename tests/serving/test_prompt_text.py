"""Prompts as engines read them, without tokenizing: against the tokens of the same tokenizers, written out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.engine.text.tokenizer import Tokenizer
from backends.errors import ConfigurationError
from backends.operations import Operation
from backends.protocol import Call
from backends.serving.prompt_text import PromptText, load_prompt_text
from tests.support.calls import make_call
from tests.support.engine import tiny_tokenizers

KINDS = {"byte level": tiny_tokenizers.byte_level, "byte fallback": tiny_tokenizers.byte_fallback}
CHAT = "<s>" + tiny_tokenizers.CHATML + "{% if tools %}{{ tools | tojson }}{% endif %}{{ extra }}"


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """A tokenizer of each kind with a chat template."""
    folder = tmp_path_factory.mktemp("model")
    return Tokenizer(tiny_tokenizers.save(KINDS[request.param](), folder, tokenizer_config={"chat_template": CHAT}))


def _chat(*messages: dict[str, Any], **fields: Any) -> Call:
    return make_call(extra={"messages": list(messages), **fields})


TEXTS = st.text("ab é東!the\n <|end|>", max_size=30)


@given(contents=st.lists(TEXTS, min_size=1, max_size=4))
def test_prompt_text_of_a_chat_is_what_its_tokens_are_written_as(tokenizer: Tokenizer, contents: list[str]) -> None:
    """What the engine would be sent and what it tells of are the same bytes, so blocks of them are the same."""
    messages = [{"role": "user", "content": content} for content in contents]
    text = PromptText(tokenizer)

    assert text.read(_chat(*messages)) == text.write(tokenizer.apply_chat_template(messages))


@given(prompt=TEXTS)
def test_prompt_text_of_a_completion_is_what_its_tokens_are_written_as(tokenizer: Tokenizer, prompt: str) -> None:
    """With the tokens that the model wants in front of every text, and as text or as tokens alike."""
    text = PromptText(tokenizer)
    tokens = tokenizer.encode(prompt)

    read = text.read(make_call(operation=Operation.COMPLETION, extra={"prompt": prompt}))

    assert read == text.write(tokens)
    assert text.read(make_call(operation=Operation.COMPLETION, extra={"prompt": tokens})) == read


def test_prompt_text_joins_parts_and_knows_tools_and_variables(tokenizer: Tokenizer) -> None:
    """All that goes into a prompt."""
    text = PromptText(tokenizer)
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    tools = [{"type": "function", "function": {"name": "f"}}]

    read = text.read(
        _chat({"role": "user", "content": parts}, tools=tools, chat_template_kwargs={"extra": "!"}, n=3, unknown=1)
    )

    assert read is not None
    assert b"user\na\nb<|end|>" in read
    assert b'"name":"f"' in read.replace(b" ", b"")
    assert read.endswith(b"!")


@pytest.mark.parametrize(
    "call",
    [
        _chat({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}),
        _chat({"role": "nobody", "content": "a"}),
        make_call(body={"messages": [{"role": "user", "content": "\ud800"}]}),
        _chat({"role": "user", "content": "a"}, chat_template_kwargs={"messages": []}),
        _chat({"role": "user", "content": "a"}, messages="none"),
        make_call(operation=Operation.COMPLETION, extra={"prompt": ["a", "b"]}),
        make_call(operation=Operation.COMPLETION, extra={"prompt": [1, -1]}),
        make_call(operation=Operation.EMBEDDING),
        make_call(body=None, raw=b"not JSON"),
    ],
    ids=["picture", "role", "surrogate", "variable", "no messages", "prompts", "tokens", "embedding", "no body"],
)
def test_prompt_text_of_what_it_does_not_know_is_none(tokenizer: Tokenizer, call: Call) -> None:
    """The engine may know better; nothing is raised."""
    assert PromptText(tokenizer).read(call) is None


def test_prompt_text_writes_tokens_that_are_none_as_nothing(tokenizer: Tokenizer) -> None:
    """Whatever an event says, and nothing is remembered of it."""
    text = PromptText(tokenizer)

    assert text.write([2**31, tokenizer.vocab_size]) == b""
    assert not text._written


def test_prompt_text_of_a_missing_folder_names_the_setting(tmp_path: Path) -> None:
    """As all that is wrong with a policy file."""
    with pytest.raises(ConfigurationError, match=r"kv_events\.tokenizer: .*tokenizer\.json does not exist"):
        load_prompt_text(str(tmp_path))
