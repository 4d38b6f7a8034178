"""What rounds need of a tokenizer: what tokens a text has, and how an answer is written from tokens."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Protocol

from backends.charges.usage import Usage


class ChunkWriter(Protocol):
    """One answer, from its tokens to the chunks that a client gets."""

    @property
    def num_tokens(self) -> int:
        """How many it has by now."""

    @property
    def is_over(self) -> bool:
        """Whether its last token has come."""

    def begin(self, chunk: dict[str, Any], tokens: Sequence[int], text: str) -> bytes | None:
        """The target has said these tokens, and shown this text of them in chunks such as this one.

        Returns what has still to be shown; None where these tokens are another text, and nobody can go on.
        """

    def take(self, tokens: Sequence[int], *, ends: bool) -> bytes:
        """Goes on by the tokens that the target has said; `ends`: the last of them has ended its answer by itself."""

    def finish(self, usage: Usage) -> bytes:
        """The end of the stream, with what it came to."""


class Words(Protocol):
    """The tokens that a target and its draft have in common."""

    @property
    def special(self) -> Collection[int]:
        """Tokens that are no text, of which some end an answer."""

    def encode(self, text: str) -> list[int]:
        """The tokens of a prompt."""

    def writer(self, stops: Sequence[str], most: int, *, is_chat: bool) -> ChunkWriter:
        """For an answer of so many tokens at most, which ends at one of these strings."""
