"""List prices of providers: which model has which, and from which moment on."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime

import msgspec

from policies.prices.price import Price

_COMPACT_DAY = re.compile(r"-(20\d\d)(\d\d)(\d\d)$")


class ListQuestion(msgspec.Struct, frozen=True):
    """Whose lists are asked for: backends with their addresses, and those that name a provider of the package."""

    addresses: Mapping[str, str]
    names: Mapping[str, str]
    now_s: float


class Pattern(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a model's names have in common; texts are in small letters."""

    kind: str
    text: str = ""
    parts: Sequence[Pattern] = ()

    def matches(self, name: str) -> bool:
        """Whether a name, in small letters, is one of them."""
        match self.kind:
            case "equals":
                return name == self.text
            case "starts_with":
                return name.startswith(self.text)
            case "ends_with":
                return name.endswith(self.text)
            case "contains":
                return self.text in name
            case "regex":
                return re.search(self.text, name) is not None
            case "or":
                return any(part.matches(name) for part in self.parts)
            case "and":
                return all(part.matches(name) for part in self.parts)
        return False


class Day(msgspec.Struct, frozen=True):
    """From that day on: what is paid from which second of each day, of UTC."""

    begin: date
    parts: Sequence[tuple[int, Price | None]]


class ListedModel(msgspec.Struct, frozen=True):
    """A model of a list. Its first day has begun, others may be to come."""

    name: str
    pattern: Pattern
    days: Sequence[Day]

    def price_at(self, now: datetime) -> Price | None:
        """What it costs at that moment."""
        day = self.days[0]
        for later in self.days[1:]:
            if later.begin <= now.date():
                day = later
        seconds = now.hour * 3600 + now.minute * 60 + now.second
        found = None
        for begin, price in day.parts:
            if begin <= seconds:
                found = price
        return found


class PriceList(msgspec.Struct, frozen=True):
    """What the package knows of the providers of a policy."""

    version: str
    newest_day: date | None
    """The last day, not in the future, from which a price of it is: it is no older than that."""
    providers: Mapping[str, str]
    """The provider of a backend, for those where one was found, and the place where it works, if it has to."""
    models: Mapping[str, Sequence[ListedModel]]
    known: Sequence[str]
    """The names of all providers."""

    def find(self, backend: str, name: str) -> ListedModel | None:
        """A backend's model of that name."""
        models = self.models.get(self.providers.get(backend, ""), ())
        asked = name.lower()
        dashed = _COMPACT_DAY.sub(r"-\1-\2-\3", asked)
        for wanted in dict.fromkeys((asked, dashed)):
            for model in models:
                if model.pattern.matches(wanted):
                    return model
        return None

    def age_days(self, now_s: float) -> int | None:
        """How old it is at most."""
        if self.newest_day is None:
            return None
        return (datetime.fromtimestamp(now_s, UTC).date() - self.newest_day).days
