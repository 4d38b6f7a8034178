"""What tokens cost, in whole pico-dollars: no sum of prices is rounded, however many there are."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from hashlib import blake2b

import msgspec

from backends.charges.usage import FAST, FAST_AT_HOME, HOME_ONLY, Usage

PICO_PER_DOLLAR = 10**12

_PRIORITY_TIERS = ("priority", "fast")
"""Two names of one tier of OpenAI's: asked for by either, newer models answer with the second, older ones the first."""
_SURELY_DEARER_TIERS = frozenset({FAST, "ultrafast", HOME_ONLY, FAST_AT_HOME})
"""They cost more than the standard wherever they are sold, as haste does, and a model that has to work in one place
(`us`). `priority` may be paid beforehand, as Anthropic's is."""
_WITHOUT_PLACE = {HOME_ONLY: "", FAST_AT_HOME: FAST}
"""Tiers of one place, and those of the same elsewhere."""
_DEARER_TIERS = _SURELY_DEARER_TIERS.union(_PRIORITY_TIERS)


class TokenRates(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """Pico-dollars (1e-12) for a token, by its kind, and for a request whatever it holds."""

    input: int
    cached_input: int
    cache_write_5m: int
    cache_write_1h: int
    audio_input: int
    image_input: int
    output: int
    reasoning: int
    audio_output: int
    image_output: int
    request: int = 0

    def amount(self, usage: Usage) -> int:
        """For a usage whose parts are not more than what they are parts of."""
        parts_of_prompt = usage.cached_tokens * (self.cached_input - self.input)
        if usage.written_5m_tokens or usage.written_1h_tokens:
            parts_of_prompt += usage.written_5m_tokens * (self.cache_write_5m - self.input)
            parts_of_prompt += usage.written_1h_tokens * (self.cache_write_1h - self.input)
        if usage.audio_input_tokens or usage.image_input_tokens:
            parts_of_prompt += usage.audio_input_tokens * (self.audio_input - self.input)
            parts_of_prompt += usage.image_input_tokens * (self.image_input - self.input)
        parts_of_completion = usage.reasoning_tokens * (self.reasoning - self.output)
        if usage.audio_output_tokens or usage.image_output_tokens:
            parts_of_completion += usage.audio_output_tokens * (self.audio_output - self.output)
            parts_of_completion += usage.image_output_tokens * (self.image_output - self.output)
        whole = usage.prompt_tokens * self.input + usage.completion_tokens * self.output + self.request
        return whole + parts_of_prompt + parts_of_completion

    def most(self, prompt_tokens: int, output_tokens: int) -> int:
        """For so many tokens, each of the dearest kind that a prompt can have, or an answer."""
        dearest_input, dearest_output = self._dearest
        return prompt_tokens * dearest_input + output_tokens * dearest_output + self.request

    @cached_property
    def _dearest(self) -> tuple[int, int]:
        of_prompt = (
            *(self.input, self.cached_input, self.cache_write_5m, self.cache_write_1h),
            *(self.audio_input, self.image_input),
        )
        return max(of_prompt), max(self.output, self.reasoning, self.audio_output, self.image_output)


class LongContext(msgspec.Struct, frozen=True):
    """A prompt of more than `above_tokens` costs other rates, for all its tokens and all those of the answer."""

    above_tokens: int
    rates: TokenRates


class Tariff(msgspec.Struct, frozen=True):
    """Rates by the length of the prompt. `long_contexts` are in the order of their thresholds."""

    rates: TokenRates
    long_contexts: tuple[LongContext, ...] = ()

    def at(self, prompt_tokens: int) -> TokenRates:
        """Those of a prompt of that length."""
        found = self.rates
        for each in self.long_contexts:
            if prompt_tokens > each.above_tokens:
                found = each.rates
        return found

    def most(self, prompt_tokens: int, output_tokens: int) -> int:
        """The most that a call can come to whose prompt and answers have no more tokens."""
        most = self.rates.most(prompt_tokens, output_tokens)
        for each in self.long_contexts:
            if prompt_tokens > each.above_tokens:
                most = max(most, each.rates.most(prompt_tokens, output_tokens))
        return most


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """What a backend takes for a model; `named_price` makes one. `source` says who says so: `route`, `backend`.

    `name` is the source with a digest, so that two prices have one name only where they are the same. A service tier
    that is not among `tiers` costs the standard; `batch` is for what a provider's Batch API answers, None where that
    has no price of its own.
    """

    name: str
    source: str
    standard: Tariff
    tiers: Mapping[str, Tariff] = {}
    batch: Tariff | None = None

    def amount(self, usage: Usage) -> int:
        """Pico-dollars for an attempt that used so much. A tier that is surely dearer, and has no price, costs what the
        dearest comes to; one place what it costs anywhere.
        """
        tier = usage.service_tier
        if not tier or not self.tiers:
            tariff = self.standard
        elif tier in self.tiers or tier not in _SURELY_DEARER_TIERS:
            tariff = self.tiers.get(tier, self.standard)
        elif tier in _WITHOUT_PLACE:
            return self.amount(msgspec.structs.replace(usage, service_tier=_WITHOUT_PLACE[tier]))
        else:
            tariffs = (self.standard, *self.tiers.values())
            return max(each.at(usage.prompt_tokens).amount(usage.bounded()) for each in tariffs)
        return tariff.at(usage.prompt_tokens).amount(usage.bounded())

    def knows(self, service_tier: str) -> bool:
        """Whether an amount in that tier is more than a guess."""
        return service_tier not in _SURELY_DEARER_TIERS or service_tier in self.tiers

    def batch_amount(self, usage: Usage) -> int:
        """The same for a line of a provider's batch."""
        return (self.batch or self.standard).at(usage.prompt_tokens).amount(usage.bounded())

    def most(self, prompt_tokens: int, output_tokens: int, choices: int = 1, service_tier: str = "") -> int | None:
        """The most that a call can come to: every token of the dearest kind, each of `choices` answers that long.

        `service_tier` is the one that the call asks for: a provider may give less than that, and charges less then.
        None where it is a dearer one and nobody knows what that costs.
        """
        output_tokens *= choices
        most = self.standard.most(prompt_tokens, output_tokens)
        return most if not service_tier else self._most_in(service_tier, prompt_tokens, output_tokens, most)

    def _most_in(self, service_tier: str, prompt_tokens: int, output_tokens: int, most: int) -> int | None:
        names = _PRIORITY_TIERS if service_tier in _PRIORITY_TIERS else (service_tier,)
        tariffs = [tariff for name in names if (tariff := self.tiers.get(name)) is not None]
        if not tariffs and service_tier in _DEARER_TIERS:
            return None
        return max([most, *(each.most(prompt_tokens, output_tokens) for each in tariffs)])

    def expected(self, tokens: int, uncached: int, output: float) -> float:
        """Pico-dollars of a prompt of `tokens`, all but `uncached` of them kept, with an answer of about so many."""
        rates = self.standard.at(tokens)
        return uncached * rates.input + (tokens - uncached) * rates.cached_input + output * rates.output


def named_price(
    source: str, standard: Tariff, tiers: Mapping[str, Tariff] | None = None, batch: Tariff | None = None
) -> Price:
    """A price with its name."""
    tiers = dict(sorted(tiers.items())) if tiers else {}
    digest = blake2b(msgspec.msgpack.encode((standard, tiers, batch)), digest_size=4).hexdigest()
    return Price(name=f"{source}:{digest}", source=source, standard=standard, tiers=tiers, batch=batch)


def per_token(input: int, output: int, cached_input: int | None = None) -> TokenRates:
    """Rates that tell apart no more than these kinds, in pico-dollars for a token."""
    return TokenRates(
        input=input,
        cached_input=input if cached_input is None else cached_input,
        cache_write_5m=input,
        cache_write_1h=input,
        audio_input=input,
        image_input=input,
        output=output,
        reasoning=output,
        audio_output=output,
        image_output=output,
    )
