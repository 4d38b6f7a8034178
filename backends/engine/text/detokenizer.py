"""Tokens to text as they come: whole characters only, at a cost that does not grow with the text."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from backends.engine.text.tokenizer import Tokenizer


class Detokenizer:
    """The text of one answer. All pushes and the flush together are `Tokenizer.decode` of all tokens.

    There is one difference: where byte tokens of a SentencePiece vocabulary form no UTF-8, the library replaces the
    whole run of them, also the good characters before, which have been sent by then. `continues`: the text goes on
    from a prompt, so the space that begins it stays.
    """

    def __init__(self, tokenizer: Tokenizer, *, continues: bool = False) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._has_begun = continues

    def push(self, tokens: Sequence[int]) -> str:
        """The characters that these tokens complete."""
        return "".join([self._decoder.decode(self._bytes(token)) for token in tokens])

    def flush(self) -> str:
        """U+FFFD for a character that was never completed; nothing otherwise."""
        return self._decoder.decode(b"", final=True)

    def _bytes(self, token: int) -> bytes:
        if self._has_begun:
            return self._tokenizer.token_bytes(token)
        # A special token is not the first of the text: it is not in the text at all.
        self._has_begun = bool(self._tokenizer.token_bytes(token))
        return self._tokenizer.first_bytes(token)
