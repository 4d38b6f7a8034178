"""Text comes out as whole characters, and all of it together is what decoding all tokens at once gives."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend

from backends.engine.text.detokenizer import Detokenizer
from backends.engine.text.tokenizer import Tokenizer
from tests.support.engine.tiny_tokenizers import byte_fallback, byte_level, metaspace, save

KINDS: dict[str, Callable[[], Backend]] = {
    "byte-level": byte_level,
    "byte-fallback": byte_fallback,
    "metaspace": metaspace,
}


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tokenizer]:
    """One tokenizer of each kind."""
    root: Path = tmp_path_factory.mktemp("tokenizers")
    return {name: Tokenizer(save(make(), root / name)) for name, make in KINDS.items()}


def pushed(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    """What each push and the flush give."""
    detokenizer = Detokenizer(tokenizer)
    return [*(detokenizer.push([token]) for token in ids), detokenizer.flush()]


@pytest.mark.parametrize("kind", ["byte-level", "metaspace"])
@given(st.data())
def test_detokenizer_of_random_tokens_gives_what_decode_gives(
    tokenizers: dict[str, Tokenizer], kind: str, data: st.DataObject
) -> None:
    """Broken characters, special tokens and ids beyond the vocabulary included."""
    tokenizer = tokenizers[kind]
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size + 3), max_size=30))

    assert "".join(pushed(tokenizer, ids)) == tokenizer.decode(ids)


@given(st.data())
def test_detokenizer_of_byte_tokens_gives_what_decode_gives_where_they_are_text(
    tokenizers: dict[str, Tokenizer], data: st.DataObject
) -> None:
    """Runs of byte tokens that are UTF-8, among other tokens in any order."""
    tokenizer = tokenizers["byte-fallback"]
    characters = st.text(st.characters(min_codepoint=0x20, exclude_categories=["Cs"]), min_size=1, max_size=3)
    runs = characters.map(lambda text: [3 + byte for byte in text.encode()])
    others = st.integers(259, tokenizer.vocab_size + 3).map(lambda token: [token])
    parts = data.draw(st.lists(runs | others | st.just([2]), max_size=12))
    ids = [token for part in parts for token in part]

    assert "".join(pushed(tokenizer, ids)) == tokenizer.decode(ids)


@given(st.lists(st.integers(3, 258), min_size=1, max_size=20))
def test_detokenizer_of_any_byte_tokens_gives_their_lossy_text(
    tokenizers: dict[str, Tokenizer], ids: list[int]
) -> None:
    """Where bytes are no UTF-8, each broken sequence is one U+FFFD and the good characters stay."""
    expected = bytes(token - 3 for token in ids).decode(errors="replace")
    expected = expected[1:] if expected.startswith(" ") else expected

    assert "".join(pushed(tokenizers["byte-fallback"], ids)) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_detokenizer_pushed_in_any_pieces_gives_the_same(tokenizers: dict[str, Tokenizer], kind: str) -> None:
    """One push of all tokens is as good as one push each."""
    ids = list(range(3, tokenizers[kind].vocab_size))
    detokenizer = Detokenizer(tokenizers[kind])

    assert detokenizer.push(ids) + detokenizer.flush() == "".join(pushed(tokenizers[kind], ids))


def test_detokenizer_holds_a_character_until_its_last_byte(tokenizers: dict[str, Tokenizer]) -> None:
    """🙂 is four bytes; three of them are no text yet."""
    tokenizer = tokenizers["byte-fallback"]
    ids = [3 + byte for byte in "é🙂".encode()]

    assert pushed(tokenizer, ids) == ["", "é", "", "", "", "🙂", ""]
    assert pushed(tokenizer, ids[:-1])[-1] == "\ufffd"


def test_detokenizer_keeps_the_first_space_where_it_continues_a_text(tokenizers: dict[str, Tokenizer]) -> None:
    """A text of its own begins without the space of its first piece."""
    tokenizer = tokenizers["byte-fallback"]
    ids = tokenizer.encode("the", add_special_tokens=False)

    assert Detokenizer(tokenizer).push(ids) == "the"
    assert Detokenizer(tokenizer, continues=True).push(ids) == " the"


@pytest.mark.timed
def test_detokenizer_cost_of_a_token_does_not_grow_with_broken_text(tokenizers: dict[str, Tokenizer]) -> None:
    """20,000 bytes that never complete a character are read as quickly as any others."""
    detokenizer = Detokenizer(tokenizers["byte-fallback"])
    started_s = time.perf_counter()
    text = "".join(detokenizer.push([3 + 0x80]) for _ in range(20_000))

    assert text == "\ufffd" * 20_000
    # A cost that grows with the text would take minutes.
    assert time.perf_counter() - started_s < 5
