"""How long a step of a continuous-batching replica takes, depending on its content."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReplicaStepTime:
    """Seconds of a step = base + max(weights, linear + token x tokens) + attention + sequence x sequences.

    Attention is `prefill_attention_s` for each pair of a new token and a token before it, and `decode_context_s` for
    each token in the context of a sequence that decodes. The defaults describe an 8B model in bf16 on an H200: the
    linear part is fitted to measured operator times of an H100 and scaled, the rest is derived, not measured.
    """

    base_s: float = 1.5e-3
    weights_s: float = 4.6e-3
    linear_s: float = 3.0e-3
    token_s: float = 20.1e-6
    prefill_attention_s: float = 0.953e-9
    decode_context_s: float = 35.4e-9
    sequence_s: float = 6e-6
    host_token_s: float = 2.6e-6
    """Copying one token's keys and values from the host tier."""
    speed: float = 1.0
    """Divides every time: 0.5 is a replica at half speed."""

    def flat_s(self, num_tokens: int, num_sequences: int) -> float:
        """Seconds of a step without its attention."""
        compute_s = self.linear_s + self.token_s * num_tokens
        forward_s = self.weights_s if self.weights_s > compute_s else compute_s
        return (self.base_s + forward_s + self.sequence_s * num_sequences) / self.speed

    def prefill_s(self, num_new: int, num_before: int) -> float:
        """Seconds of attention of `num_new` prompt tokens after `num_before` others."""
        return self.prefill_attention_s * num_new * (num_before + num_new / 2) / self.speed

    def decode_s(self, context: int) -> float:
        """Seconds of attention of decoding sequences whose contexts sum to `context` tokens."""
        return self.decode_context_s * context / self.speed

    def first_token_s(self, prompt_tokens: int, chunk_tokens: int) -> float:
        """Seconds to the first token of a prompt that an idle replica without a cached prefix gets."""
        num_full, rest = divmod(prompt_tokens, chunk_tokens)
        sizes = [chunk_tokens] * num_full + ([rest] if rest else [])
        return sum(self.flat_s(size, 1) for size in sizes) + self.prefill_s(prompt_tokens, 0)

    def token_gap_s(self, prompt_tokens: int) -> float:
        """Seconds between the first and the second token of a request that is alone."""
        return self.flat_s(1, 1) + self.decode_s(prompt_tokens + 1)
