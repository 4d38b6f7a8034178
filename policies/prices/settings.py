"""The part of the policy file that says what a backend takes; `policies/schema.py` has the rest."""

from __future__ import annotations

from decimal import ROUND_HALF_EVEN, Decimal
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from backends.charges.usage import STANDARD_TIERS
from backends.config import Config
from policies.prices.price import LongContext, Price, Tariff, TokenRates, named_price

_PICO_PER_TOKEN = 10**6
"""A dollar for a million tokens is a millionth of a dollar for each."""
_PICO_PER_DOLLAR = 10**12


def pico_per_token(per_1m: float) -> int:
    """What a token costs of which a million cost so much. Raises: ValueError where that is no whole number."""
    # As it is written, in the fewest digits that mean this number: 0.1 and not what binary makes of it.
    pico = Decimal(repr(per_1m)) * _PICO_PER_TOKEN
    if pico != int(pico):
        raise ValueError("a price for a million tokens has at most six decimals")
    return int(pico)


def _exact(per_1m: float) -> float:
    pico_per_token(per_1m)
    return per_1m


def _exact_request(dollars: float) -> float:
    if Decimal(repr(dollars)) * _PICO_PER_DOLLAR % 1:
        raise ValueError("a price for a request has at most twelve decimals")
    return dollars


def _rounded(pico: Decimal) -> int:
    """Whole already in dollars; in other currencies the price of a token is rounded once, and then exact."""
    return int(pico.to_integral_value(ROUND_HALF_EVEN))


Per1M = Annotated[float, Field(ge=0, le=1e6), AfterValidator(_exact)]
"""For a million tokens."""


class RatesPolicy(Config):
    """What a token costs, by its kind, for a million of them. A kind without a price costs what its parent costs."""

    input_per_1m: Per1M = Field(description="For a million tokens of prompts.")
    output_per_1m: Per1M = Field(description="For a million tokens of answers.")
    cached_input_per_1m: Per1M | None = Field(
        None, description="For tokens of prompts that the provider had kept; without it `input_per_1m`."
    )
    cache_write_5m_per_1m: Per1M | None = Field(
        None, description="For tokens of prompts that it is to keep for minutes; without it `input_per_1m`."
    )
    cache_write_1h_per_1m: Per1M | None = Field(
        None, description="For those that it is to keep for an hour or more; without it `cache_write_5m_per_1m`."
    )
    audio_input_per_1m: Per1M | None = Field(
        None, description="For tokens of sound in prompts; without it `input_per_1m`."
    )
    image_input_per_1m: Per1M | None = Field(
        None, description="For tokens of pictures in prompts; without it `input_per_1m`."
    )
    reasoning_per_1m: Per1M | None = Field(
        None, description="For tokens that a model thinks before it answers; without it `output_per_1m`."
    )
    audio_output_per_1m: Per1M | None = Field(
        None, description="For tokens of sound in answers; without it `output_per_1m`."
    )
    image_output_per_1m: Per1M | None = Field(
        None, description="For tokens of pictures in answers; without it `output_per_1m`."
    )
    per_request: Annotated[float, Field(ge=0, le=1e6), AfterValidator(_exact_request)] = Field(
        0.0, description="For each request, whatever it holds."
    )

    def rates(self, usd: Decimal) -> TokenRates:
        """The same in pico-dollars, each kind with its price. `usd`: what one of the currency is in dollars."""

        def pico(per_1m: float | None, parent: int) -> int:
            return parent if per_1m is None else _rounded(pico_per_token(per_1m) * usd)

        read, written = pico(self.input_per_1m, 0), pico(self.output_per_1m, 0)
        write_5m = pico(self.cache_write_5m_per_1m, read)
        return TokenRates(
            input=read,
            cached_input=pico(self.cached_input_per_1m, read),
            cache_write_5m=write_5m,
            cache_write_1h=pico(self.cache_write_1h_per_1m, write_5m),
            audio_input=pico(self.audio_input_per_1m, read),
            image_input=pico(self.image_input_per_1m, read),
            output=written,
            reasoning=pico(self.reasoning_per_1m, written),
            audio_output=pico(self.audio_output_per_1m, written),
            image_output=pico(self.image_output_per_1m, written),
            request=_rounded(Decimal(repr(self.per_request)) * _PICO_PER_DOLLAR * usd),
        )


class LongContextPolicy(RatesPolicy):
    """Rates of long prompts: once a prompt has more tokens, all of them cost these, and so does the answer."""

    above_tokens: int = Field(ge=1, le=10**9, description="The longest prompt that the usual rates are for.")


class TariffPolicy(RatesPolicy):
    """Rates by kind, and others for long prompts."""

    long_context: tuple[LongContextPolicy, ...] = Field(
        (), description="Rates of prompts above a length, in the order of the lengths."
    )

    @field_validator("long_context", mode="before")
    @classmethod
    def _as_tuple(cls, value: object) -> object:
        """A backend's section comes by way of Python, where strict checks take no list for a tuple."""
        return tuple(value) if isinstance(value, list) else value

    @field_validator("long_context")
    @classmethod
    def _is_in_order(cls, value: tuple[LongContextPolicy, ...]) -> tuple[LongContextPolicy, ...]:
        lengths = [each.above_tokens for each in value]
        if lengths != sorted(set(lengths)):
            raise ValueError("each `above_tokens` must be more than the one before")
        return value

    def tariff(self, usd: Decimal) -> Tariff:
        """The same, exactly."""
        long = tuple(LongContext(each.above_tokens, each.rates(usd)) for each in self.long_context)
        return Tariff(self.rates(usd), long)


class PricePolicy(TariffPolicy):
    """What a backend takes, in the currency of `prices`: dollars, unless that names another."""

    service_tiers: dict[Annotated[str, Field(min_length=1, max_length=32)], TariffPolicy] = Field(
        {},
        description="Prices of service tiers, by the name that the provider's answers give them (`flex`, `priority`). "
        "A tier without a price costs the standard; `fast` and `ultrafast` what the dearest of them comes to.",
    )
    batch: TariffPolicy | None = Field(
        None,
        description="Prices of what the provider's Batch API answers; without it `batch.discount` off these prices.",
    )

    @model_validator(mode="after")
    def _names_no_standard_tier(self) -> Self:
        for name in STANDARD_TIERS & self.service_tiers.keys():
            raise ValueError(f"service tier `{name}` is what the prices beside `service_tiers` are for")
        return self

    def exact(self, source: str, usd: Decimal = Decimal(1)) -> Price:
        """The same for each token. `source`: whose price it is; `usd`: what one of the currency is in dollars."""
        return named_price(
            source,
            self.tariff(usd),
            {name: each.tariff(usd) for name, each in self.service_tiers.items()},
            self.batch.tariff(usd) if self.batch is not None else None,
        )


# fmt: off
Currency = Literal[
    "USD", "AUD", "BRL", "CAD", "CHF", "CNY", "CZK", "DKK", "EUR", "GBP",
    "HKD", "INR", "JPY", "KRW", "NOK", "NZD", "PLN", "SEK", "SGD", "TWD",
]
# fmt: on


class PricesPolicy(Config):
    """Where prices come from that neither a route nor a backend names."""

    source: Literal["genai-prices", "none"] = Field(
        "genai-prices",
        description="`genai-prices`: list prices of the package of that name, for backends whose provider it knows by "
        "their `base_url`. `none`: only what the policy names.",
    )
    currency: Currency = Field("USD", description="Of every `price` in this file. The ledger is in dollars.")
    usd_per_unit: float | None = Field(
        None, gt=0, le=1000, description="What one of `currency` is in dollars; needed where that is another one."
    )

    @model_validator(mode="after")
    def _can_be_changed(self) -> Self:
        if (self.currency == "USD") != (self.usd_per_unit is None):
            raise ValueError("`usd_per_unit` goes with a `currency` other than USD, and such a one needs it")
        return self

    @property
    def usd(self) -> Decimal:
        """What one of the currency is in dollars."""
        return Decimal(1) if self.usd_per_unit is None else Decimal(repr(self.usd_per_unit))
