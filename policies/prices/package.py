"""Reads list prices out of the package genai-prices: a program of its own, for the package takes 10 MiB and 60 ms.

`reading.py` runs it, once for a policy. It is told on its standard input which providers are asked for, and answers
with all their models: who matches which name, and what they cost from which moment on.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import ROUND_HALF_EVEN, Decimal
from importlib.metadata import version
from typing import Any

import msgspec

from backends.charges.usage import FAST, FAST_AT_HOME, HOME_ONLY
from policies.prices.listed import Day, ListedModel, ListQuestion, Pattern, PriceList
from policies.prices.price import LongContext, Price, Tariff, TokenRates, named_price

_PICO_PER_MTOK = 10**6
_PICO_PER_THOUSAND_REQUESTS = 10**9
_TIERS = ("flex", "priority", "fast", "default")
_LONG_WRITES = {"openai": 2}
"""Providers at which it costs so many times as much to have a prompt kept for longer (12 hours), of which the package
has no price (as LiteLLM has it in November 2026)."""
_ONE_PLACE = {"anthropic": Decimal("1.1")}
"""Providers at which tokens of all kinds cost so many times as much where a model may work in one place only (as
Anthropic has it in November 2026)."""
_OPENAI_PLACE = re.compile(r"https://(?P<place>[a-z]{2})\.(?=api\.openai\.com(?:[:/]|$))")
"""OpenAI works in one place for who asks it at that place's own address, of which the package knows none."""
_OPENAI_PLACE_TIMES = Decimal("1.1")
_SAME_IN_ONE_PLACE = re.compile(
    r"(?:ft:)?gpt-(?:3|4|5(?:\.[0-3])?(?![.\d]))|(?:chat)?gpt-(?:4o|audio|image-1|oss)|gpt-realtime(?:-mini)?$|o[134](?:-|$)"
    r"|ada|babbage|curie|davinci|codex-mini|computer-use|moderation|text-|tts-|whisper-"
).match
"""OpenAI's models of before March 5, 2026, which cost there what they cost elsewhere; newer ones cost so many times as
much (its guide on data residency, November 2026). The package does not know when a model came."""
_COUNTED = {"input_mtok", "output_mtok"}
"""A model without a price for either is paid by something that no answer tells: hours, pages, characters."""


def main() -> None:
    """Answer one question."""
    question = msgspec.json.decode(sys.stdin.buffer.read(), type=ListQuestion)
    sys.stdout.buffer.write(msgspec.json.encode(read(question)))


def read(question: ListQuestion) -> PriceList:
    """The lists of the providers asked for, by the names under which they are."""
    from genai_prices.data_snapshot import get_snapshot

    snapshot = get_snapshot()
    now = datetime.fromtimestamp(question.now_s, UTC)
    by_id = {provider.id: provider for provider in snapshot.providers}
    models: dict[str, list[ListedModel]] = {}
    providers: dict[str, str] = {}
    for name in {**question.addresses, **question.names}:
        address = question.addresses.get(name, "")
        place = found["place"] if (found := _OPENAI_PLACE.match(address)) is not None else ""
        try:
            if name in question.names:
                provider = by_id[question.names[name].lower().strip()]
            else:
                provider = snapshot.find_provider(None, None, _OPENAI_PLACE.sub("https://", address))
        except LookupError:
            continue
        key = providers[name] = f"{provider.id} in {place}" if place and provider.id == "openai" else provider.id
        if key not in models:
            others = [by_id[other] for other in provider.fallback_model_providers or () if other in by_id]
            models[key] = [
                _model(model, now, each.id, in_one_place=key != provider.id)
                for each in (provider, *others)
                for model in each.models
            ]
    return PriceList(
        version=version("genai-prices"),
        newest_day=max((day for day in _start_days(snapshot.providers) if day <= now.date()), default=None),
        providers=providers,
        models=models,
        known=sorted(by_id),
    )


def _model(model: Any, now: datetime, provider: str, *, in_one_place: bool) -> ListedModel:
    times = _OPENAI_PLACE_TIMES if in_one_place and not _SAME_IN_ONE_PLACE(model.id) else Decimal(1)
    days = [Day(day, _parts_of(model, day, provider, times)) for day in (now.date(), *_later_days(model, now.date()))]
    return ListedModel(model.id, _pattern(model.match), days)


def _parts_of(model: Any, day: date, provider: str, times: Decimal) -> list[tuple[int, Price | None]]:
    """What it costs from which second of the day on, of UTC."""
    found: list[tuple[int, Price | None]] = []
    for begin in sorted({time(0), *_times(model)}):
        price = _price(model, datetime.combine(day, begin, UTC), provider, times)
        seconds = begin.hour * 3600 + begin.minute * 60 + begin.second
        if not found or found[-1][1] != price:
            found.append((seconds, price))
    return found


def _price(model: Any, at: datetime, provider: str, times: Decimal) -> Price | None:
    """What it costs at that moment, `times` what the package says."""
    if model.prices == []:
        return None
    long_writes = _LONG_WRITES.get(provider, 1)

    def tariff_of(context: Mapping[str, str] | None) -> Tariff | None:
        tariff = _tariff(_values(model, at, context), long_writes)
        return tariff if tariff is None or times == 1 else _dearer(tariff, times)

    standard = tariff_of(None)
    # Nothing but noughts is how the package says that it does not know.
    if standard is None or not any(msgspec.structs.astuple(standard.rates)):
        return None
    tiers = {}
    for tier in _TIERS:
        # What others call a tier is a speed of Anthropic's.
        tariff = tariff_of({"service_tier": tier, "speed": tier})
        if tariff is not None and tariff != standard:
            tiers[tier] = tariff
    if (more := _ONE_PLACE.get(provider)) is not None:
        if FAST in tiers:
            tiers[FAST_AT_HOME] = _dearer(tiers[FAST], more)
        tiers[HOME_ONLY] = _dearer(standard, more)
    batch = tariff_of({"processing": "batch"})
    return named_price("list", standard, tiers, None if batch == standard else batch)


def _dearer(tariff: Tariff, times: Decimal) -> Tariff:
    long = tuple(LongContext(each.above_tokens, _dearer_rates(each.rates, times)) for each in tariff.long_contexts)
    return Tariff(_dearer_rates(tariff.rates, times), long)


def _dearer_rates(rates: TokenRates, times: Decimal) -> TokenRates:
    return TokenRates(**{name: _rounded(amount * times) for name, amount in msgspec.structs.asdict(rates).items()})


def _values(model: Any, at: datetime, context: Mapping[str, str] | None) -> dict[str, Any]:
    prices = model.get_prices(at, context)
    return {name: value for name, value in vars(prices).items() if value is not None}


def _tariff(values: Mapping[str, Any], long_writes: int) -> Tariff | None:
    """None where it is paid by what is not counted here."""
    if not _COUNTED & values.keys():
        return None
    starts = sorted({tier.start for value in values.values() for tier in getattr(value, "tiers", ())})
    rates = _rates(values, None, long_writes)
    return Tariff(rates, tuple(LongContext(start, _rates(values, start, long_writes)) for start in starts))


def _rates(values: Mapping[str, Any], above: int | None, long_writes: int) -> TokenRates:
    """Those of a prompt that is just longer than `above`."""

    def pico(name: str, parent: int) -> int:
        value = values.get(f"{name}_mtok")
        return parent if value is None else _rounded(_at(value, above) * _PICO_PER_MTOK)

    read, written = pico("input", 0), pico("output", 0)
    write = pico("cache_write", read)
    return TokenRates(
        input=read,
        cached_input=pico("cache_read", read),
        cache_write_5m=pico("cache_write_5m", write),
        cache_write_1h=pico("cache_write_1h", write * long_writes if "cache_write_mtok" in values else write),
        audio_input=pico("input_audio", read),
        image_input=pico("input_image", read),
        output=written,
        reasoning=pico("output_reasoning", written),
        audio_output=pico("output_audio", written),
        image_output=pico("output_image", written),
        request=_rounded(_at(values.get("requests_kcount", Decimal(0)), above) * _PICO_PER_THOUSAND_REQUESTS),
    )


def _at(value: Any, above: int | None) -> Decimal:
    """A price, or the one of prompts above a length: the highest threshold that they have passed."""
    if isinstance(value, Decimal):
        return value
    found: Decimal = value.base
    for tier in value.tiers:
        if above is not None and above >= tier.start:
            found = tier.price
    return found


def _rounded(pico: Decimal) -> int:
    return int(pico.to_integral_value(ROUND_HALF_EVEN))


def _constraints(model: Any) -> Iterator[Any]:
    for each in (*(model.prices if isinstance(model.prices, list) else ()), *(model.price_variants or ())):
        if each.constraint is not None:
            yield each.constraint


def _later_days(model: Any, today: date) -> list[date]:
    days = {constraint.start_date for constraint in _constraints(model) if hasattr(constraint, "start_date")}
    return sorted(day for day in days if day > today)


def _times(model: Any) -> Iterator[time]:
    for constraint in _constraints(model):
        for name in ("start_time", "end_time"):
            if hasattr(constraint, name):
                yield _utc(getattr(constraint, name))


def _utc(moment: time) -> time:
    offset = moment.utcoffset() or timedelta(0)
    return (datetime.combine(date(2000, 1, 2), moment.replace(tzinfo=None)) - offset).time()


def _start_days(providers: Any) -> Iterator[date]:
    for provider in providers:
        for model in provider.models:
            for constraint in _constraints(model):
                if hasattr(constraint, "start_date"):
                    yield constraint.start_date


def _pattern(clause: Any) -> Pattern:
    ((kind, value),) = vars(clause).items()
    if isinstance(value, list):
        return Pattern(kind.rstrip("_"), parts=[_pattern(part) for part in value])
    return Pattern(kind, text=value if kind == "regex" else value.lower())


if __name__ == "__main__":
    main()
