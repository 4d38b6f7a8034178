"""How servers are asked to go on with an answer that broke off elsewhere: what each of them reads in the body."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from backends.http.splice import set_field, without_field
from backends.resume import RESUME_FIELD, BrokenAnswer, Continues, beginning

ContinuesBy = Literal["slipstream", "final_message", "prefill"]
BEHIND: Mapping[ContinuesBy, Continues] = {"slipstream": "tokens", "final_message": "text", "prefill": "text"}
"""What of an answer each of them goes on behind."""
_LIMITS = ("max_tokens", "max_completion_tokens", "min_tokens")


def with_beginning(raw: bytes, body: Mapping[str, Any], broken: BrokenAnswer, way: ContinuesBy) -> bytes:
    """The call's body, `raw` decoded being `body`, as one that asks for the rest, or for marks where there is no
    beginning yet.
    """
    for name, value in changes(body, broken, way).items():
        raw = set_field(raw, body, name, value)
    return raw


def without_marks(body: Mapping[str, Any]) -> tuple[bytes, Mapping[str, Any]]:
    """What another Slipstream asks, for servers that know no marks and might refuse the field; and it decoded."""
    return without_field(body, RESUME_FIELD)


def changes(body: Mapping[str, Any], broken: BrokenAnswer, way: ContinuesBy) -> dict[str, Any]:
    """The fields of such a body that are other than the client's."""
    if way == "slipstream":
        return {RESUME_FIELD: beginning(broken.begun)}
    if not broken.text:
        return {}
    changed: dict[str, Any] = {}
    if "prompt" in body:
        changed["prompt"] = body["prompt"] + broken.text
    else:
        changed["messages"] = [*body["messages"], {"role": "assistant", "content": broken.text}]
        if way == "final_message":
            changed["continue_final_message"], changed["add_generation_prompt"] = True, False
    # A piece is a token at least. How many more it was nobody has said, so the answer may become a little longer.
    for name in _LIMITS:
        if isinstance(body.get(name), int):
            changed[name] = max(body[name] - broken.num_pieces, 0 if name == "min_tokens" else 1)
    return changed
