"""What a call may ask for, a row each: where it is asked, where its prompt stands, what may be done with its answer.

Whoever treats operations differently asks the row. A new operation is its row here, and the reader of its body in
`gateway/http/decode.py`. What only passes through has no row; its terms say how it is charged.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Self

import msgspec


class Traits(msgspec.Struct, frozen=True, kw_only=True):
    """What is true of every call of one operation. The defaults are those of what is not understood."""

    path: str = ""
    """Below the API's root; empty for calls that pass through, whose paths are many."""
    prompt: str = ""
    """The field of the body that a model reads."""
    before_prompt: tuple[str, ...] = ()
    """Fields that chat templates put in front of it."""
    is_understood: bool = False
    """Body and answer are read, so what it has used is counted, and equal calls may share an answer."""
    writes_text: bool = False
    """A model writes the answer token by token, so it can be streamed and has a first token."""
    has_choices: bool = False
    """The answer is a list of choices; streamed, it is chunks of them, and its usage comes last if asked for."""
    is_repeatable: bool = False
    """The answer is all that comes of a call, so it may be sent twice. Servers keep responses."""
    may_keep_objects: bool = False
    """It may name something that an upstream keeps, or have it keep something."""
    takes_prompt_cache_key: bool = False
    """The body may name what calls that begin alike have in common (`prompt_cache_key`)."""


class Operation(StrEnum):
    """What a call asks for; decides which shape its body and its answer have."""

    traits: Traits

    def __new__(cls, value: str, traits: Traits) -> Self:
        """The value is the name in logs, metrics and policies."""
        member = str.__new__(cls, value)
        member._value_ = value
        member.traits = traits
        return member

    CHAT = (
        "chat",
        Traits(
            path="/chat/completions",
            prompt="messages",
            before_prompt=("tools",),
            is_understood=True,
            writes_text=True,
            has_choices=True,
            is_repeatable=True,
            may_keep_objects=True,
            takes_prompt_cache_key=True,
        ),
    )
    COMPLETION = (
        "completion",
        Traits(
            path="/completions",
            prompt="prompt",
            is_understood=True,
            writes_text=True,
            has_choices=True,
            is_repeatable=True,
        ),
    )
    EMBEDDING = ("embedding", Traits(path="/embeddings", prompt="input", is_understood=True, is_repeatable=True))
    RESPONSES = (
        "responses",
        Traits(
            path="/responses",
            prompt="input",
            before_prompt=("tools", "instructions"),
            is_understood=True,
            writes_text=True,
            may_keep_objects=True,
            takes_prompt_cache_key=True,
        ),
    )
    PASSTHROUGH = ("passthrough", Traits(may_keep_objects=True))


BY_PATH: Mapping[str, Operation] = MappingProxyType(
    {operation.traits.path: operation for operation in Operation if operation.traits.path}
)
"""The operations that have a path of their own, by it."""


class Metering(StrEnum):
    """How it is known what a call costs that only passes through."""

    METERED = "metered"
    FLAT = "flat"
    FREE = "free"
    UNMETERED = "unmetered"


class Terms(msgspec.Struct, frozen=True):
    """What is known of such a call's cost before it goes out.

    `flat_cost`: pico-dollars for each attempt that is answered, where its metering is flat. Where an answer that is
    metered does not tell what it used, that is estimated, with the answer as a part of it where the call `writes_text`;
    or it is nothing (`is_free_untold`). What is free and only reads or ends what there is (`is_reading`) is never too
    much.
    """

    metering: Metering
    flat_cost: int = 0
    writes_text: bool = False
    is_free_untold: bool = False
    is_reading: bool = False
