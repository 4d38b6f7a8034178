"""The words of our own that every text is made of, and the sentence grammar that strings them together."""

import re
from random import Random

NAMES = (
    *("Mara", "Tom", "Lena", "Igor", "Nadia", "Paul", "Rosa", "Felix", "Hanna", "Omar", "Greta", "Leo", "Amira"),
    *("Jonas", "Vera", "Sami", "Clara", "Hugo", "Yuki", "Anton", "Dina", "Marek", "Sofia", "Emil", "Tara", "Bruno"),
)
CITIES = (
    *("Oslo", "Lima", "Cairo", "Paris", "Rome", "Delhi", "Quito", "Berlin", "Madrid", "Vienna", "Tokyo", "Dublin"),
    *("Athens", "Prague", "Warsaw", "Lisbon", "Nairobi", "Havana"),
)
NOUNS = (
    *("lamp", "river", "apple", "bridge", "chair", "garden", "letter", "window", "basket", "candle", "drum", "engine"),
    *("forest", "guitar", "hammer", "island", "jacket", "kettle", "ladder", "mirror", "needle", "orange", "pencil"),
    *("quilt", "ribbon", "saddle", "table", "umbrella", "violin", "wagon", "anchor", "bottle", "clock", "door"),
    *("feather", "glove", "helmet", "key", "lemon", "map", "nest", "oven", "pillow", "rope", "shell", "tower"),
    *("valley", "wheel", "box", "cup", "ticket", "stone"),
)
FRUIT = (
    *("apple", "banana", "cherry", "pear", "plum", "grape", "mango", "peach", "fig", "kiwi", "melon", "lime", "date"),
    *("orange", "lemon", "apricot", "papaya", "quince", "olive", "berry"),
)
ANIMALS = ("fox", "owl", "bear", "horse", "goat", "duck", "cat", "dog", "crow", "hen", "wolf", "frog")
PEOPLE = ("baker", "sailor", "teacher", "farmer", "doctor", "painter", "driver", "pilot", "child", "neighbour")
COLOURS = ("red", "blue", "green", "yellow", "black", "white", "brown", "grey", "pink", "purple")
ADJECTIVES = (
    *("old", "small", "heavy", "quiet", "bright", "broken", "clean", "dark", "empty", "gentle", "huge", "lucky"),
    *("narrow", "plain", "round", "silver", "tall", "warm", "wooden", "young"),
)
PAST_VERBS = (
    *("carried", "found", "painted", "sold", "hid", "opened", "moved", "washed", "lost", "repaired", "bought"),
    *("dropped", "watched", "borrowed", "kept", "took"),
)
PLACES = (
    *("near the harbour", "behind the school", "in the kitchen", "at the market", "under the tree", "by the sea"),
    *("on the roof", "in the old mill", "at the station", "beside the road", "in the cellar", "across the field"),
)
TIMES = ("yesterday", "in the morning", "at noon", "last week", "every evening", "before the storm", "on Monday")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")

PLAIN_WORDS = NOUNS + ANIMALS + COLOURS + ADJECTIVES
"""The words that tasks about single words use."""


def sentence(rng: Random) -> str:
    """One sentence of the grammar, from a capital letter to a full stop."""
    thing, other = rng.sample(NOUNS, 2)
    text = rng.choice(_SENTENCES).format(
        name=rng.choice(NAMES),
        city=rng.choice(CITIES),
        thing=thing,
        other=other,
        person=rng.choice(PEOPLE),
        animal=rng.choice(ANIMALS),
        colour=rng.choice(COLOURS),
        adjective=rng.choice(ADJECTIVES),
        verb=rng.choice(PAST_VERBS),
        place=rng.choice(PLACES),
        time=rng.choice(TIMES),
        count=rng.randint(2, 99),
    )
    text = re.sub(r"\b([Aa]) (?=[aeiou])", r"\1n ", text)
    return text[0].upper() + text[1:]


def sentences(rng: Random, count: int) -> list[str]:
    """`count` different sentences."""
    found: dict[str, None] = {}
    while len(found) < count:
        found[sentence(rng)] = None
    return list(found)


def strange_text(rng: Random, count: int) -> str:
    """`count` unrelated words, numbers and made-up strings: what can only be copied, never guessed."""
    parts = []
    for _ in range(count):
        kind = rng.random()
        if kind < 0.5:
            parts.append(rng.choice(PLAIN_WORDS))
        elif kind < 0.7:
            parts.append(str(rng.randint(0, 999)))
        elif kind < 0.9:
            parts.append("".join(rng.choices(_LETTERS, k=rng.randint(2, 6))))
        else:
            parts.append(rng.choice(_MARKS))
    return " ".join(parts)


_SENTENCES = (
    "The {adjective} {person} {verb} a {colour} {thing} {place}.",
    "{name} {verb} the {adjective} {thing} {time}.",
    "A {colour} {animal} sat {place} {time}.",
    "{name} lives in {city} and has a {colour} {thing}.",
    "There were {count} people {place}.",
    "The {animal} {verb} a {thing} and a {other}.",
    "{name} asked the {person} for a {adjective} {thing}.",
    "Nobody saw the {adjective} {animal} {place}.",
    "The {thing} from {city} cost {count} coins.",
    "{time}, {name} {verb} a {thing} {place}.",
    "The {person} keeps {count} bottles and a {adjective} {other}.",
    "Every {person} in {city} wanted a {colour} {other}.",
)
_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_MARKS = ("(a)", "x-1", "#7", "50%", "a/b", "[k]", "yes!", "no?", "p: q", "=>", "e.g.", "10:45", "_id", "@home")
