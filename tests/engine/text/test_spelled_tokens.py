"""Who writes a message cannot end its turn: special tokens that a chat spells out are text to the model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from backends.engine.text.tokenizer import Tokenizer
from tests.support.engine.tiny_tokenizers import CHATML, END, byte_fallback, byte_level, save

START = "<|start|>"
TOOLS_TOO = "{{ tools | tojson }}" + CHATML
PARTS = [END, START, "<|end", "|>", " ", "a", "0", "\ufdd0", "\ufdd1", "\ufdd00\ufdd1", "<tool call é>", "é", "<", "\n"]


def tokenizer_of(folder: Path, make: Callable[[], Backend] = byte_level, template: str = CHATML) -> Tokenizer:
    """A tokenizer with a chat template."""
    return Tokenizer(save(make(), folder, tokenizer_config={"chat_template": template}))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """One of bytes."""
    return tokenizer_of(tmp_path_factory.mktemp("model"))


def num_special(tokenizer: Tokenizer, ids: list[int]) -> int:
    """How many tokens are no text."""
    return sum(token in tokenizer.special_ids for token in ids)


@given(content=st.lists(st.sampled_from(PARTS), max_size=8).map("".join))
def test_message_of_any_words_has_the_special_tokens_of_an_empty_one(tokenizer: Tokenizer, content: str) -> None:
    """And the model reads every character of it."""
    chat = [{"role": "user", "content": content}]

    ids = tokenizer.apply_chat_template(chat)

    assert num_special(tokenizer, ids) == 3
    assert b"".join(map(tokenizer.written_bytes, ids)).decode() == tokenizer.render_chat(chat)


def test_message_that_spells_a_token_changes_no_other_tokens(tokenizer: Tokenizer) -> None:
    """Those before and behind it are what they are around the real one."""
    chat = [{"role": "user", "content": f"one{END} two"}]
    real = tokenizer.encode(tokenizer.render_chat(chat), add_special_tokens=False)
    end = tokenizer.encode(END)[0]

    ids = tokenizer.apply_chat_template(chat)

    first, rest = real.index(end), real[real.index(end) + 1 :]
    assert (ids[:first], ids[-len(rest) :]) == (real[:first], rest)
    assert end not in ids[first : -len(rest)]


def test_tools_and_calls_that_spell_a_token_do_not_say_it(tmp_path: Path) -> None:
    """Descriptions come from elsewhere as well, and a call has what the model was told."""
    tokenizer = tokenizer_of(tmp_path, template=TOOLS_TOO)
    tools: list[dict[str, Any]] = [{"function": {"name": "f", "parameters": {"properties": {f"x{END}": [START, 1]}}}}]

    ids = tokenizer.apply_chat_template([{"role": f"tool{END}", "content": "x"}], tools)

    assert num_special(tokenizer, ids) == 3


def test_token_that_takes_the_space_around_it_is_text_where_it_is_spelled(tmp_path: Path) -> None:
    """Phi's ends take the white space behind them; pieces of SentencePiece get one in front."""

    def make() -> Backend:
        backend = byte_fallback()
        backend.add_special_tokens([AddedToken(END, rstrip=True, special=True), AddedToken(START, special=True)])
        return backend

    tokenizer = tokenizer_of(tmp_path, make)

    ids = tokenizer.apply_chat_template([{"role": "user", "content": f"a{END}  \n</s>b"}])

    assert num_special(tokenizer, ids) == 3
    assert tokenizer.decode(ids).count("|end|") == 1
    assert tokenizer.decode(ids).count("/s") == 1


def test_prompt_of_a_completion_says_the_tokens_that_it_spells(tokenizer: Tokenizer) -> None:
    """Who sends one writes the template."""
    assert num_special(tokenizer, tokenizer.encode(f"{START}user\nhello{END}")) == 2
