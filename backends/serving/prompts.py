"""The tokens of prompts, and whether there is room for them. What is too long is refused before more is read."""

from __future__ import annotations

from typing import Protocol

from backends.engine.errors import RequestRefused
from backends.errors import ContextLengthExceeded, InvalidRequest
from backends.serving.fields import MAX_INPUTS, Texts, Tokens
from backends.serving.replies.parts import Vocabulary


class TakesPrompts(Protocol):
    """What has to be known of a model to read prompts for it."""

    @property
    def vocabulary(self) -> Vocabulary:
        """Its tokens."""

    @property
    def vocab_size(self) -> int:
        """How many it knows."""

    @property
    def max_context(self) -> int:
        """How many it takes, those of the answer included."""


def read_prompts(given: Texts, model: TakesPrompts, param: str, num_asked: int) -> list[tuple[int, ...]]:
    """The tokens of each prompt: texts are encoded, tokens are checked; `num_asked` are to be made behind each.

    Raises: InvalidRequest; ContextLengthExceeded.
    """
    items = _items(given, param)
    if len(items) > MAX_INPUTS:
        raise InvalidRequest(f"{param} has {len(items)} entries; at most {MAX_INPUTS} are taken", param=param)
    prompts = []
    for index, item in enumerate(items):
        prompt = _encoded(item, model, param) if isinstance(item, str) else item
        where = f"{param}[{index}]" if len(items) > 1 else param
        if not prompt:
            raise InvalidRequest(f"{where} is empty", param=param)
        highest = max(prompt)
        if highest >= model.vocab_size:
            problem = f"{where} has the token {highest}; this model has {model.vocab_size} tokens"
            raise InvalidRequest(problem, param=param)
        check_length(len(prompt), num_asked, model.max_context, param)
        prompts.append(tuple(prompt))
    return prompts


def check_length(num_prompt: int, num_asked: int | None, limit: int, param: str) -> None:
    """Raises: ContextLengthExceeded, worded as OpenAI words it, since programs look for that."""
    if num_prompt + (num_asked or 0) > limit or (num_asked is None and num_prompt >= limit):
        asked = f" ({num_prompt} in the {param}, {num_asked} in the completion)" if num_asked else ""
        raise ContextLengthExceeded(
            f"This model's maximum context length is {limit} tokens. However, your request asks for"
            f" {num_prompt + (num_asked or 0)} tokens{asked}. Please reduce the length of the {param}"
            + (" or of the completion." if num_asked else "."),
            param=param,
        )


def check_count(num_messages: int, num_tools: int, limit: int) -> None:
    """Refuses what is too long before a template writes it, which takes its time for each message and tool.

    Raises: ContextLengthExceeded.
    """
    if num_messages + num_tools > limit:
        raise ContextLengthExceeded(
            f"This model's maximum context length is {limit} tokens. However, your request has {num_messages} messages"
            f" and {num_tools} tools, and each takes one token at least. Please reduce their number.",
            param="messages",
        )


def _items(given: Texts, param: str) -> list[str | Tokens]:
    """The prompts as they came, each a text or tokens."""
    if isinstance(given, str):
        return [given]
    tokens = [item for item in given if isinstance(item, int)]
    if len(tokens) == len(given):
        return [tokens]
    if tokens:
        raise InvalidRequest(f"{param} mixes token ids with texts or lists", param=param)
    return [item for item in given if not isinstance(item, int)]


def _encoded(text: str, model: TakesPrompts, param: str) -> list[int]:
    try:
        return model.vocabulary.encode(text)
    except RequestRefused as error:
        raise ContextLengthExceeded(str(error), param=param) from error
