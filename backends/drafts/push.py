"""How draft tokens reach an answer that another Slipstream is writing: what is known of it, and how that travels.

A streamed call of chat or completions asks for that with the header `x-slipstream-draft: 1`. The answer's stream then
has marks, which are comments: the first tells the answer's id, the tokens of the prompt and how many draft tokens are
kept; each tells the tokens that were chosen since the one before it. Who guesses how the answer goes on posts the
guess, and the next step verifies as much of it as is there. Guesses change when tokens come, never which.

    : slipstream-draft {"id":"d-4Fz","room":64,"prompt":[5,17],"tokens":[3]}
    POST /v1/slipstream/draft  [{"id":"d-4Fz","at":1,"tokens":[9,4,4]}]
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Protocol, runtime_checkable

import msgspec
from msgspec import Meta

DRAFT_HEADER = b"x-slipstream-draft"
DRAFT_PATH = "/slipstream/draft"
DRAFT_MARK = b": slipstream-draft "
MAX_KEPT = 64
"""Draft tokens that are kept for one answer."""
MAX_DRAFTS = 256
"""Answers that one post may have drafts for."""

_Token = Annotated[int, Meta(ge=0, lt=2**31)]
_Id = Annotated[str, Meta(max_length=64)]


class DraftsBy(StrEnum):
    """Who means to push drafts onto a call's answer."""

    NOBODY = ""
    CALLER = "caller"
    """Only onto an answer of a model in this process: an upstream's belongs to the gateway's key."""
    GATEWAY = "gateway"


class DraftMark(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a running answer tells of itself. Only the first has `id`, `room`, `prompt` and `by_rounds`.

    `room`: draft tokens that are kept. `prompt`: what the answer stands behind. `tokens`: those since the last mark.
    `by_rounds`: it waits behind each mark. `is_last`: the answer's end comes behind this one.
    """

    id: _Id = ""
    by_rounds: bool = False
    is_last: bool = False
    room: Annotated[int, Meta(ge=0)] = 0
    prompt: tuple[_Token, ...] = ()
    tokens: tuple[_Token, ...] = ()


class Draft(msgspec.Struct, frozen=True):
    """Tokens that an answer probably has from its token number `at` on, 0 being its first.

    Those that it has already must be its own: then the others are worth a try, else none is.
    """

    id: _Id
    at: Annotated[int, Meta(ge=0, lt=2**31)]
    tokens: Annotated[tuple[_Token, ...], Meta(max_length=4 * MAX_KEPT)]


Drafts = Annotated[list[Draft], Meta(max_length=MAX_DRAFTS)]
"""The body of a post."""


@runtime_checkable
class Pushable(Protocol):
    """A backend that takes drafts for answers that it is writing."""

    def is_writing(self, answer_id: str) -> bool:
        """Whether the answer is one of a model in this process; it may be another caller's."""

    async def push(self, draft: Draft, *, tenant: str, key_id: str) -> None:
        """Hand over a draft for an answer of that caller.

        Raises: UnknownObject where there is none of that id (any more); UpstreamError.
        """


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(DraftMark).decode


def encode_draft_mark(mark: DraftMark) -> bytes:
    """A mark as it stands in a stream."""
    return DRAFT_MARK + _encode(mark) + b"\n\n"


def read_draft_mark(event: bytes) -> DraftMark | None:
    """The mark that an event of a stream is; None for all others.

    Raises: msgspec.DecodeError where it is one and cannot be read.
    """
    return _decode(event[len(DRAFT_MARK) :]) if event.startswith(DRAFT_MARK) else None
