"""Which part of a call may be asked in other words, who may share its answer, and which calls are left alone.

A scope is who shares; a group adds everything of the call but the last user text. Both are SHA-256 as in
`policies/cache/key.py`, so isolation is a matter of names: questions of two tenants are never compared. `Ineligible`
says why a call is not looked at; everything doubtful is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from backends.header_names import HeaderNames
from backends.operations import Operation
from backends.protocol import Call
from policies.acting import only_answers
from policies.cache.key import (
    SUB_SCOPE_HEADER,
    digest_of,
    fields_in_order,
    identity_of,
    significant_headers,
    travel_fields,
)
from policies.cache.semantic.contracts import Question
from policies.cache.semantic.settings import SemanticPolicy
from policies.cache.settings import CachePolicy

_FORMAT_VERSION = "slipstream question 1"
_NOT_ASKED = frozenset({"messages", "user", "metadata", "safety_identifier", "prompt_cache_key"})
"""Who asks: the scope says that, never the body."""

_MIN_TOKENS = 3
_MAX_TOKENS = 512
_LONGEST_TEXT = _MAX_TOKENS * 16
_DEFAULT_TEMPERATURE = 1.0
"""What the API takes where a call says nothing."""

_RUN = re.compile(r"\w+|[^\w\s]")
_PERSONAL = re.compile(
    r"[\w.+-]+@[\w-]+\.\w"  # an e-mail address
    r"|\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"
    r"|(?<!\w)\+?\(?\d(?:[\s().-]{0,2}\d){7,}"  # a telephone, card or account number
    r"|\b(?:order|invoice|ticket|case|account|booking|reservation|tracking)"
    r"\s*(?:no\b\.?|number|nr\b\.?|id|#|:)*\s*[:#]?\s*[a-z]{0,4}-?\d{3,}",
    re.IGNORECASE,
)
_MAY_BE_PERSONAL = re.compile(r"[@\d-]")
"""Whatever is personal has one of these; to look for them takes a tenth of the time."""


class Ineligible(StrEnum):
    """Why a call is neither looked up nor stored."""

    OPERATION = "operation"
    NO_STORE = "no_store"
    NO_IDENTITY = "no_identity"
    CHOICES = "choices"
    LOGPROBS = "logprobs"
    STATEFUL = "stateful"
    MEDIA = "media"
    TOOL_RESULTS = "tool_results"
    NO_USER_TEXT = "no_user_text"
    TEMPERATURE = "temperature"
    TOO_SHORT = "too_short"
    TOO_LONG = "too_long"
    VOLATILE = "volatile"
    PERSONAL = "personal"


class Questions:
    """Reads calls of one route as questions. `fingerprint` names the encoder whose vectors the questions get, `read`
    the headers that the backends read."""

    def __init__(
        self, policy: CachePolicy, semantic: SemanticPolicy, route: str, fingerprint: str, read: HeaderNames
    ) -> None:
        self._headers_read = read
        self._cache_scope = policy.scope
        self._shared_by = (_FORMAT_VERSION, route, policy.epoch, fingerprint)
        self._context = semantic.context
        self._num_turns = semantic.context_turns
        self._max_temperature = semantic.max_temperature
        self._volatile = _any_of(semantic.volatile_words)
        self._leaves_volatile = semantic.volatile == "strict"
        self._ttl_s = semantic.ttl
        self._volatile_ttl_s = min(semantic.ttl, semantic.volatile_ttl)
        self._decision = "static" if semantic.mode == "static" else "verified"
        self._learning: dict[str, bytes] = {}

    def read(self, call: Call) -> Question | Ineligible:
        """The question of a call, or why it has none."""
        body = call.body
        if body is None or call.operation is not Operation.CHAT:
            return Ineligible.OPERATION
        identity = identity_of(call, self._cache_scope)
        if identity is None:
            return Ineligible.NO_IDENTITY
        unfit = Ineligible.STATEFUL if not only_answers(call) else self._unfit_field(body)
        if unfit is not None:
            return unfit
        messages: Sequence[Mapping[str, Any]] = body["messages"]
        if any(_has_media(message) for message in messages):
            return Ineligible.MEDIA
        last = next((at for at in reversed(range(len(messages))) if messages[at].get("role") == "user"), None)
        taken = _without_text(messages[last]) if last is not None else None
        if last is None or taken is None:
            return Ineligible.NO_USER_TEXT
        text, placeholder = taken
        if any(message.get("role") in ("tool", "function") for message in messages[last + 1 :]):
            return Ineligible.TOOL_RESULTS
        unfit = self._unfit_text(text)
        if unfit is not None:
            return unfit
        narrowed = [value for name, value in call.headers if name == SUB_SCOPE_HEADER]
        scope = digest_of((*self._shared_by, identity, narrowed))
        group = digest_of(
            (
                scope,
                call.method,
                call.path,
                call.query,
                significant_headers(call, self._headers_read),
                self._context,
                self._kept(messages[:last]),
                placeholder,
                messages[last + 1 :],
                fields_in_order(body, _NOT_ASKED | travel_fields(call)),
            )
        )
        return Question(scope, group, text)

    def learning_scope(self, call: Call) -> bytes:
        """Whose decision this call is part of: its tenant's, however narrow its scope, or everybody's."""
        tenant = "" if self._cache_scope == "global" else call.tenant
        known = self._learning.get(tenant)
        if known is None:
            known = self._learning[tenant] = digest_of((*self._shared_by, self._cache_scope, tenant, self._decision))
        return known

    def _unfit_field(self, body: Mapping[str, Any]) -> Ineligible | None:
        if body.get("n") not in (None, 1):
            return Ineligible.CHOICES
        if body.get("logprobs") or body.get("top_logprobs"):
            return Ineligible.LOGPROBS
        if body.get("audio") is not None or body.get("modalities") not in (None, ["text"]):
            return Ineligible.MEDIA
        temperature = body.get("temperature")
        if (_DEFAULT_TEMPERATURE if temperature is None else temperature) > self._max_temperature:
            return Ineligible.TEMPERATURE
        return None

    def _unfit_text(self, text: str) -> Ineligible | None:
        if len(text) > _LONGEST_TEXT:
            return Ineligible.TOO_LONG
        # A word is a token at least and a token a letter at least, so most texts need not be taken apart for this.
        if len(text) > _MAX_TOKENS or len(text.split()) < _MIN_TOKENS:
            num_tokens = estimate_tokens(text)
            if num_tokens < _MIN_TOKENS:
                return Ineligible.TOO_SHORT
            if num_tokens > _MAX_TOKENS:
                return Ineligible.TOO_LONG
        if self._leaves_volatile and self._is_volatile(text):
            return Ineligible.VOLATILE
        if _MAY_BE_PERSONAL.search(text) is not None and _PERSONAL.search(text) is not None:
            return Ineligible.PERSONAL
        return None

    def ttl_s(self, text: str) -> float:
        """How long an answer to a question of that text may be served, in seconds."""
        return self._volatile_ttl_s if self._is_volatile(text) else self._ttl_s

    def _is_volatile(self, text: str) -> bool:
        return self._volatile is not None and self._volatile.search(text) is not None

    def _kept(self, before: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        """What of the conversation before the question an answer depends on, as the route says."""
        if self._context == "full":
            return before
        start = len(before)
        if self._context == "last_k_turns":
            starts = [at for at, message in enumerate(before) if message.get("role") == "user"]
            start = starts[-self._num_turns] if len(starts) >= self._num_turns else 0
        instructions = [message for message in before[:start] if message.get("role") in ("system", "developer")]
        rest = before[start:]
        return [*instructions, *rest]


def estimate_tokens(text: str) -> int:
    """About how many tokens a text has: a word of up to six letters one, a letter of other scripts half a one."""
    return sum((len(run) + 5) // 6 if run.isascii() else (len(run) + 1) // 2 for run in _RUN.findall(text))


def _any_of(words: Sequence[str]) -> re.Pattern[str] | None:
    if not words:
        return None
    return re.compile(rf"(?<!\w)(?:{'|'.join(re.escape(word) for word in words)})(?!\w)", re.IGNORECASE)


def _has_media(message: Mapping[str, Any]) -> bool:
    content = message.get("content")
    return isinstance(content, list) and not all(
        isinstance(part, dict) and part.get("type") in ("text", "refusal") for part in content
    )


def _without_text(message: Mapping[str, Any]) -> tuple[str, list[object]] | None:
    """The text of a user's message, and the message with a place for it; of several parts the last one is the text.

    No two messages that differ in anything but the text have the same place: it says which part it was.
    """
    content = message.get("content")
    rest = {name: value for name, value in message.items() if name != "content"}
    if isinstance(content, str):
        return content, [rest]
    if not isinstance(content, list) or not content:
        return None
    *others, last = content
    text = last.get("text")
    if not isinstance(text, str):
        return None
    return text, [rest, others, {name: value for name, value in last.items() if name != "text"}]
