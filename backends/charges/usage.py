"""The tokens of one answer, by kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

MAX_TIER_CHARS = 32
"""No name of a service tier is longer."""


class Usage(msgspec.Struct, frozen=True, omit_defaults=True):
    """Tokens of one answer as the upstream counted them.

    What is `cached` or `written` (to be kept by the provider, for minutes or for an hour and more) and the
    `*_input_tokens` are parts of the prompt; `reasoning` and the `*_output_tokens` are parts of the completion. No
    token is in two parts. `*_prediction_tokens` are no part of either. `service_tier` is the upstream's word for how
    the answer was made.
    """

    # These three are in the log even where they are 0, which a plain default would not be.
    prompt_tokens: int = msgspec.field(default_factory=int)
    completion_tokens: int = msgspec.field(default_factory=int)
    cached_tokens: int = msgspec.field(default_factory=int)
    written_5m_tokens: int = 0
    written_1h_tokens: int = 0
    audio_input_tokens: int = 0
    image_input_tokens: int = 0
    reasoning_tokens: int = 0
    audio_output_tokens: int = 0
    image_output_tokens: int = 0
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0
    service_tier: str = ""

    def bounded(self) -> Usage:
        """The same with parts that are no more than the whole: each as far as those before it have left something."""
        of_prompt = self.cached_tokens + self.written_5m_tokens + self.written_1h_tokens
        of_prompt += self.audio_input_tokens + self.image_input_tokens
        of_completion = self.reasoning_tokens + self.audio_output_tokens + self.image_output_tokens
        if of_prompt <= self.prompt_tokens and of_completion <= self.completion_tokens:
            return self
        parts = {}
        for names, left in ((_OF_PROMPT, self.prompt_tokens), (_OF_COMPLETION, self.completion_tokens)):
            for name in names:
                parts[name] = min(getattr(self, name), left)
                left -= parts[name]
        return msgspec.structs.replace(self, **parts)

    def mapped(self, change: Callable[[int], int]) -> Usage:
        """The same with every count changed."""
        return msgspec.structs.replace(self, **{name: change(getattr(self, name)) for name in _COUNTS})

    def with_later(self, later: Usage) -> Usage:
        """What an answer has used that tells of it more than once, of `later` last.

        Those that tell while they are written (vLLM's `continuous_usage_stats`) count from the beginning each time, so
        the last is right. But an answer only grows: a last one that tells less, whether by mistake or as a lie, makes
        nothing cheaper. Prompt and answer each count as they were told of when that was most, with their parts.
        """
        keeps_prompt = later.prompt_tokens < self.prompt_tokens
        keeps_completion = later.completion_tokens < self.completion_tokens
        if not (keeps_prompt or keeps_completion):
            return later
        kept = (PROMPT_FIELDS if keeps_prompt else ()) + (_COMPLETION_FIELDS if keeps_completion else ())
        return msgspec.structs.replace(later, **{name: getattr(self, name) for name in kept})

    def __add__(self, other: Usage) -> Usage:
        """Of both, in the tier of the second."""
        return msgspec.structs.replace(other, **{name: getattr(self, name) + getattr(other, name) for name in _COUNTS})


STANDARD_TIERS = frozenset({"", "auto", "default", "standard", "standard_only"})
"""What providers call the service tier that costs the usual price."""

FAST, HOME_ONLY, FAST_AT_HOME = "fast", "us", "fast-us"
"""What haste, work in one place only, and both are called where they have a price. Of Anthropic's Messages API none of
them is a service tier, but they cost as one would."""

_COUNTS = Usage.__struct_fields__[:-1]
_OF_PROMPT = ("cached_tokens", "written_5m_tokens", "written_1h_tokens", "audio_input_tokens", "image_input_tokens")
_OF_COMPLETION = ("reasoning_tokens", "audio_output_tokens", "image_output_tokens")
PROMPT_FIELDS = ("prompt_tokens", *_OF_PROMPT)
"""Of a usage, those that count what was read."""
_COMPLETION_FIELDS = (
    *("completion_tokens", *_OF_COMPLETION),
    *("accepted_prediction_tokens", "rejected_prediction_tokens"),
)


def most_told(before: Usage | None, later: Usage) -> Usage:
    """What an answer has used by now that has told of it before, or not yet: as `Usage.with_later`."""
    return later if before is None else before.with_later(later)


def tier_asked(body: Mapping[str, Any] | None) -> str:
    """The service tier that the body of a call asks for, or what its asking for one place costs as; empty where it
    names none.
    """
    if body is None:
        return ""
    tier = body.get("service_tier")
    named = tier if isinstance(tier, str) else ""
    return HOME_ONLY if body.get("inference_geo") == HOME_ONLY and named in STANDARD_TIERS else named
