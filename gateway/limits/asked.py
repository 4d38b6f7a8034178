"""What a request asks for, read off it before it is sent: how many tokens, and what it can come to at most."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from backends.charges.usage import MAX_TIER_CHARS, tier_asked
from backends.operations import Metering, Operation, Terms
from backends.prompts.size import tokens_of_body
from gateway.runtime import Stack
from policies.limits.worst import (
    USUAL_MOST_TOKENS,
    is_more_than_text,
    is_plain,
    most_output,
    refers_elsewhere,
    unmetered_part,
)

_LEAST_BYTES_PER_TOKEN = 2
"""Of texts that tokenizers know badly; a budget is asked for what a call costs at most."""
_MOST_OUTPUT_TOKENS = 10_000_000
"""Of all answers to a call: servers write fewer in the time that calls have. Who asks for a billion holds no more of a
budget that others need too, until the upstream has refused it."""
_MOST_UNSEEN_TOKENS = 200_000
"""Of pictures, files and earlier answers in a prompt: what fits the context of most models."""
_EMBEDDING = Operation.EMBEDDING
"""A class of an enumeration takes ten times as long to find it."""


class Asked(msgspec.Struct, frozen=True, gc=False):
    """As far as limits and budgets depend on it."""

    num_bytes: int
    prompt_tokens: int
    """About so many; none of what only passes and is not metered, such as files."""
    most_output_tokens: int
    """Of all answers together."""
    unmetered: str = ""
    """What of it no answer tells the cost of; empty where its answer tells all that it costs."""
    cost: int | None = None
    """Pico-dollars, where it costs that whatever its answer tells."""
    refers_elsewhere: bool = False
    """Whether its prompt may be longer than its bytes say."""
    service_tier: str = ""

    def most(self, stack: Stack, model: str) -> int | None:
        """Pico-dollars that it costs at most, whoever of a stack answers it; None where nobody knows."""
        if self.cost is not None or self.unmetered:
            return self.cost
        prompt_tokens = self.num_bytes // _LEAST_BYTES_PER_TOKEN
        if self.refers_elsewhere:
            prompt_tokens += _MOST_UNSEEN_TOKENS
        worst = 0
        output_tokens, tier = self.most_output_tokens, self.service_tier
        for price in stack.pool.prices_of(model):
            if price is None:
                return None
            most = price.most(prompt_tokens, output_tokens, 1, tier)
            if most is None:
                return None
            if most > worst:
                worst = most
        for below in stack.below:
            most_below = self.most(below, model)
            if most_below is None:
                return None
            worst = max(worst, most_below)
        return worst

    def unknown(self) -> str:
        """Why nobody knows what it costs, where that is so."""
        tier = f" as {self.service_tier[:MAX_TIER_CHARS]}" if self.service_tier else ""
        return self.unmetered or f"no price for this model{tier}"


def asked_of(operation: Operation, body: Mapping[str, Any] | None, raw: bytes, terms: Terms | None = None) -> Asked:
    """What a request asks for; its body is None where it cannot be read. `terms`: of one that only passes through."""
    if terms is None and body is not None and is_plain(body):
        has_output = operation is not _EMBEDDING
        tokens = USUAL_MOST_TOKENS if has_output else 0
        refers = has_output and is_more_than_text(body)
        return Asked(len(raw), tokens_of_body(raw), tokens, "", None, refers)
    most = most_output(body, operation)
    tokens = USUAL_MOST_TOKENS if most.tokens is None else most.tokens
    is_metered, cost = bool(operation.traits.prompt), None
    if terms is not None:
        # Of what cannot be read nobody knows how much it asks for.
        is_metered = terms.metering is Metering.METERED and body is not None
        tokens = tokens if terms.writes_text else 0
        if terms.metering is Metering.FLAT:
            cost = terms.flat_cost
        elif terms.metering is Metering.FREE:
            # The least that there is, so that with a spent budget nothing begins.
            cost = 0 if terms.is_reading else 1
    if is_metered:
        unmetered = unmetered_part(body, operation) or ""
    else:
        unmetered = "what only passes and nobody meters" if body is not None else "a body that is not read"
    return Asked(
        len(raw),
        tokens_of_body(raw) if is_metered else 0,
        min(tokens * most.choices * most.prompts, _MOST_OUTPUT_TOKENS),
        unmetered,
        cost,
        refers_elsewhere(body, operation),
        tier_asked(body),
    )
