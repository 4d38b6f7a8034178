"""From tokens to the chunks that a client gets, where the gateway writes an answer itself: whole characters."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from backends.charges.usage import Usage
from backends.engine.text.detokenizer import Detokenizer
from backends.engine.text.stops import StopChecker
from backends.engine.text.tokenizer import Tokenizer
from backends.sse import DONE_EVENT, encode_event


class AnswerWriter:
    """One answer, `most` tokens long at most, of which the target has written the beginning. Its text is that of the
    target's own stream, with the same `finish_reason`.
    """

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str], most: int, *, is_chat: bool) -> None:
        self.num_tokens = 0
        self.is_over = False
        self._detokenizer = Detokenizer(tokenizer, continues=True)
        self._stops = StopChecker(stops) if stops else None
        self._longest_stop = max(map(len, stops), default=0)
        self._most = most
        self._is_chat = is_chat
        self._chunk: dict[str, Any] = {}
        self._said = ""
        """All text so far, what may become a stop string included."""
        self._num_shown = 0
        self._num_written = 0
        self._has_found_stop = False

    def begin(self, chunk: dict[str, Any], tokens: Sequence[int], text: str) -> bytes | None:
        """The target has said these tokens, and shown this text of them in chunks such as this one.

        Returns what has still to be shown; None where these tokens are another text, or the end, and nobody can go on.
        """
        self._chunk = {name: value for name, value in chunk.items() if name not in ("choices", "usage")}
        written = ""
        for token in tokens:
            piece, found = self._add(token)
            written += piece
            if found or self.num_tokens >= self._most:
                return None
        # What is held back here may have been shown there, and the other way round.
        self._num_written, self._num_shown = len(written), max(len(text), len(written))
        # A server that hides a part of what its model says, as reasoning, is not written for.
        if not self._said.startswith(text) or len(self._said) - len(text) > self._longest_stop:
            return None
        return self._event(written[len(text) :]) if len(written) > len(text) else b""

    def take(self, tokens: Sequence[int], *, ends: bool) -> bytes:
        """Goes on by the tokens that the target has said; `ends`: the last of them has ended its answer by itself."""
        shown, finish = "", ""
        for place, token in enumerate(tokens):
            if ends and place == len(tokens) - 1:
                self.num_tokens += 1
                finish = "stop"
                break
            piece, found = self._add(token)
            shown += piece
            if found:
                finish = "stop"
            elif self.num_tokens >= self._most:
                finish = "length"
            if finish:
                break
        else:
            # The token that ends an answer counts, and is not told by all servers.
            if ends and not tokens:
                self.num_tokens += 1
                finish = "stop"
        if finish and not self._has_found_stop:
            rest = self._detokenizer.flush()
            if self._stops is not None:
                rest, stop = self._stops.push(rest)
                finish = "stop" if stop is not None else finish
                rest += self._stops.flush()
            shown += rest
        # The target may have shown more than was written here.
        fresh = shown[self._num_shown - self._num_written :] if self._num_shown > self._num_written else shown
        self._num_written += len(shown)
        self._num_shown = max(self._num_shown, self._num_written)
        shown = fresh
        events = self._event(shown) if shown else b""
        if finish:
            self.is_over = True
            events += self._event("", finish)
        return events

    def finish(self, usage: Usage) -> bytes:
        """The end of the stream, with what it came to."""
        told = {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        }
        return encode_event(msgspec.json.encode({**self._chunk, "choices": [], "usage": told})) + DONE_EVENT

    def _add(self, token: int) -> tuple[str, bool]:
        self.num_tokens += 1
        piece = self._detokenizer.push([token])
        self._said += piece
        if self._stops is None:
            return piece, False
        piece, found = self._stops.push(piece)
        self._has_found_stop = found is not None
        return piece, self._has_found_stop

    def _event(self, text: str, finish: str | None = None) -> bytes:
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": finish}
        if self._is_chat:
            choice["delta"] = {"content": text} if text else {}
        else:
            choice["text"] = text
        return encode_event(msgspec.json.encode({**self._chunk, "choices": [choice]}))


class TokenizerWords:
    """A tokenizer, as those who have answers of a foreign target checked need it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.special: Collection[int] = tokenizer.special_ids | set(tokenizer.eos_token_ids)
        """Tokens that are no text, those that end an answer among them."""

    def encode(self, text: str) -> list[int]:
        """The tokens of a prompt."""
        return self._tokenizer.encode(text)

    def writer(self, stops: Sequence[str], most: int, *, is_chat: bool) -> AnswerWriter:
        """For an answer of so many tokens at most, which ends at one of these strings."""
        return AnswerWriter(self._tokenizer, stops, most, is_chat=is_chat)
