"""How an answer that breaks off in the middle goes on elsewhere: what is known of its beginning, and how that travels.

Between two Slipstreams a streamed call of chat or completions asks for marks with `"slipstream_resume": {}`. They are
comments of the event stream: `: slipstream-resume {"tokens":[...]}`, each with the tokens of the events since the one
before it, the first one with the answer's head. Who has lost the stream sends the call again, with the head and all
tokens in that field, and gets the events behind them.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

RESUME_FIELD = "slipstream_resume"
MARK = b": slipstream-resume "

Continues = Literal["text", "tokens"]
"""What of an answer a backend can go on behind: its text, as a last message of the assistant, or its very tokens."""

ResumeKind = Literal["exact", "best_effort"]
ResumeOutcome = Literal["resumed", "failed", "not_possible"]

_Text = Annotated[str, Meta(max_length=256)]
_Token = Annotated[int, Meta(ge=0, lt=2**31)]


class Resume(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The beginning of an answer, as far as it was passed on; empty in a call that only asks for marks.

    `created` is in Unix seconds, `fingerprint` names weights and settings of the model that began.
    """

    id: _Text = ""
    created: Annotated[int, Meta(ge=0, lt=2**53)] = 0
    fingerprint: _Text = ""
    tokens: tuple[_Token, ...] = ()


class BrokenAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """An answer that broke off, for whoever takes it over: one of `takers`, by their names as backends.

    Either `begun` has tokens, or `text` is what was passed on of it, in `num_pieces` events that said something.
    Without either nothing is broken yet: that only asks for marks.
    """

    begun: Resume = Resume()
    text: str = ""
    num_pieces: int = 0
    takers: frozenset[str] = frozenset()


class Resumed(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One break of a stream: where, after how much of the answer, and what was done about it.

    `tokens` were told by then, or `pieces` of text where nobody counts tokens; `backend` was paid for these.
    """

    backend: str
    kind: ResumeKind
    outcome: ResumeOutcome
    to: str | None = None
    tokens: int = 0
    pieces: int = 0


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Resume).decode


def encode_mark(mark: Resume) -> bytes:
    """A mark as it stands in a stream."""
    return MARK + _encode(mark) + b"\n\n"


def read_mark(event: bytes) -> Resume | None:
    """The mark that an event of a stream is; None for all others.

    Raises: msgspec.DecodeError where it is one and cannot be read.
    """
    return _decode(event[len(MARK) :]) if event.startswith(MARK) else None


def beginning(begun: Resume) -> object:
    """The value of `RESUME_FIELD`, as JSON can be made of it."""
    return msgspec.to_builtins(begun)
