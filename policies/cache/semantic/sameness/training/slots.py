"""What a fact's slots are filled with: values, values near them, and how a value is told, each time anew."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any, NamedTuple

from policies.cache.semantic.sameness.languages import TABLES

_ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
)
_TENS = "- - twenty thirty forty fifty sixty seventy eighty ninety"
_MONTHS = "January February March April May June July August September October November December"
_DAYS = {
    "de": "Montag Dienstag Mittwoch Donnerstag Freitag Samstag Sonntag",
    "fr": "lundi mardi mercredi jeudi vendredi samedi dimanche",
    "es": "lunes martes miércoles jueves viernes sábado domingo",
    "it": "lunedì martedì mercoledì giovedì venerdì sabato domenica",
}
_CURRENCIES = (("euros", "€", "EUR"), ("euros", "€", "EUR"), ("dollars", "$", "USD"))


class Value(NamedTuple):
    """Of a slot whose values are told in more than one way."""

    sort: str
    parts: tuple[Any, ...]


class SlotFiller:
    """Fills slots from lists of words."""

    def __init__(self, random: Random, words: dict[str, list[str]]) -> None:
        self._random = random
        self._words = words

    def fill(self, slots: dict[str, str]) -> dict[str, Any]:
        """A value a slot, all different."""
        values: dict[str, Any] = {}
        for name, sort in slots.items():
            values[name] = self._new(sort)
            while list(values.values()).count(values[name]) > 1:
                values[name] = self._new(sort)
        return values

    def other(self, sort: str, value: Any, without: Sequence[Any]) -> Any:
        """Another value, often one near to it."""
        for _ in range(50):
            new = self._near(value) if isinstance(value, Value) and self._random.random() < 0.7 else self._new(sort)
            if sort == "team" and self._random.random() < 0.6:
                new = self._near_team(value)
            if new != value and new not in without:
                return new
        raise AssertionError(f"a list of {sort} is too short")

    def say(self, value: Any) -> str:
        """In one of its forms."""
        return self._random.choice(self._forms(value)) if isinstance(value, Value) else str(value)

    def foreign(self, language: str) -> dict[str, Any]:
        """Of a sentence in another language: a day, a number, two names."""
        one, other = self._random.sample(self._words["company"], 2)
        return {
            "d": self._random.choice(_DAYS[language].split()),
            "n": self._random.randint(2, 60),
            "a": one,
            "b": other,
        }

    def foreign_other(self, language: str, values: dict[str, Any], wording: str) -> dict[str, Any]:
        """With one of those that the wording has changed, or both names exchanged."""
        if "{a}" in wording:
            return values | {"a": values["b"], "b": values["a"]}
        if "{n}" in wording:
            return values | {"n": values["n"] + self._random.choice((1, 2, 5, 10))}
        return values | {"d": self._random.choice([day for day in _DAYS[language].split() if day != values["d"]])}

    def foreign_said(self, language: str, values: dict[str, Any]) -> dict[str, str]:
        """The number in digits or words."""
        number = values["n"]
        words = [word for word, value in TABLES[language].items() if value == number]
        said = self._random.choice([str(number), words[0]]) if words else str(number)
        return {name: str(value) for name, value in values.items()} | {"n": said}

    def _new(self, sort: str) -> Any:
        random = self._random
        match sort:
            case "number":
                return Value("number", (random.choice((random.randint(2, 30), random.randint(2, 400))),))
            case "percentage":
                return Value("percentage", (random.randint(2, 99),))
            case "year":
                return str(random.randint(1780, 2026))
            case "money":
                cents = random.choice(
                    (100 * random.randint(1, 60), 50 * random.randint(3, 90), random.randint(101, 99_999))
                )
                return Value("money", (cents, random.randrange(len(_CURRENCIES))))
            case "time":
                return Value("time", (random.randint(2, 60), random.choice(self._words["time_unit"])))
            case "amount":
                return Value("amount", (random.randint(2, 500), random.choice(self._words["amount"])))
            case "temperature":
                return Value("amount", (10 * random.randint(10, 25), "# degrees"))
            case "date":
                return Value("date", (random.randint(1, 28), random.randrange(12), random.choice((None, 2025, 2026))))
            case "clock":
                return Value("clock", (random.randrange(6, 23), random.choice((0, 0, 15, 30, 45))))
            case "team":
                return random.choice(self._words["team"]).replace("@", random.choice(self._words["team_of"]))
        return random.choice(self._words[sort])

    def _near(self, value: Value) -> Value:
        random, parts = self._random, value.parts
        step = random.choice((1, 2, 3, 5, 10)) * random.choice((1, 1, 1, -1))
        match value.sort:
            case "time" if random.random() < 0.4:
                return Value("time", (parts[0], random.choice(self._words["time_unit"])))
            case "amount" if random.random() < 0.4:
                return Value("amount", (parts[0], random.choice(self._words["amount"])))
            case "date":
                day = (parts[0] + step - 1) % 28 + 1
                return Value("date", random.choice(((day, *parts[1:]), (parts[0], (parts[1] + 1) % 12, parts[2]))))
            case "clock":
                return Value("clock", ((parts[0] - 5) % 17 + 6, parts[1]))
            case "money":
                return Value("money", (max(50, parts[0] + 50 * step), parts[1]))
        return Value(value.sort, (max(2, parts[0] + step), *parts[1:]))

    def _near_team(self, team: str) -> str:
        of = next(each for each in self._words["team_of"] if each in team)
        if self._random.random() < 0.5:
            return team.replace(of, self._random.choice(self._words["team_of"]))
        return self._random.choice(self._words["team"]).replace("@", of)

    def _forms(self, value: Value) -> list[str]:
        parts = value.parts
        match value.sort:
            case "number":
                return [str(parts[0]), in_words(parts[0])]
            case "percentage":
                return [f"{parts[0]} percent", f"{parts[0]}%", f"{in_words(parts[0])} percent", f"{parts[0]} %"]
            case "money":
                return _money(*parts)
            case "time":
                return [f"{parts[0]} {parts[1]}", f"{in_words(parts[0])} {parts[1]}"]
            case "amount":
                unit = parts[1].removeprefix("# ")
                return [f"{parts[0]} {unit}", f"{in_words(parts[0])} {unit}", f"{parts[0]} {unit}"]
            case "date":
                day, month, year = parts
                behind = f" {year}" if year else ""
                comma = f", {year}" if year else ""
                return [
                    f"{day} {_MONTHS.split()[month]}{behind}",
                    f"{_MONTHS.split()[month]} {day}{comma}",
                    f"the {_nth(day)} of {_MONTHS.split()[month]}{behind}",
                ]
            case "clock":
                return _clock(*parts)
        raise AssertionError(value.sort)


def in_words(number: int) -> str:
    """In English, 0 to 999."""
    if number >= 100:
        rest = f" and {in_words(number % 100)}" if number % 100 else ""
        return f"{_ONES.split()[number // 100]} hundred{rest}"
    if number < 20:
        return _ONES.split()[number]
    return _TENS.split()[number // 10] + (f"-{_ONES.split()[number % 10]}" if number % 10 else "")


def _money(cents: int, currency: int) -> list[str]:
    name, sign, code = _CURRENCIES[currency]
    whole, rest = divmod(cents, 100)
    digits = f"{whole}.{rest:02d}" if rest else str(whole)
    spoken = f"{in_words(whole)} {name}" + (f" and {in_words(rest)} cents" if rest else "")
    return [
        f"{sign}{whole}.{rest:02d}",
        f"{digits} {name}",
        f"{code} {digits}",
        spoken if 1 < whole < 1000 else f"{digits} {name}",
    ]


def _clock(hour: int, minute: int) -> list[str]:
    forms = [f"{hour}:{minute:02d}"]
    half = "p.m." if hour >= 12 else "a.m."
    twelve = (hour - 1) % 12 + 1
    forms.append(f"{twelve}:{minute:02d} {half}" if minute else f"{twelve} {half}")
    if minute == 30:
        part = "evening" if hour >= 17 else "afternoon" if hour >= 12 else "morning"
        forms.append(f"half past {_ONES.split()[twelve]} in the {part}")
    return forms


def _nth(day: int) -> str:
    ending = "th" if 10 <= day <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(day % 10, "th")
    return f"{day}{ending}"
