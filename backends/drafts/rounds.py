"""How an answer is checked by rounds, where nothing can be pushed onto it while it runs: it waits after each step.

A session is a streamed answer that stands still until its drafter lets it go on. Each reply is the next piece of its
stream, marks included (see `push.py`); `session` in the head of the first names it.

    POST /v1/slipstream/verify
    {"path":"/chat/completions","body":{...},"ttl_s":10}     opens it: the first tokens
    {"session":"d-4Fz","at":1,"draft":[9,4,4]}               a round: what the target says from token 1 on
    {"session":"d-4Fz","at":4,"alone":true}                  the rest, as a stream
    {"session":"d-4Fz","close":true}                         204
"""

from __future__ import annotations

from typing import Annotated, Any, Protocol, runtime_checkable

import msgspec
from msgspec import Meta

from backends.drafts.push import MAX_KEPT, Draft

VERIFY_PATH = "/slipstream/verify"
SESSION_HEADER = b"x-slipstream-session"
AT_HEADER = b"x-slipstream-at"
"""Of a 409: how many tokens the session has told."""
MOST_A_ROUND = 8
"""Draft tokens that one step of the engine verifies."""
MAX_TTL_S = 60.0

_Token = Annotated[int, Meta(ge=0, lt=2**31)]
_Id = Annotated[str, Meta(max_length=64)]


class OpenSession(msgspec.Struct, frozen=True):
    """`body` of a streamed call to `path`, below the API root. It ends where no round comes for `ttl_s`."""

    path: Annotated[str, Meta(max_length=256)]
    body: dict[str, Any]
    ttl_s: Annotated[float, Meta(gt=0, le=MAX_TTL_S)] = 10.0


class Round(msgspec.Struct, frozen=True):
    """The session's tokens from number `at` on, 0 being the answer's first, as the draft has them.

    `alone`: there will be no more rounds, the target is to say the rest. `close`: it is not wanted any more.
    """

    session: _Id
    at: Annotated[int, Meta(ge=0, lt=2**31)] = 0
    draft: Annotated[tuple[_Token, ...], Meta(max_length=MAX_KEPT)] = ()
    alone: bool = False
    close: bool = False


@runtime_checkable
class Verifier(Protocol):
    """A backend whose answers can wait for their drafter after each step (`Call.by_rounds`)."""

    async def verify(self, draft: Draft, *, tenant: str, key_id: str, alone: bool = False) -> None:
        """Let an answer of that caller go on by a step that verifies the draft, or `alone` to its end. What it says
        comes with its stream.

        Raises: UnknownObject where there is none of that id (any more); UpstreamError.
        """
