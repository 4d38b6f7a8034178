"""Which calls pass to a backend without being understood here, and what they cost: deny by default, but for a list."""

from __future__ import annotations

import re
from collections.abc import Callable
from fnmatch import translate

from backends.operations import Metering, Terms
from policies.matching.conditions import below_root
from policies.objects.names import COLLECTIONS
from policies.passthrough.metering import terms_of
from policies.passthrough.paths import plainest
from policies.passthrough.settings import PassthroughPolicy, pico_of_call

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"})
"""The only methods that ever pass."""

API_ROOTS = frozenset(
    {
        *("assistants", "audio", "batches", "chat", "classify", "completions", "containers", "conversations"),
        *("detokenize", "embeddings", "evals", "files", "fine_tuning", "images", "messages", "models", "moderations"),
        *("organization", "pooling", "realtime", "rerank", "responses", "score", "threads", "tokenize", "uploads"),
        *("vector_stores", "videos"),
    }
)
"""First segments of the API's paths; also where a client leaves `/v1` out."""

WITHOUT_STATE = (
    *("POST /audio/transcriptions", "POST /audio/translations", "POST /audio/speech"),
    *("POST /images/generations", "POST /images/edits", "POST /images/variations", "POST /moderations"),
    *("POST /rerank", "POST /score", "POST /classify", "POST /pooling", "POST /tokenize", "POST /detokenize"),
    *("POST /messages", "POST /messages/count_tokens", "POST /responses/compact", "POST /responses/input_tokens"),
    "POST /chat/completions/batch",
)
"""Part of `defaults`: an answer to what is sent, and nothing kept."""

_KEPT = ("/chat/completions", "/responses")
"""Collections whose objects are made by calls that the gateway understands."""
_OF_OBJECTS = (
    *(f"POST {collection}" for collection in COLLECTIONS if collection not in _KEPT),
    "POST /threads/runs",
    *(f"{method} {collection}/?*" for collection in COLLECTIONS for method in ("GET", "POST", "DELETE")),
)
_LISTS = tuple(f"GET {collection}" for collection in COLLECTIONS)
"""What an upstream keeps of everybody: part of `defaults` only where everybody is one tenant."""


class PassRules:
    """One route's list, compiled when it is first asked."""

    def __init__(self, policy: PassthroughPolicy, *, is_shared: bool) -> None:
        """`is_shared`: the policy knows several tenants."""
        self.is_shared = is_shared
        self.objects_are_owned = is_shared and policy.objects == "owned"
        patterns = [pattern for pattern in policy.allow if pattern != "defaults"]
        if len(patterns) < len(policy.allow):
            patterns += [*WITHOUT_STATE, *_OF_OBJECTS, *(() if is_shared else _LISTS)]
        self._patterns = patterns
        self._match: Callable[[str], object] | None = None
        self._flat = [
            (re.compile(translate(_plain_pattern(pattern))).match, Terms(Metering.FLAT, pico_of_call(dollars)))
            for pattern, dollars in policy.flat_usd.items()
        ]

    def allows(self, method: str, path: str) -> bool:
        """Whether such a call passes; `path` is below the API root and decoded. HEAD is as good as GET."""
        if self._match is None:
            # Milliseconds, which only routes pay for on which something has passed.
            self._match = re.compile("|".join(map(_regex, self._patterns)) or r"(?!)").match
        return self._match(f"{'GET' if method == 'HEAD' else method} {path}") is not None

    def terms(self, method: str, path: str) -> Terms:
        """How such a call is charged, in whatever spelling; `path` as for `allows`."""
        path = plainest(path)
        if self._flat:
            call = f"{'GET' if method == 'HEAD' else method} {path}"
            for fits, terms in self._flat:
                if fits(call):
                    return terms
        return terms_of(method, path, is_known=is_api_path(path))


def is_api_path(path: str) -> bool:
    """Whether a path below the API root is known to be the API's, whoever may use it."""
    return path.lstrip("/").partition("/")[0].lower() in API_ROOTS


def _plain_pattern(pattern: str) -> str:
    method, _, path = pattern.partition(" ")
    return f"{method} {plainest(path)}"


def _regex(pattern: str) -> str:
    if pattern == "*":
        return ".*"
    method, _, path = pattern.rpartition(" ")
    return translate(" ".join((method or "*", below_root(path))))
