"""Prices are exact: what a call costs is what the table says, to the last of twelve decimals."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from backends.protocol import Usage
from policies.pool.balance.settings import PricePolicy
from policies.price import PICO_PER_DOLLAR, pico_per_token

PER_1M = st.decimals(0, 10**6, places=6)
TOKENS = st.integers(0, 10**7)


@given(prices=st.tuples(PER_1M, PER_1M, PER_1M), prompt=TOKENS, cached=TOKENS, completion=TOKENS)
def test_price_of_a_call_is_that_of_decimal_arithmetic(
    prices: tuple[Decimal, Decimal, Decimal], prompt: int, cached: int, completion: int
) -> None:
    """Of what a file says, as a file says it: more kept than there was is not paid back."""
    read, written, kept = map(float, prices)
    price = PricePolicy(input_per_1m=read, output_per_1m=written, cached_input_per_1m=kept).exact()
    cached = min(cached, prompt)
    expected = ((prompt - cached) * prices[0] + completion * prices[1] + cached * prices[2]) / 10**6

    assert Decimal(price.amount(Usage(prompt, completion, cached))) / PICO_PER_DOLLAR == expected
    assert price.amount(Usage(prompt, completion, prompt + 1)) == price.amount(Usage(prompt, completion, prompt))


def test_price_of_kept_tokens_is_that_of_others_where_it_has_none_of_its_own() -> None:
    """0 is one of its own."""
    usual = PricePolicy(input_per_1m=3, output_per_1m=5).exact()
    free = PricePolicy(input_per_1m=3, output_per_1m=5, cached_input_per_1m=0).exact()

    assert usual.amount(Usage(1000, 20, 600)) == (1000 * 3 + 20 * 5) * 10**6
    assert free.amount(Usage(1000, 20, 600)) == (400 * 3 + 20 * 5) * 10**6
    assert usual.expected(1000, 400, 20.5) == (1000 * 3 + 20.5 * 5) * 10**6


@pytest.mark.parametrize("per_1m", [0.1234567, 1e-7])
def test_price_that_is_no_whole_number_of_pico_dollars_is_refused(per_1m: float) -> None:
    """It could not be added up exactly."""
    with pytest.raises(ValueError, match="at most six decimals"):
        pico_per_token(per_1m)
    with pytest.raises(ValidationError, match="at most six decimals"):
        PricePolicy(input_per_1m=per_1m, output_per_1m=1)
