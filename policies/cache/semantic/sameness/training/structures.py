"""Pairs whose form tells: things in any order, steps in theirs, code, and what stands under headings."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

from policies.cache.semantic.sameness.training.pairs import MadePair

SECTIONS = ("#", "**", ":", "-", "For")
"""How sections can be told apart; `For` is a sentence."""


def in_sections(said: Mapping[str, str], layout: str) -> str:
    """What is said under each heading."""
    if layout == "-":
        return "\n".join(f"- {name}\n  - {line}" for name, line in said.items())
    if layout == "For":
        return " ".join(f"{name}: {line}{'' if line[-1] in '.!?' else '.'}" for name, line in said.items())
    mark = {"#": "### {}", "**": "**{}**", ":": "{}:"}[layout]
    return "\n\n".join(f"{mark.format(name)}\n{line}" for name, line in said.items())


class Structures:
    """Makes such pairs."""

    def __init__(self, random: Random, words: Mapping[str, Any]) -> None:
        self._random = random
        self._words = words

    def listed(self) -> MadePair:
        """Things in any order, as a sentence or a list: all of them, or any."""
        items = self._random.sample(self._words["item"], self._random.randint(2, 6))
        others = self._random.sample(items, len(items))
        way = self._random.choice(("same", "same", "same", "other", "missing", "any for all"))
        lead = other_lead = self._random.choice(("list_lead", "list_lead", "list_lead", "any_lead"))
        if way == "other":
            left = [item for item in self._words["item"] if item not in items]
            others[self._random.randrange(len(others))] = self._random.choice(left)
        elif way == "missing":
            others.pop()
        elif way == "any for all":
            lead, other_lead = "list_lead", "any_lead"
        left_text, right_text = self._list(items, lead), self._list(others, other_lead)
        return MadePair(left_text, right_text, way == "same", frozenset(("list",)), f"list, {way}").turned(self._random)

    def _list(self, items: list[str], leads: str) -> str:
        lead = self._random.choice(self._words[leads])
        layout = self._random.choice(("sentence", "sentence", "-", "*", "bold"))
        if layout == "sentence":
            link = "or" if leads == "any_lead" else "and"
            listed = f" {link} ".join(each for each in (", ".join(items[:-1]), items[-1]) if each)
            return f"{lead}{self._random.choice((' ', ': '))}{listed}."
        if layout == "bold":
            return f"**{lead}**\n\n" + "\n".join(f"* {item}" for item in items)
        return f"{lead}:\n" + "\n".join(f"{layout} {item}" for item in items)

    def stepped(self) -> MadePair:
        """What has to be done in this order."""
        steps = self._random.sample(self._words["task"], self._random.randint(2, 5))
        others = list(steps)
        way = self._random.choice(("same", "same", "order", "other"))
        if way == "order":
            at = self._random.randrange(len(others) - 1)
            others[at], others[at + 1] = others[at + 1], others[at]
        elif way == "other":
            left = [step for step in self._words["task"] if step not in steps]
            others[self._random.randrange(len(others))] = self._random.choice(left)
        pair = MadePair(self._steps(steps), self._steps(others), way == "same", frozenset(("steps",)), f"steps, {way}")
        return pair.turned(self._random)

    def _steps(self, steps: list[str]) -> str:
        layout = self._random.choice(("numbers", "sentence", "sentences", "then"))
        if layout == "sentence":
            joined = f"{', '.join(steps[:-1])}{self._random.choice((' and ', ', and finally ', ', then '))}{steps[-1]}."
            return joined[0].upper() + joined[1:]
        if layout == "sentences":
            return " ".join(f"{step[0].upper()}{step[1:]}." for step in steps)
        if layout == "then":
            return f"First {steps[0]}. " + " ".join(
                f"{self._random.choice(('Then', 'Next,', 'After that'))} {step}." for step in steps[1:]
            )
        lead = self._random.choice([f"{self._random.choice(self._words['step_lead'])}:\n", ""])
        return lead + "\n".join(f"{number}. {step[0].upper()}{step[1:]}" for number, step in enumerate(steps, start=1))

    def coded(self) -> MadePair:
        """A call in code, with an argument that may be another one."""
        words, random = self._words, self._random
        arguments = {key: random.choice(words["value"]) for key in random.sample(words["key"], random.randint(1, 3))}
        others = dict(arguments)
        is_same = random.random() < 0.5
        function = other = random.choice(words["function"])
        if not is_same:
            if random.random() < 0.3:
                other = random.choice([each for each in words["function"] if each != function])
            elif random.random() < 0.3:
                del others[random.choice(list(others))]
            else:
                key = random.choice(list(others))
                others[key] = random.choice([value for value in words["value"] if value != others[key]])
        one, two = self._call(function, arguments), self._call(other, others)
        return MadePair(one, two, is_same, frozenset(("code",)), "code").turned(self._random)

    def _call(self, function: str, arguments: dict[str, str]) -> str:
        gap = self._random.choice((", ", ",", ",\n    "))
        call = f"{function}({gap.join(['rows', *(f'{key}={value}' for key, value in arguments.items())])})"
        return self._random.choice(
            (
                "```python\n{}\n```",
                "Use this:\n```\n{}\n```",
                "`{}`",
                "You can call `{}`.",
                "Try `{}`, that does it.",
                "{}",
            )
        ).format(call)
