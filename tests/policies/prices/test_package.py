"""List prices come out of the package as they are in it: every model, each tier, long prompts, days to come."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, time, timedelta
from decimal import Decimal
from random import Random
from typing import Any

import msgspec
import pytest

from backends.charges.usage import Usage
from backends.clock import Clock
from backends.errors import ConfigurationError
from policies.prices.listed import PriceList
from policies.prices.price import PICO_PER_DOLLAR, Price
from policies.prices.reading import read_price_list
from policies.prices.source import ListedPrices

genai_prices = pytest.importorskip("genai_prices")

NOW = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
NOW_S = NOW.timestamp()
CONTEXTS: list[dict[str, str]] = [
    *({}, {"service_tier": "flex"}, {"service_tier": "priority"}, {"processing": "batch"}),
    # A tier of OpenAI's, and what Anthropic calls a speed.
    {"service_tier": "fast", "speed": "fast"},
]
NAMES = {
    "o": "openai",
    "a": "anthropic",
    "g": "google",
    "x": "x-ai",
    "d": "deepseek",
    "r": "openrouter",
    "p": "perplexity",
}


class Wall(Clock):
    """A clock whose wall time is set."""

    def __init__(self) -> None:
        self.wall_s = NOW_S

    def now(self) -> float:
        """Of no use here."""
        return 0.0

    def wall(self) -> float:
        """As it was set."""
        return self.wall_s


@pytest.fixture(scope="module")
def listed() -> PriceList:
    """Of some providers, each as a backend."""
    return read_price_list({}, NAMES, NOW_S)


def theirs(model: Any, usage: Usage, context: dict[str, str]) -> Decimal:
    """What the package itself works out."""
    told = genai_prices.Usage(
        input_tokens=usage.prompt_tokens,
        cache_read_tokens=usage.cached_tokens,
        cache_write_tokens=usage.written_5m_tokens + usage.written_1h_tokens,
        cache_write_5m_tokens=usage.written_5m_tokens,
        cache_write_1h_tokens=usage.written_1h_tokens,
        input_audio_tokens=usage.audio_input_tokens,
        input_image_tokens=usage.image_input_tokens,
        output_tokens=usage.completion_tokens,
        output_reasoning_tokens=usage.reasoning_tokens,
        output_audio_tokens=usage.audio_output_tokens,
        output_image_tokens=usage.image_output_tokens,
    )
    prices = model.get_prices(NOW, context)
    total: Decimal = prices.calc_price(told)["total_price"]
    return total


def drawn(random: Random) -> Usage:
    """Any usage: short prompts and long ones, of one kind and of many."""
    prompt = random.choice([random.randrange(2000), random.randrange(1_500_000), 200_000, 200_001, 272_000, 128_001])
    parts = sorted(random.randrange(prompt + 1) for _ in range(3))
    completion = random.randrange(100_000)
    # Of tokens that are heard and kept no provider tells how many there are.
    is_heard = random.random() < 0.5
    return Usage(
        prompt,
        completion,
        0 if is_heard else parts[0],
        0 if is_heard else parts[1] - parts[0],
        0 if is_heard else parts[2] - parts[1],
        audio_input_tokens=parts[0] if is_heard else 0,
        image_input_tokens=parts[1] - parts[0] if is_heard else 0,
        reasoning_tokens=random.randrange(completion + 1) if not is_heard else 0,
        audio_output_tokens=random.randrange(completion + 1) if is_heard else 0,
    )


def test_listed_price_of_every_model_is_what_the_package_works_out(listed: PriceList) -> None:
    """To the pico-dollar, but for the few whose token is no whole number of them."""
    from genai_prices.data_snapshot import get_snapshot

    random = Random(16)
    providers = {provider.id: provider for provider in get_snapshot().providers}
    num_compared = num_unlike = 0
    for provider, models in listed.models.items():
        # Behind its own stand those of whom it falls back on.
        for listed_model, model in zip(models, providers[provider].models, strict=False):
            assert listed_model.name == model.id
            price = listed_model.price_at(NOW)
            if price is None or "cache_audio_read_mtok" in vars(model.get_prices(NOW)):
                continue
            for context in CONTEXTS:
                if not price.knows(context.get("service_tier", "")):
                    continue
                usage = drawn(random)
                if provider == "openai":
                    # What it is to keep for long has a price that is not in the package.
                    usage = msgspec.structs.replace(usage, written_1h_tokens=0)
                exact = theirs(model, usage, context) * PICO_PER_DOLLAR
                ours = _amount(price, usage, context)
                num_compared += 1
                if ours != exact:
                    num_unlike += 1
                    print(
                        provider, listed_model.name, context, usage, vars(model.get_prices(NOW, context)), ours, exact
                    )
                    assert abs(ours - exact) <= (usage.prompt_tokens + usage.completion_tokens) / 2

    assert num_compared > 2000
    assert num_unlike < num_compared / 20


def test_listed_price_of_what_openai_is_to_keep_for_half_a_day_is_twice_that_for_half_an_hour(
    listed: PriceList,
) -> None:
    """Of the newer models, which take money for keeping; of older ones it is the prompt's."""
    newer, older = (listed.find("o", name) for name in ("gpt-5.6-sol", "gpt-4o"))
    assert newer is not None
    assert older is not None
    paid, free = newer.price_at(NOW), older.price_at(NOW)
    assert paid is not None
    assert free is not None

    assert paid.standard.rates.cache_write_1h == 2 * paid.standard.rates.cache_write_5m > 2 * paid.standard.rates.input
    assert free.standard.rates.cache_write_1h == free.standard.rates.input


def test_listed_price_of_a_place_is_a_tenth_more_of_everything(listed: PriceList) -> None:
    """Where Anthropic keeps a call in one place, in haste too; other providers have no such tier."""
    usage = Usage(1000, 100, 300, 200, 100)
    prices = [model.price_at(NOW) for model in listed.models["anthropic"]]
    known = [price for price in prices if price is not None]
    others = [model.price_at(NOW) for model in listed.models["deepseek"]]

    for price in known:
        for tier, dearer in (("", "us"), ("fast", "fast-us")):
            if price.knows(tier) or not tier:
                in_tier, in_place = (
                    price.amount(msgspec.structs.replace(usage, service_tier=t)) for t in (tier, dearer)
                )
                assert 10 * in_place == 11 * in_tier
    assert any(price.knows("fast-us") for price in known)
    assert all(price.knows("us") for price in known)
    assert not any(price.knows("us") for price in others if price is not None)


def test_listed_price_at_an_address_of_openai_for_one_place_is_a_tenth_more_of_newer_models() -> None:
    """In every tier and in batches; also where the backend names the list itself, as it had to before."""
    base_urls = {
        "all": "https://api.openai.com/v1",
        "eu": "https://eu.api.openai.com/v1",
        "us": "https://us.api.openai.com:443/v1",
        "named": "https://eu.api.openai.com/v1",
        "proxy": "https://eu.api.openai.com.example/v1",
    }
    listed = read_price_list(base_urls, {"named": "openai"}, NOW_S)
    usage = Usage(100_000, 1000, 300, reasoning_tokens=10)
    times = {}
    for backend in ("eu", "us", "named"):
        for name in ("gpt-5.3", "gpt-4o", "o3", "gpt-5.4", "gpt-5.6-sol", "gpt-6-luna"):
            prices = [model.price_at(NOW) for each in ("all", backend) if (model := listed.find(each, name))]
            assert len(prices) == 2
            everywhere, there = prices
            assert everywhere is not None
            assert there is not None
            for context in CONTEXTS:
                if everywhere.knows(context.get("service_tier", "")):
                    amounts = [_amount(price, usage, context) for price in (everywhere, there)]
                    times.setdefault(name, set()).add(Decimal(amounts[1]) / amounts[0])

    assert times == {
        **{name: {Decimal(1)} for name in ("gpt-5.3", "gpt-4o", "o3")},
        **{name: {Decimal("1.1")} for name in ("gpt-5.4", "gpt-5.6-sol", "gpt-6-luna")},
    }
    assert "proxy" not in listed.providers


def _amount(price: Price, usage: Usage, context: dict[str, str]) -> int:
    if "processing" in context:
        return price.batch_amount(usage)
    tier = context.get("service_tier", "")
    return price.amount(Usage(**{**_fields(usage), "service_tier": tier}))


def _fields(usage: Usage) -> dict[str, Any]:
    return {name: getattr(usage, name) for name in usage.__struct_fields__}


def test_listed_price_is_unknown_where_the_package_has_none(listed: PriceList) -> None:
    """Paid by the hour, nothing but noughts, no such model, no such provider: never 0."""
    prices = ListedPrices(listed, "o", Wall())

    assert prices.of("whisper-1") is None
    assert prices.of("a-model-of-tomorrow") is None
    assert ListedPrices(listed, "nobody", Wall()).of("gpt-5") is None
    assert prices.of("GPT-5") == prices.of("gpt-5") is not None


def test_listed_price_changes_with_the_day_and_the_hour(listed: PriceList) -> None:
    """What a provider takes at night holds at night."""
    model = next(model for model in listed.models["deepseek"] if len(model.days[0].parts) > 1)
    clock = Wall()
    prices = ListedPrices(listed, "d", clock)
    seen = {}
    for hour in range(24):
        clock.wall_s = datetime(2026, 11, 21, hour, 30, tzinfo=UTC).timestamp()
        seen[hour] = prices.of(model.name)

    assert len({price.name for price in seen.values() if price is not None}) > 1


def test_listed_price_does_not_load_the_package_here() -> None:
    """It takes 10 MiB, which is why another process reads it."""
    import subprocess

    program = (
        "import sys\nfrom policies.prices.reading import read_price_list\n"
        "listed = read_price_list({'a': 'https://api.openai.com/v1', 'b': 'http://127.0.0.1:9/v1'}, {}, 1.79e9)\n"
        "print(listed.providers, [name for name in sys.modules if name.startswith(('genai_prices', 'httpx2'))])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "{'a': 'openai'} []"


def test_listed_price_of_a_provider_that_is_none_is_refused() -> None:
    """With the name that was meant."""
    with pytest.raises(ConfigurationError, match=r'no provider "opnai"\. Did you mean "openai"'):
        read_price_list({}, {"up": "opnai"}, NOW_S)


def test_listed_price_age_is_that_of_the_newest_price(listed: PriceList) -> None:
    """The package has no date of its own."""
    assert listed.newest_day is not None
    later = listed.newest_day + timedelta(days=70)

    assert listed.age_days(datetime.combine(later, time(9), UTC).timestamp()) == 70
