"""Pairs of made-up answers that say the same, or do not: facts, several wordings of each, what answers are wrapped in.

A pair's `kinds` are those of its facts, so that kinds can be held out.
"""

from __future__ import annotations

from random import Random
from typing import Any, NamedTuple

from policies.cache.semantic.sameness.training import slots, structures
from policies.cache.semantic.sameness.training.facts.kinds import (
    asked_often,
    facts_of_the_world,
    kinds_in_english,
    words_of_slots,
)
from policies.cache.semantic.sameness.training.pairs import MadePair, Meanings
from policies.cache.semantic.sameness.training.passages import prose

_FACTS_A_KIND = 10
_CHANGES_A_FACT = 3
_OFTEN = 1.6
"""Weight of kinds that services are asked for most."""
_SAYINGS_A_FACT = 4
"""Encoding a sentence is what costs: answers are put together from so many."""
_WORDINGS_A_FAMILY = 5
_CHANGES_A_FAMILY = 3
_OTHER_MATTERS = 0.5
_LAYOUTS = ("prose", "prose", "prose", "paragraphs", "bullets", "numbers", "headings")


class _Fact(NamedTuple):
    """A kind of fact with its slots filled."""

    kind: str
    meaning: int
    values: dict[str, Any]
    is_doubted: bool = False


class Generator:
    """Makes pairs; equal seeds make equal pairs."""

    def __init__(
        self,
        random: Random,
        kinds: frozenset[str],
        facts_a_kind: int = _FACTS_A_KIND,
        sayings_a_fact: int = _SAYINGS_A_FACT,
    ) -> None:
        """`kinds`: of facts, some of `all_kinds`; of each so many with their slots filled, said in so many ways."""
        self._random = random
        self._sayings_a_fact = sayings_a_fact
        self._words = words_of_slots()
        self.kinds = {name: kind for name, kind in kinds_in_english().items() if name in kinds}
        self.world = {language: facts for language, facts in facts_of_the_world().items() if language in kinds}
        self._weights = {
            name: sum(len(meaning) for meaning in fact["wordings"]) ** 0.5 * (_OFTEN if name in asked_often() else 1.0)
            for name, fact in self.kinds.items()
        }
        self._slots = slots.SlotFiller(random, self._words)
        self._structures = structures.Structures(random, self._words)
        self._facts: dict[str, list[_Fact]] = {
            kind: [self._new_fact(kind) for _ in range(facts_a_kind)] for kind in self.kinds
        }
        self._changes: dict[str, list[_Fact]] = {}
        self._sayings: dict[str, list[tuple[str, int]]] = {}

    def pair(self) -> MadePair:
        """One more."""
        recipes = (
            (self._single, 30),
            (self._several, 40),
            (self._worldly, 12),
            (self._structures.listed, 8),
            (self._structures.stepped, 5),
            (self._structures.coded, 5),
            (self._sectioned, 8),
        )
        (recipe,) = self._random.choices([each for each, _ in recipes], [weight for _, weight in recipes])
        return recipe()

    def fact_and_changes(self) -> Meanings:
        """Wordings of a fact, then of what is nearly the same, half of them in a wording of the fact."""
        fact = self._fact()
        said = dict(self._say(fact) for _ in range(_WORDINGS_A_FAMILY))
        meanings = [list(said)]
        for _ in range(_CHANGES_A_FAMILY):
            changed = self._changed(fact)
            numbers = [self._random.choice(list(said.values())), None][: self._random.choice((1, 1, 2))]
            meanings.append([self._say(changed, number)[0] for number in numbers])
        if self._random.random() < _OTHER_MATTERS:
            meanings.append([self._say(self._fact(frozenset((fact.kind,))))[0]])
        return [[text for text in said_so if said_so is meanings[0] or text not in said] for said_so in meanings]

    def of_form(self) -> MadePair:
        """Two sentences, lists or steps whose form or language tells."""
        of_form = self._structures
        make = self._random.choice((self._sentence_of_the_world, of_form.listed, of_form.stepped, of_form.coded))
        return make()

    def long_pair(self) -> MadePair:
        """Of many facts, all the same or all but one."""
        facts = [
            self._random.choice(self._facts[kind])
            for kind in self._random.sample(sorted(self._facts), min(len(self._facts), self._random.randint(7, 16)))
        ]
        others = list(facts)
        is_same = self._random.random() < 0.5
        if not is_same:
            at = self._random.randrange(len(facts))
            others[at] = self._changed(facts[at])
        lines = [self._say(fact) for fact in facts]
        keeps = self._random.random() < 0.7
        turned = [
            self._say(other, number if keeps else None)[0] for other, (_, number) in zip(others, lines, strict=True)
        ]
        kinds = frozenset(fact.kind for fact in facts)
        return self._turned(MadePair(prose([line for line, _ in lines]), prose(turned), is_same, kinds, "long"))

    def says_nothing(self) -> list[str]:
        """Sentences that may be left out."""
        return [line for name in ("opening", "closing", "aside", "heading") for line in self._words[name]]

    def sections(self) -> list[str]:
        """Headings that name what is spoken of."""
        return list(self._words["section"])

    def _fact(self, without: frozenset[str] = frozenset()) -> _Fact:
        """Of kinds with many wordings more often: these take more to learn."""
        names = [name for name in self.kinds if name not in without]
        (kind,) = self._random.choices(names, [self._weights[name] for name in names])
        return self._random.choice(self._facts[kind])

    def _new_fact(self, kind: str) -> _Fact:
        spec = self.kinds[kind]
        return _Fact(kind, self._random.randrange(len(spec["wordings"])), self._slots.fill(spec["slots"]))

    def _changed(self, fact: _Fact) -> _Fact:
        """The same kind of fact, but not the same."""
        changes = self._changes.setdefault(repr(fact), [])
        if len(changes) < _CHANGES_A_FACT:
            changes.append(self._new_change(fact))
            return changes[-1]
        return self._random.choice(changes)

    def _new_change(self, fact: _Fact) -> _Fact:
        spec = self.kinds[fact.kind]
        ways: list[str] = ["slot"] * (2 if spec["slots"] else 0)
        ways += ["meaning"] * (3 if len(spec["wordings"]) > 1 else 0)
        ways += ["swap"] * (5 if "swap" in spec else 0)
        ways += ["doubt"] if self._random.random() < 0.25 else []
        way = self._random.choice(ways)
        if way == "doubt":
            return fact._replace(is_doubted=True)
        if way == "meaning":
            others = [number for number in range(len(spec["wordings"])) if number != fact.meaning]
            return fact._replace(meaning=self._random.choice(others))
        values = dict(fact.values)
        if way == "swap":
            one, other = spec["swap"]
            values[one], values[other] = values[other], values[one]
        else:
            slot = self._random.choice(list(spec["slots"]))
            values[slot] = self._slots.other(spec["slots"][slot], values[slot], without=list(values.values()))
        return fact._replace(values=values)

    def _say(self, fact: _Fact, number: int | None = None) -> tuple[str, int]:
        """One wording, and which; `number`: that one, if this meaning has so many."""
        sayings = self._sayings.setdefault(repr(fact), [])
        fit = [saying for saying in sayings if number in (None, saying[1])]
        if len(sayings) < self._sayings_a_fact or not fit:
            sayings.append(self._new_saying(fact, number))
            return sayings[-1]
        return self._random.choice(fit)

    def _new_saying(self, fact: _Fact, number: int | None) -> tuple[str, int]:
        wordings = self.kinds[fact.kind]["wordings"][fact.meaning]
        if number is None or number >= len(wordings):
            number = self._random.randrange(len(wordings))
        spoken = {name: self._slots.say(value) for name, value in fact.values.items()}
        sentence = wordings[number].format(**spoken)
        if not sentence.startswith(("`", "http")) and sentence[0].isalpha():
            sentence = sentence[0].upper() + sentence[1:]
        if sentence.endswith(".") and (fact.is_doubted or self._random.random() < 0.05):
            lead = self._random.choice(self._words["doubt" if fact.is_doubted else "certainty"])
            is_name = sentence.split()[0] in str(fact.values.values())
            sentence = f"{lead} {sentence if is_name else sentence[0].lower() + sentence[1:]}"
        if sentence.endswith(".") and self._random.random() < 0.05:
            link, more = self._random.choice((";", ",", " -")), self._random.choice(self._words["harmless"])
            sentence = f"{sentence[:-1]}{link} {more}."
        if sentence.endswith(".") and self._random.random() < 0.05:
            sentence = f"{sentence[:-1]}!"
        return sentence, number

    def _single(self) -> MadePair:
        fact = self._fact()
        is_same = self._random.random() < 0.5
        other = fact if is_same else self._changed(fact)
        one, number = self._say(fact)
        # Half of the changes in the very same words, where nothing but the change shows.
        keeps = not is_same and self._random.random() < 0.5
        two, _ = self._say(other, number if keeps else None)
        if self._random.random() < 0.15:
            one = self._wrapped([one])
        if self._random.random() < 0.15:
            two = self._wrapped([two])
        return self._turned(MadePair(one, two, is_same, frozenset((fact.kind,)), "single"))

    def _several(self) -> MadePair:
        facts: list[_Fact] = []
        for _ in range(self._random.choice((2, 2, 3, 3, 3, 4, 5, 5, 6))):
            facts.append(self._fact(frozenset(fact.kind for fact in facts)))
        others = list(facts)
        way = self._random.choices(
            ("same", "one changed", "one missing", "all changed", "one replaced", "other matter"), (50, 26, 5, 6, 8, 5)
        )[0]
        at = self._random.randrange(len(facts))
        if way == "one changed":
            others[at] = self._changed(facts[at])
        elif way == "one missing":
            del others[at]
        elif way == "all changed":
            others = [self._changed(fact) for fact in facts]
        elif way == "one replaced":
            others[at] = self._fact(frozenset(fact.kind for fact in facts))
        elif way == "other matter":
            others = [self._fact(frozenset(fact.kind for fact in facts)) for _ in facts]
        refusals = (
            [self._random.choice(self._words["refusal"])] if "missing" in way and self._random.random() < 0.5 else []
        )
        style = self._random.choice(("plain", "loose", "loose", "wrapped", "wrapped"))
        lines, numbers = [], {}
        for fact in facts:
            line, numbers[fact.kind] = self._say(fact)
            lines.append(line)
        keeps = style == "plain" and self._random.random() < 0.5
        turned = [self._say(fact, numbers.get(fact.kind) if keeps else None)[0] for fact in others] + refusals
        if style != "plain":
            self._random.shuffle(lines)
            self._random.shuffle(turned)
        say = self._wrapped if style == "wrapped" else prose
        kinds = frozenset(fact.kind for fact in (*facts, *others))
        return self._turned(MadePair(say(lines), say(turned), way == "same", kinds, f"several, {way}, {style}"))

    def _wrapped(self, lines: list[str]) -> str:
        """With courtesies, asides and layout."""
        random, words = self._random, self._words
        before = [random.choice(words["opening"])] if random.random() < 0.45 else []
        after = [random.choice(words["closing"])] if random.random() < 0.45 else []
        asides = random.sample(words["aside"], random.choice((0, 0, 1, 2, 3, 4)))
        layout = random.choice(_LAYOUTS)
        if layout in ("prose", "paragraphs", "headings"):
            mixed = [*lines, *asides]
            if random.random() < 0.6:
                random.shuffle(mixed)
            if layout == "prose" or len(mixed) < 3:
                return prose([*before, *mixed, *after])
            cut = random.randint(1, len(mixed) - 1)
            parts = [prose(mixed[:cut]), prose(mixed[cut:])]
            if layout == "headings":
                names = random.sample(words["heading"], 2)
                parts = [
                    f"{'#' * random.randint(1, 4)} {name}\n{part}" for name, part in zip(names, parts, strict=True)
                ]
            return "\n\n".join([*before, *parts, *after])
        marks = [f"{number}. " for number in range(1, 20)] if layout == "numbers" else [random.choice("-*•") + " "] * 20
        first = before + (lines[:1] if len(lines) > 2 and random.random() < 0.4 else [])
        rest = lines[len(first) - len(before) :]
        if random.random() < 0.3:
            rest = [line.rstrip(".") for line in rest]
        items = "\n".join(mark + line for mark, line in zip(marks, rest, strict=False))
        return "\n\n".join([text for text in (prose(first), items, prose([*asides, *after])) if text])

    def _sentence_of_the_world(self) -> MadePair:
        return self._worldly(1)

    def _worldly(self, num_facts: int | None = None) -> MadePair:
        """In another language than English."""
        language = self._random.choice(list(self.world))
        facts = self._random.sample(self.world[language], num_facts or self._random.choice((1, 1, 2, 3)))
        is_same = self._random.random() < 0.5
        changed = None if is_same else self._random.randrange(len(facts))
        lines, turned = [], []
        for number, meanings in enumerate(facts):
            meaning = self._random.randrange(len(meanings))
            values = self._slots.foreign(language)
            other, others = meaning, values
            if number == changed:
                if len(meanings) > 1:
                    other = self._random.choice([each for each in range(len(meanings)) if each != meaning])
                elif "{" not in meanings[0][0]:
                    return self._worldly(num_facts)
                else:
                    others = self._slots.foreign_other(language, values, meanings[0][0])
            at = self._random.randrange(len(meanings[meaning]))
            keeps = number == changed and self._random.random() < 0.5 and at < len(meanings[other])
            lines.append(meanings[meaning][at].format(**self._slots.foreign_said(language, values)))
            wording = meanings[other][at] if keeps else self._random.choice(meanings[other])
            turned.append(wording.format(**self._slots.foreign_said(language, others)))
        if len(lines) > 1 and self._random.random() < 0.5:
            self._random.shuffle(turned)
        return self._turned(MadePair(prose(lines), prose(turned), is_same, frozenset((language,)), "world"))

    def _sectioned(self) -> MadePair:
        """Facts of one kind, each under a heading of its own; or two of them under each other's."""
        kind = self._random.choice(list(self._facts))
        fact = self._random.choice(self._facts[kind])
        names = self._random.sample(self._words["section"], self._random.choice((2, 2, 3)))
        facts = {name: fact if at == 0 else self._changed(fact) for at, name in enumerate(names)}
        if len({repr(fact) for fact in facts.values()}) < len(names):
            return self._sectioned()
        others = dict(facts)
        is_same = self._random.random() < 0.5
        if not is_same:
            one, other = self._random.sample(names, 2)
            others[one], others[other] = others[other], others[one]
        layouts = [self._random.choice(structures.SECTIONS) for _ in range(2)]
        if self._random.random() < 0.5:
            layouts[1] = layouts[0]
        said = {repr(fact): self._say(fact) for fact in facts.values()}
        keeps = self._random.random() < 0.5
        turned = {
            name: said[repr(fact)][0] if keeps else self._say(fact)[0]
            for name, fact in self._random.sample(list(others.items()), len(others))
        }
        sides = {name: said[repr(fact)][0] for name, fact in facts.items()}, turned
        left, right = (structures.in_sections(side, layout) for side, layout in zip(sides, layouts, strict=True))
        return self._turned(MadePair(left, right, is_same, frozenset((kind,)), "sections"))

    def _turned(self, pair: MadePair) -> MadePair:
        if pair.left == pair.right and not pair.is_same:
            return self.pair()
        return pair.turned(self._random)
