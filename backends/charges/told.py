"""What an upstream tells of the tokens that it used, in OpenAI's words and others for the same, as far as believed."""

from __future__ import annotations

import msgspec

from backends.charges.usage import Usage
from backends.untrusted import Count


class _WriteDetails(msgspec.Struct):
    ttl_12h_tokens: Count = 0


class _PromptDetails(msgspec.Struct):
    """`cache_creation_input_tokens` is Qwen's word for `cache_write_tokens`."""

    cached_tokens: Count | None = None
    cache_write_tokens: Count | None = None
    cache_creation_input_tokens: Count | None = None
    cache_write_tokens_details: _WriteDetails | None = None
    audio_tokens: Count | None = None
    image_tokens: Count | None = None


class _CompletionDetails(msgspec.Struct):
    reasoning_tokens: Count | None = None
    audio_tokens: Count | None = None
    image_tokens: Count | None = None
    accepted_prediction_tokens: Count | None = None
    rejected_prediction_tokens: Count | None = None


_NO_PROMPT_DETAILS = _PromptDetails()
_NO_COMPLETION_DETAILS = _CompletionDetails()


class UpstreamUsage(msgspec.Struct):
    """OpenAI's usage object, in the words of chat (`prompt_tokens`) and of responses (`input_tokens`).

    Transcriptions have `input_token_details`. `prompt_cache_hit_tokens` is DeepSeek's word and `cached_tokens`
    Moonshot's, for what others say in the details.
    """

    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None
    input_tokens: Count | None = None
    output_tokens: Count | None = None
    total_tokens: Count | None = None
    prompt_tokens_details: _PromptDetails | None = None
    completion_tokens_details: _CompletionDetails | None = None
    input_tokens_details: _PromptDetails | None = None
    input_token_details: _PromptDetails | None = None
    output_tokens_details: _CompletionDetails | None = None
    prompt_cache_hit_tokens: Count | None = None
    cached_tokens: Count | None = None

    def counted(self, service_tier: str | None = None) -> Usage:
        """The same in the gateway's own words."""
        read = self.prompt_tokens_details or self.input_tokens_details or self.input_token_details
        read = read or _NO_PROMPT_DETAILS
        written = self.completion_tokens_details or self.output_tokens_details or _NO_COMPLETION_DETAILS
        prompt = self.prompt_tokens or self.input_tokens or 0
        completion = self.completion_tokens or self.output_tokens or 0
        reasoning = written.reasoning_tokens or 0
        cached = read.cached_tokens or self.prompt_cache_hit_tokens or self.cached_tokens or 0
        kept = read.cache_write_tokens or read.cache_creation_input_tokens or 0
        kept_long = read.cache_write_tokens_details.ttl_12h_tokens if read.cache_write_tokens_details else 0
        kept_long = min(kept, kept_long)
        if self.total_tokens is not None and self.total_tokens > prompt + completion and not self.lacks_output:
            beyond = self.total_tokens - prompt - completion
            if not prompt or beyond == cached + kept:
                # Some in front of Claude count what is kept of a prompt beside it.
                prompt += beyond
            else:
                # xAI counts what nobody sees beside the answer, and Gemini counts it in the total alone; it is paid as
                # a part of the answer.
                completion += beyond
                reasoning = max(reasoning, beyond)
        return Usage(
            prompt,
            completion,
            cached,
            kept - kept_long,
            kept_long,
            read.audio_tokens or 0,
            read.image_tokens or 0,
            reasoning,
            written.audio_tokens or 0,
            written.image_tokens or 0,
            written.accepted_prediction_tokens or 0,
            written.rejected_prediction_tokens or 0,
            service_tier or "",
        ).bounded()

    def told(self, service_tier: str | None = None) -> Usage | None:
        """The same; None where nothing of it can be believed, or it counts nothing: a model has worked all the same."""
        usage = self.counted(service_tier)
        return usage if usage.prompt_tokens or usage.completion_tokens else None

    @property
    def lacks_output(self) -> bool:
        """Whether it does not tell how long the answer is, or nothing that can be believed."""
        return self.completion_tokens is None and self.output_tokens is None
