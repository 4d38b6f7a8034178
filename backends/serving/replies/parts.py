"""What the answers of all operations are made of: their head, usage, log-probabilities, and the events of a step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from backends.charges.usage import Usage
from backends.engine.request import Event, TokenLogprob
from backends.engine.request import TokenUsage as EngineUsage


class Vocabulary(Protocol):
    """What serving needs of the engine's tokenizer."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """The tokens of a text; with those that the model wants in front of every text."""

    def decode(self, ids: Iterable[int]) -> str:
        """The text of tokens."""

    def token_bytes(self, token: int) -> bytes:
        """What a token adds to a text; not always whole characters."""

    def apply_chat_template(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **kwargs: Any,
    ) -> list[int]:
        """The tokens of a chat."""


@dataclass(frozen=True, slots=True)
class Head:
    """What every piece of an answer begins with. `created` is in Unix seconds.

    `requests` is what the ids of the engine's requests begin with where that is not the answer's own.
    """

    id: str
    created: int
    model: str
    fingerprint: str
    requests: str | None = None

    @property
    def request_id(self) -> str:
        """What the ids of the engine's requests begin with."""
        return self.requests or self.id

    def fields(self, kind: str) -> dict[str, Any]:
        """The head of an object of that kind."""
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
        }


class ReplyBuilder(Protocol):
    """Puts one call's answer together from the engine's events; used by one task."""

    def take(self, event: Event) -> None:
        """Note what a step brought."""

    def drain(self) -> bytes:
        """The events of a stream that are ready; may be b""."""

    def finish(self) -> bytes:
        """The whole body, or the last events of a stream, once every request is over."""

    def usage(self) -> Usage:
        """Tokens of the whole call."""


class UsageTally:
    """Usage of a call, from the usage of its requests so far."""

    __slots__ = ("_of",)

    def __init__(self) -> None:
        self._of: dict[str, EngineUsage] = {}

    def take(self, event: Event) -> None:
        """Note the usage that an event brings."""
        if event.usage is not None:
            self._of[event.request_id] = event.usage

    def usage(self) -> Usage:
        """The sum of all requests."""
        of = self._of.values()
        return Usage(
            sum(each.prompt_tokens for each in of),
            sum(each.completion_tokens for each in of),
            sum(each.cached_tokens for each in of),
            accepted_prediction_tokens=sum(each.prediction_accepted for each in of),
            rejected_prediction_tokens=sum(each.prediction_rejected for each in of),
        )

    def fields(self, *, with_prediction: bool = False) -> dict[str, Any]:
        """The `usage` object of chat and completions."""
        usage = self.usage()
        fields: dict[str, Any] = {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        }
        if with_prediction:
            fields["completion_tokens_details"] = {
                "accepted_prediction_tokens": usage.accepted_prediction_tokens,
                "rejected_prediction_tokens": usage.rejected_prediction_tokens,
            }
        return fields


def chat_logprobs(vocabulary: Vocabulary, logprobs: Iterable[TokenLogprob], num_top: int) -> list[dict[str, Any]]:
    """Log-probabilities as chat reports them."""
    return [
        {
            **_token(vocabulary, each.token, each.logprob),
            "top_logprobs": [_token(vocabulary, token, logprob) for token, logprob in each.top[:num_top]],
        }
        for each in logprobs
    ]


def _token(vocabulary: Vocabulary, token: int, logprob: float) -> dict[str, Any]:
    return {
        "token": token_text(vocabulary, token),
        "logprob": logprob,
        "bytes": list(vocabulary.token_bytes(token)),
    }


def token_text(vocabulary: Vocabulary, token: int) -> str:
    """A token by itself, for people to read; a part of a character is U+FFFD."""
    return vocabulary.token_bytes(token).decode("utf-8", "replace")
