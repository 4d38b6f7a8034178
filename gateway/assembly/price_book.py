"""Who says what each backend of a policy takes: a route, the backend, a provider's list."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from backends.clock import Clock
from backends.config import Config
from backends.errors import ConfigurationError
from policies.policy_file.load import LoadedPolicy
from policies.prices.listed import PriceList
from policies.prices.reading import read_price_list
from policies.prices.source import FirstKnown, ListedPrices, PriceSource, RenamedPrices, SetPrice
from policies.schema import Policy, RouteBackend, RoutePolicy

_logger = logging.getLogger(__name__)
_OLD_DAYS = 60
"""Providers change prices and bring out models more often than that."""


class PriceBook:
    """Of one policy. `listed` is None where it wants no list."""

    def __init__(self, policy: Policy, listed: PriceList | None, clock: Clock) -> None:
        self.listed = listed
        self._policy = policy
        self._of_lists: dict[str, PriceSource] = {}
        if listed is not None:
            self._of_lists = {name: ListedPrices(listed, name, clock) for name in listed.providers}

    def source(self, part: RouteBackend) -> PriceSource | None:
        """Of a route's backend; None where nobody knows."""
        price = self._policy.price_of(part)
        return SetPrice(price) if price is not None else self._of_lists.get(part.ref)

    def asked(self, route: RoutePolicy) -> PriceSource:
        """What a model costs that a route is asked for, by the list: that of the first of its backends, or of any.

        Where no list has it, the first backend's own price is the list.
        """
        parts = sorted(route.backends, key=lambda part: part.priority)
        lists = [self._of_lists[part.ref] for part in parts if part.ref in self._of_lists]
        own = self.source(parts[0])
        first = RenamedPrices(own, parts[0].model) if own is not None and parts[0].model else own
        return FirstKnown((*lists, *self._of_lists.values(), *([first] if first is not None else [])))


def read_list(loaded: LoadedPolicy, clock: Clock) -> PriceList | None:
    """The list that a policy asks for, which is read in another process: to be waited for in a thread.

    Raises: ConfigurationError.
    """
    prices = loaded.policy.prices
    if prices is None or prices.source == "none":
        return None
    addresses = _addresses(loaded.backends)
    names = {name: named for name, backend in loaded.policy.backends.items() if (named := backend.priced_as)}
    if not addresses and not names:
        return None
    listed = read_price_list(addresses, names, clock.wall())
    age_days = listed.age_days(clock.wall())
    if age_days is not None and age_days > _OLD_DAYS:
        _logger.warning(
            "the prices of genai-prices %s are of %s, %d days ago: pip install -U genai-prices",
            listed.version,
            listed.newest_day,
            age_days,
        )
    return listed


def check_prices(policy: Policy, book: PriceBook) -> None:
    """Whether there is a price wherever a route needs one before it knows a call. Raises: ConfigurationError."""
    for route in policy.routes:
        for part in route.everybody:
            source = book.source(part)
            model = part.model or ""
            is_unknown = source is None or (bool(model) and source.of(model) is None)
            if route.require_price and is_unknown:
                raise _without_price(route.name, "require_price", part.ref, model)
            if (
                route.routing.policy == "cost"
                and part in route.backends
                and (source is None or source.of(model) is None)
            ):
                raise _without_price(route.name, "routing.policy: cost", part.ref, model)


def _without_price(route: str, why: str, backend: str, model: str) -> ConfigurationError:
    takes = f'takes for "{model}"' if model else "takes"
    return ConfigurationError(
        f'route "{route}" has {why}, and nobody says what "{backend}" {takes}: give that backend a `price`, or in the '
        "route a `model` that genai-prices knows"
    )


def _addresses(backends: Mapping[str, tuple[str, Config]]) -> dict[str, str]:
    found = {name: getattr(settings, "base_url", None) for name, (_, settings) in backends.items()}
    return {name: address for name, address in found.items() if isinstance(address, str)}
