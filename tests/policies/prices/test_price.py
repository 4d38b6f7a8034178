"""Prices are exact: what a call costs is what the table says, to the last of twelve decimals."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from backends.charges.charge import Charge
from backends.charges.usage import Usage
from policies.prices.price import PICO_PER_DOLLAR
from policies.prices.settings import PricePolicy, pico_per_token
from tests.support.policies import parse

PER_1M = st.decimals(0, 10**4, places=6)
TOKENS = st.integers(0, 10**7)
KINDS = {
    "cached_tokens": ("cached_input_per_1m", "input_per_1m"),
    "written_5m_tokens": ("cache_write_5m_per_1m", "input_per_1m"),
    "written_1h_tokens": ("cache_write_1h_per_1m", "cache_write_5m_per_1m"),
    "audio_input_tokens": ("audio_input_per_1m", "input_per_1m"),
    "image_input_tokens": ("image_input_per_1m", "input_per_1m"),
    "reasoning_tokens": ("reasoning_per_1m", "output_per_1m"),
    "audio_output_tokens": ("audio_output_per_1m", "output_per_1m"),
    "image_output_tokens": ("image_output_per_1m", "output_per_1m"),
}
"""What a kind of token costs, and what where that has no price."""
OF_THE_PROMPT = tuple(KINDS)[:5]
OF_THE_ANSWER = tuple(KINDS)[5:]

RATES = st.fixed_dictionaries(
    {"input_per_1m": PER_1M, "output_per_1m": PER_1M}, optional={own: PER_1M for own, _ in KINDS.values()}
)
USAGES = st.builds(Usage, TOKENS, TOKENS, **{name: st.integers(0, 10**6) for name in KINDS}).map(Usage.bounded)


def _policy(rates: dict[str, Any], **more: Any) -> PricePolicy:
    """As a file says it."""
    return PricePolicy(**{name: float(rate) for name, rate in rates.items()}, **more)


def _by_hand(rates: dict[str, Decimal], usage: Usage) -> Decimal:
    """Dollars, token by token."""

    def rate(own: str) -> Decimal:
        if own in rates:
            return rates[own]
        return rate(next(parent for name, parent in KINDS.values() if name == own))

    text = usage.prompt_tokens - sum(getattr(usage, name) for name in OF_THE_PROMPT)
    said = usage.completion_tokens - sum(getattr(usage, name) for name in OF_THE_ANSWER)
    sums = sum((getattr(usage, name) * rate(own) for name, (own, _) in KINDS.items()), Decimal(0))
    return (sums + text * rates["input_per_1m"] + said * rates["output_per_1m"]) / 10**6


@given(rates=RATES, usage=USAGES)
def test_price_of_a_call_is_that_of_decimal_arithmetic(rates: dict[str, Decimal], usage: Usage) -> None:
    """Whatever kinds the file has prices for, and whatever the answer tells."""
    price = _policy(rates).exact("route")

    assert Decimal(price.amount(usage)) / PICO_PER_DOLLAR == _by_hand(rates, usage)


@given(
    rates=RATES,
    prompt=TOKENS,
    completion=TOKENS,
    told=st.fixed_dictionaries({name: st.integers(0, 10**9) for name in KINDS}),
)
def test_price_of_a_lie_about_parts_is_that_of_no_more_tokens_than_there_are(
    rates: dict[str, Decimal], prompt: int, completion: int, told: dict[str, int]
) -> None:
    """More kept, heard or thought than there was is neither paid back nor paid twice."""
    price = _policy(rates).exact("route")
    amount = price.amount(Usage(prompt, completion, **told))

    assert 0 <= amount <= price.most(prompt, completion)


@given(rates=RATES, long=RATES, usage=USAGES, above=st.integers(1, 10**7))
def test_price_of_a_long_prompt_is_the_other_one_for_every_token(
    rates: dict[str, Decimal], long: dict[str, Decimal], usage: Usage, above: int
) -> None:
    """A cliff: from the first token above the length, all of them, those of the answer too."""
    price = _policy(rates, long_context=[{"above_tokens": above, **long}]).exact("route")
    expected = _by_hand(long if usage.prompt_tokens > above else rates, usage)

    assert Decimal(price.amount(usage)) / PICO_PER_DOLLAR == expected
    assert price.amount(usage) <= price.most(usage.prompt_tokens, usage.completion_tokens)


def test_price_of_a_long_prompt_begins_behind_its_threshold() -> None:
    """A prompt of exactly that length is not long."""
    long = [{"above_tokens": 100, "input_per_1m": 2, "output_per_1m": 3}]
    price = PricePolicy(input_per_1m=1, output_per_1m=1, long_context=long).exact("route")

    assert price.amount(Usage(100, 10)) == 110 * 10**6
    assert price.amount(Usage(101, 10)) == (101 * 2 + 10 * 3) * 10**6


def test_price_of_a_service_tier_is_by_what_the_answer_says() -> None:
    """A tier without a price, like no tier, costs the standard."""
    price = PricePolicy(
        input_per_1m=2, output_per_1m=4, service_tiers={"flex": {"input_per_1m": 1, "output_per_1m": 2}}
    ).exact("backend")

    amounts = [price.amount(Usage(10, 10, service_tier=tier)) for tier in ("", "default", "flex", "scale")]

    assert amounts == [60_000_000, 60_000_000, 30_000_000, 60_000_000]
    assert price.most(10, 10, 3, service_tier="flex") == price.most(10, 10, 3) == (20 + 120) * 10**6


def test_price_of_haste_that_nobody_knows_is_no_standard_one() -> None:
    """It is the dearest that is known, marked as a guess, and whoever asks for it is told that nobody knows."""
    fast = {"priority": {"input_per_1m": 4, "output_per_1m": 8}}
    flat, with_fast = (
        PricePolicy(input_per_1m=2, output_per_1m=4, service_tiers=tiers).exact("backend") for tiers in ({}, fast)
    )

    assert [with_fast.amount(Usage(10, 10, service_tier=tier)) for tier in ("default", "fast", "ultrafast")] == [
        60 * 10**6,
        120 * 10**6,
        120 * 10**6,
    ]
    charges = [Charge("up", "m", with_fast) for _ in range(2)]
    for charge, tier in zip(charges, ("priority", "ultrafast"), strict=True):
        charge.settle(Usage(10, 10, service_tier=tier))
    assert [(charge.cost, charge.is_estimated) for charge in charges] == [(120 * 10**6, False), (120 * 10**6, True)]
    assert [flat.most(10, 10, service_tier=tier) for tier in ("flex", "priority", "fast", "ultrafast")] == [
        60 * 10**6,
        None,
        None,
        None,
    ]
    assert with_fast.most(10, 10, service_tier="fast") == 120 * 10**6
    assert with_fast.most(10, 10, service_tier="ultrafast") is None


def test_price_of_a_place_that_nobody_knows_is_that_of_anywhere_as_a_guess() -> None:
    """A place costs little more, and haste much: what is known of the one is no guess of the other."""
    fast = {"fast": {"input_per_1m": 12, "output_per_1m": 24}}
    price = PricePolicy(input_per_1m=2, output_per_1m=4, service_tiers=fast).exact("backend")

    amounts = [price.amount(Usage(10, 10, service_tier=tier)) for tier in ("us", "fast-us")]

    assert amounts == [60 * 10**6, 360 * 10**6]
    assert not price.knows("us")
    assert not price.knows("fast-us")


@given(rates=RATES, usage=USAGES, choices=st.integers(1, 8))
def test_price_most_is_never_less_than_a_call_comes_to(rates: dict[str, Decimal], usage: Usage, choices: int) -> None:
    """Whatever kinds its tokens turn out to be, and with a flat price for the request."""
    price = _policy(rates, per_request=0.25).exact("route")
    written = msgspec.structs.replace(usage, completion_tokens=usage.completion_tokens * choices)

    assert price.amount(written) <= price.most(usage.prompt_tokens, usage.completion_tokens, choices)


def test_price_of_kinds_without_their_own_is_their_parents() -> None:
    """0 is one of its own."""
    usual = PricePolicy(input_per_1m=3, output_per_1m=5).exact("route")
    free = PricePolicy(input_per_1m=3, output_per_1m=5, cached_input_per_1m=0).exact("route")
    kept = PricePolicy(input_per_1m=3, output_per_1m=5, cache_write_5m_per_1m=4).exact("route")

    assert usual.amount(Usage(1000, 20, 600)) == (1000 * 3 + 20 * 5) * 10**6
    assert free.amount(Usage(1000, 20, 600)) == (400 * 3 + 20 * 5) * 10**6
    assert kept.amount(Usage(10, 0, written_1h_tokens=10)) == 40 * 10**6
    assert usual.expected(1000, 400, 20.5) == (1000 * 3 + 20.5 * 5) * 10**6


def test_price_has_a_name_for_what_it_says() -> None:
    """The same only where all of it is the same, whoever reads the file again."""
    one, again, other = (
        PricePolicy(input_per_1m=rate, output_per_1m=1, service_tiers=tiers).exact("route")
        for rate, tiers in [(1, {}), (1.0, {}), (1, {"flex": {"input_per_1m": 1, "output_per_1m": 1}})]
    )

    assert one.name == again.name != other.name
    assert one.name.startswith("route:")


@pytest.mark.parametrize("per_1m", [0.1234567, 1e-7])
def test_price_that_is_no_whole_number_of_pico_dollars_is_refused(per_1m: float) -> None:
    """It could not be added up exactly."""
    with pytest.raises(ValueError, match="at most six decimals"):
        pico_per_token(per_1m)
    with pytest.raises(ValidationError, match="at most six decimals"):
        PricePolicy(input_per_1m=per_1m, output_per_1m=1)


@pytest.mark.parametrize("place", ["route", "backend"])
def test_a_price_may_stand_with_the_route_or_with_the_backend(place: str) -> None:
    """With everything that a price may have, read from YAML."""
    price = """
        input_per_1m: 1
        output_per_1m: 2
        long_context: [{above_tokens: 9, input_per_1m: 2, output_per_1m: 3}]
        service_tiers:
          flex:
            input_per_1m: 0.5
            output_per_1m: 1
            long_context: [{above_tokens: 9, input_per_1m: 1, output_per_1m: 1}]
        batch: {input_per_1m: 0.5, output_per_1m: 1}
"""
    of_backend, of_route = (f"price:{price}" if place == name else "" for name in ("backend", "route"))
    policy = parse(
        f"""
version: 1
backends:
  up:
      type: openai
      base_url: http://127.0.0.1:9/v1
      {of_backend}
routes:
  - name: all
    match: {{models: ["*"]}}
    backends:
    - ref: up
      {of_route}
"""
    ).policy

    found = policy.price_of(policy.routes[0].backends[0])
    assert found is not None
    assert found.source == place
    assert found.amount(Usage(10, 10)) == (10 * 2 + 10 * 3) * 10**6
    assert found.amount(Usage(10, 10, service_tier="flex")) == 20 * 10**6
    assert found.batch_amount(Usage(10, 10)) == 15 * 10**6
