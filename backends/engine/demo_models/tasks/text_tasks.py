"""Questions about texts: quoting, rewriting, spelling, sorting of words."""

import json
from random import Random

from backends.engine.demo_models.turn import Turn, casual, opened
from backends.engine.demo_models.words import CITIES, COLOURS, DAYS, NAMES, NOUNS, PLAIN_WORDS, sentences, strange_text

ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth")


def draw_text(rng: Random, level: float) -> str:
    """A text to work on: one sentence at level 0, up to about 150 tokens at level 1; now and then a strange one."""
    if rng.random() < 0.3:
        return strange_text(rng, rng.randint(3, 6 + round(24 * level * rng.random())))
    return " ".join(sentences(rng, rng.randint(1, 2 + round(8 * level * rng.random()))))


def repeat(rng: Random, level: float) -> Turn:
    """Repeats a text word for word."""
    text = draw_text(rng, level)
    return Turn("quoting", rng.choice(_REPEATS) + text, text)


def quote_sentence(rng: Random, level: float) -> Turn:
    """Quotes the n-th or the last sentence of a text."""
    parts = sentences(rng, rng.randint(2, 3 + round(3 * level)))
    index = rng.randrange(len(parts))
    is_last = index == len(parts) - 1 and rng.random() < 0.5
    wording = rng.choice(_QUOTES).format(which="last" if is_last else ORDINALS[index])
    return Turn("quoting", wording + " ".join(parts), parts[index])


def upper(rng: Random, level: float) -> Turn:
    """Writes a few words in capital letters."""
    text = " ".join(rng.sample(PLAIN_WORDS, rng.randint(1, 3 + round(3 * level))))
    return Turn("rewriting", rng.choice(_UPPERS) + text, text.upper())


def lower(rng: Random, level: float) -> Turn:
    """Writes a few words in small letters."""
    text = " ".join(rng.sample(PLAIN_WORDS, rng.randint(1, 3 + round(3 * level))))
    return Turn("rewriting", rng.choice(_LOWERS) + text.upper(), text)


def replace_word(rng: Random, level: float) -> Turn:
    """Copies a text with every occurrence of one word replaced by another."""
    parts = sentences(rng, rng.randint(1, 2 + round(5 * level * rng.random())))
    text = " ".join(parts)
    present = [word for word in (*NOUNS, *NAMES, *COLOURS, *CITIES) if word in text.replace(".", "").split()]
    old = rng.choice(present) if present else "The"
    kind = next((kind for kind in (NAMES, CITIES, COLOURS) if old in kind), NOUNS)
    new = rng.choice([word for word in kind if word != old])
    replaced = " ".join(_swap(word, old, new) for word in text.split(" "))
    return Turn("rewriting", rng.choice(_REPLACES).format(old=old, new=new) + text, replaced)


def set_field(rng: Random, level: float) -> Turn:
    """Echoes a JSON document with one field changed."""
    keys = rng.sample(list(_FIELDS), rng.randint(2, 4 + round(6 * level * rng.random())))
    document = {key: draw_value(rng, key) for key in keys}
    key = rng.choice(keys)
    value = draw_value(rng, key)
    shown = value if isinstance(value, str) else json.dumps(value)
    wording = rng.choice(_SET_FIELDS).format(key=key, value=shown)
    return Turn("rewriting", wording + json.dumps(document), json.dumps(document | {key: value}))


def draw_value(rng: Random, key: str) -> object:
    """A value that suits a field of the documents."""
    values = _FIELDS[key]
    if isinstance(values, range):
        return rng.choice(values)
    return rng.choice(values)


def sort_words(rng: Random, level: float) -> Turn:
    """Sorts two to six words by the alphabet."""
    words = rng.sample(PLAIN_WORDS, rng.randint(2, 3 + round(3 * level)))
    return Turn("sorting", rng.choice(_SORTS) + ", ".join(words), ", ".join(sorted(words)))


def spell(rng: Random, level: float) -> Turn:
    """Spells a word with hyphens."""
    word = rng.choice(PLAIN_WORDS)
    prompt = casual(rng, opened(rng, rng.choice(_SPELLS).format(word=word)))
    return Turn("spelling", prompt, "-".join(word))


def count_letters(rng: Random, level: float) -> Turn:
    """Counts the letters of a word."""
    word = rng.choice(PLAIN_WORDS)
    prompt = casual(rng, opened(rng, rng.choice(_LETTERS).format(word=word)))
    return Turn("spelling", prompt, f"The word {word} has {len(word)} letters.")


def first_letter(rng: Random, level: float) -> Turn:
    """Names the first or last letter of a word."""
    word = rng.choice(PLAIN_WORDS)
    which, letter = rng.choice((("first", word[0]), ("last", word[-1])))
    prompt = casual(rng, opened(rng, f"What is the {which} letter of {word}?"))
    return Turn("spelling", prompt, letter)


def _swap(token: str, old: str, new: str) -> str:
    return new + token[len(old) :] if token.rstrip(".,") == old else token


_FIELDS: dict[str, range | tuple[object, ...]] = {
    "name": NAMES,
    "city": CITIES,
    "age": range(18, 100),
    "price": range(1, 200),
    "count": range(1, 50),
    "colour": COLOURS,
    "item": NOUNS,
    "day": DAYS,
    "open": (True, False),
    "hour": range(24),
    "owner": NAMES,
    "room": range(100, 400),
    "note": (None, "urgent", "later", "paid", "lost"),
}
_REPEATS = (
    "Repeat this text exactly: ",
    "Repeat after me: ",
    "Copy this text: ",
    "Say this again, word for word: ",
    "Quote the following text:\n",
    "Write exactly this:\n",
)
_QUOTES = (
    "Quote the {which} sentence of this text: ",
    "What is the {which} sentence here?\n",
    "Give me only the {which} sentence: ",
)
_UPPERS = ("Write in capital letters: ", "Write in upper case: ", "Change to capitals: ")
_LOWERS = ("Write in small letters: ", "Write in lower case: ")
_REPLACES = (
    "Replace {old} by {new} in this text: ",
    "Replace the word {old} with {new}: ",
    "Rewrite this text with {new} instead of {old}:\n",
    "Change {old} to {new} here: ",
)
_SET_FIELDS = (
    "Set {key} to {value} in this JSON: ",
    "Change the field {key} to {value}: ",
    "Fix this document, {key} must be {value}:\n",
    "Here {key} should be {value}. Give me the whole document: ",
)
_SORTS = (
    "Sort these words: ",
    "Sort these words alphabetically: ",
    "Put these words in alphabetical order: ",
    "Order by the alphabet: ",
)
_SPELLS = ("Spell the word {word}.", "Spell {word}.", "How do you spell {word}?", "Write {word} letter by letter.")
_LETTERS = (
    "How many letters are in the word {word}?",
    "How many letters has {word}?",
    "Count the letters of {word}.",
)
