"""Text to tokens and back, from the tokenizer files of a Hugging Face folder, by the tokenizers library alone."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend

from backends.engine.errors import ModelError, RequestRefused
from backends.engine.model.json_fields import GENERATION_FILE, MODEL_FILE, JsonFields
from backends.engine.text.chat_template import ChatTemplate
from backends.engine.text.spelled_tokens import SpelledTokens

TOKENIZER_FILE = "tokenizer.json"
CONFIG_FILE = "tokenizer_config.json"

_MOST_TOKENS = 2**24
"""The library writes a vocabulary out by counting to its highest number, and ends the process where memory does."""
_MOST_TOKEN_CHARS = 16
"""Of a text, for each token; only white space and rules come to more."""
_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")
_SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


class Tokenizer:
    """One model's tokens. Any thread may use it: all that changes is what it remembers of single tokens."""

    def __init__(self, folder: Path, *, now: Callable[[], datetime] = datetime.now) -> None:
        """Reads the folder. `now` is the clock that chat templates see.

        Raises: ModelError for a file that is missing or broken.
        """
        self._backend = _read_backend(folder / TOKENIZER_FILE)
        config = _optional(folder / CONFIG_FILE)
        self._special_tokens = _special_tokens(config)
        self._template = ChatTemplate.from_folder(folder, config, now)
        self.eos_token_ids = self._read_eos(folder)
        """The tokens that end an answer, in order."""
        vocabulary = self._backend.get_vocab()
        self.vocab_size = max(vocabulary.values(), default=-1) + 1
        """One more than the highest token id."""
        if self.vocab_size > _MOST_TOKENS:
            problem = f"has a token with the number {self.vocab_size - 1}, and no model has so many: copy it again"
            raise ModelError(f"{folder / TOKENIZER_FILE} {problem}")
        self._longest = max(map(len, vocabulary), default=0)
        self.limit: int | None = None
        """Tokens of the longest text that is encoded, None for any; to be set before anybody encodes."""
        self._bytes: dict[int, bytes] = {}
        special = {
            token: added.content for token, added in self._backend.get_added_tokens_decoder().items() if added.special
        }
        self.special_ids = frozenset(special)
        """The tokens that are no text."""
        self._spelled = SpelledTokens(self._backend, special)

    @property
    def is_byte_level(self) -> bool:
        """Whether tokens are bytes and nothing else, so that each says by itself what it adds to a text."""
        return self._byte_of is not None

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """The tokens of a text, with those that the model wants in front of every text.

        Raises: RequestRefused for a text that is many times too long; one that is a little too long is encoded.
        """
        self._check_size(text)
        return self._backend.encode(text, add_special_tokens=add_special_tokens).ids

    def decode(self, ids: Iterable[int]) -> str:
        """The text of tokens, without special ones; bytes that are no UTF-8 become U+FFFD."""
        return self._backend.decode(list(ids), skip_special_tokens=True)

    def apply_chat_template(
        self,
        /,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **kwargs: Any,
    ) -> list[int]:
        """The tokens of a chat, as the model's own template writes it; `kwargs` are variables of the template.

        The template writes the special tokens; one that messages or tools spell out is the text that it looks like.
        Raises: RequestRefused where the model has no template, its template refuses the chat, or as `encode`.
        """

        def render(messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None) -> str:
            text = self.render_chat(messages, tools, add_generation_prompt, **kwargs)
            self._check_size(text, "messages")
            return text

        return self._spelled.encode_chat(render, messages, tools)

    def render_chat(
        self,
        /,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **kwargs: Any,
    ) -> str:
        """The text of a chat. Raises: RequestRefused as `apply_chat_template`."""
        if self._template is None:
            raise RequestRefused(
                "this model has no chat template (chat_template.jinja, or chat_template in tokenizer_config.json):"
                " use completions, or add one",
                param="messages",
                code="no_chat_template",
            )
        variables = self._special_tokens | {"add_generation_prompt": add_generation_prompt} | kwargs
        return self._template.render(messages, tools, variables)

    def to_json(self) -> str:
        """The tokenizer as tokenizer.json holds it."""
        return self._backend.to_str()

    def token_bytes(self, token: int) -> bytes:
        """What a token adds to a text that has begun; nothing for special tokens and ids without a token."""
        found = self._bytes.get(token)
        if found is None:
            found = self._bytes[token] = self._read_bytes(token)
        return found

    def first_bytes(self, token: int) -> bytes:
        """What a token is at the beginning of a text, where many kinds of tokenizer drop its leading space."""
        within = self.token_bytes(token)
        value = self._fallback_byte(token)
        if not within or self._byte_of is not None or (value is not None and value >= 0x80):
            return within
        return self.decode([token]).encode()

    def written_bytes(self, token: int) -> bytes:
        """What a token is in a prompt as a chat template writes it: special tokens by their names."""
        if token in self.special_ids:
            return (self._backend.id_to_token(token) or "").encode()
        return self.token_bytes(token)

    def _check_size(self, text: str, param: str | None = None) -> None:
        """Refuses a text whose beginning is too long already: all of it could take minutes, and gigabytes."""
        if self.limit is None:
            return
        size = self.limit * _MOST_TOKEN_CHARS
        while size < len(text):
            num_tokens = len(self._backend.encode(text[:size], add_special_tokens=False))
            # Where a token is cut through, its parts are more than one.
            if num_tokens > self.limit + self._longest:
                raise RequestRefused(
                    f"This model's maximum context length is {self.limit} tokens. However, the text has"
                    f" {len(text)} characters, and the first {size} of them are {num_tokens} tokens already."
                    " Please reduce its length.",
                    param=param,
                    code="context_length_exceeded",
                )
            size *= 2

    def _read_bytes(self, token: int) -> bytes:
        piece = self._backend.id_to_token(token)
        if piece is None or token in self.special_ids:
            return b""
        if self._byte_of is not None:
            values = [self._byte_of.get(character) for character in piece]
            known = [value for value in values if value is not None]
            return bytes(known) if len(known) == len(values) else piece.encode()
        if (value := self._fallback_byte(token)) is not None:
            return bytes([value])
        anchor, anchor_text = self._anchor
        return self.decode([*anchor, token])[len(anchor_text) :].encode()

    def _fallback_byte(self, token: int) -> int | None:
        """The byte that a token such as <0x0A> stands for, None for any other token."""
        match = _BYTE_TOKEN.fullmatch(self._backend.id_to_token(token) or "") if self._has_byte_fallback else None
        return None if match is None else int(match[1], 16)

    @cached_property
    def _decoders(self) -> frozenset[str]:
        """The kinds of decoder that tokenizer.json names."""
        decoder = json.loads(self._backend.to_str()).get("decoder") or {}
        return frozenset(part["type"] for part in decoder.get("decoders", [decoder]) if "type" in part)

    @cached_property
    def _has_byte_fallback(self) -> bool:
        return "ByteFallback" in self._decoders

    @cached_property
    def _byte_of(self) -> dict[str, int] | None:
        """The byte behind each character of a byte-level vocabulary, None for other kinds."""
        return _byte_characters() if "ByteLevel" in self._decoders else None

    @cached_property
    def _anchor(self) -> tuple[list[int], str]:
        """A plain token to put before another one, so that it reads as within a text; none where there is none."""
        for piece, token in sorted(self._backend.get_vocab().items(), key=lambda item: item[1]):
            if piece.isascii() and piece.isalnum() and token not in self.special_ids and self.decode([token]):
                return [token], self.decode([token])
        return [], ""

    def _read_eos(self, folder: Path) -> tuple[int, ...]:
        ids: set[int] = set()
        for name in (MODEL_FILE, GENERATION_FILE):
            fields = _optional(folder / name)
            if fields is not None:
                ids.update(fields.token_ids("eos_token_id"))
        named = self._backend.token_to_id(self._special_tokens.get("eos_token", ""))
        return tuple(sorted(ids if named is None else ids | {named}))


def _read_backend(path: Path) -> Backend:
    if not path.is_file():
        raise ModelError(
            f"{path} does not exist. A tokenizer.model or vocab.json alone is not read; make the file once with"
            " transformers: AutoTokenizer.from_pretrained(FOLDER, use_fast=True).save_pretrained(FOLDER)"
        )
    try:
        backend = Backend.from_file(str(path))
    except Exception as exc:
        # The library raises nothing more specific.
        raise ModelError(f"{path} cannot be read: {exc}") from exc
    # Both may have been saved along; prompts are never cut or filled up.
    backend.no_padding()
    backend.no_truncation()
    return backend


def _optional(path: Path) -> JsonFields | None:
    return JsonFields.from_file(path) if path.is_file() else None


def _special_tokens(config: JsonFields | None) -> dict[str, str]:
    """The special tokens by the names that templates know them by."""
    found = {}
    for name in _SPECIAL_TOKENS:
        token = None if config is None else config.raw(name)
        if isinstance(token, dict):
            token = token.get("content")
        if isinstance(token, str):
            found[name] = token
    return found


def _byte_characters() -> dict[str, int]:
    """The alphabet of byte-level BPE: printable Latin-1 stands for itself, the other bytes for U+0100 onwards."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = (byte for byte in range(0x100) if byte not in set(printable))
    return {chr(byte): byte for byte in printable} | {chr(0x100 + index): byte for index, byte in enumerate(others)}
