"""Questions about numbers: arithmetic, comparison, conversion, sorting, counting."""

from random import Random

from backends.engine.demo_models.turn import Turn, casual, opened
from backends.engine.demo_models.words import NAMES, NOUNS, PLAIN_WORDS

CONVERSIONS = (
    ("kilometres", "metres", 1000, 99),
    ("metres", "centimetres", 100, 99),
    ("centimetres", "millimetres", 10, 99),
    ("kilograms", "grams", 1000, 99),
    ("litres", "millilitres", 1000, 99),
    ("hours", "minutes", 60, 20),
    ("minutes", "seconds", 60, 20),
    ("days", "hours", 24, 12),
    ("weeks", "days", 7, 20),
    ("years", "months", 12, 20),
    ("feet", "inches", 12, 20),
    ("yards", "feet", 3, 40),
)
"""Larger unit, smaller unit, how many of the smaller make one of the larger, largest amount asked for."""


def draw_number(rng: Random, level: float) -> int:
    """A number of one, two or (at full level half the time) three digits."""
    digits = rng.choices((1, 2, 3), weights=(2, 3, 1 + 4 * level))[0]
    return rng.randint(0 if digits == 1 else 10 ** (digits - 1), 10**digits - 1)


def addition(rng: Random, level: float) -> Turn:
    """Adds two numbers of up to three digits."""
    a, b = draw_number(rng, level), draw_number(rng, level)
    wording = rng.choice(_ADDITIONS).format(a=a, b=b, name=rng.choice(NAMES), thing=rng.choice(NOUNS) + "s")
    return Turn("arithmetic", casual(rng, opened(rng, wording, share=0.1)), f"{a} + {b} = {a + b}")


def subtraction(rng: Random, level: float) -> Turn:
    """Takes a number from one that is not smaller."""
    b, a = sorted((draw_number(rng, level), draw_number(rng, level)))
    wording = rng.choice(_SUBTRACTIONS).format(a=a, b=b, name=rng.choice(NAMES), thing=rng.choice(NOUNS) + "s")
    return Turn("arithmetic", casual(rng, opened(rng, wording, share=0.1)), f"{a} - {b} = {a - b}")


def comparison(rng: Random, level: float) -> Turn:
    """Compares two different numbers."""
    a = draw_number(rng, level)
    b = a + rng.choice((-1, 1)) * rng.randint(1, 20) if rng.random() < 0.5 else draw_number(rng, level)
    b = a + 1 if b == a or b < 0 else b
    kind = rng.randrange(4)
    if kind == 0:
        wording, answer = rng.choice(_LARGER), str(max(a, b))
    elif kind == 1:
        wording, answer = rng.choice(_SMALLER), str(min(a, b))
    elif kind == 2:
        wording = "Is {a} greater than {b}?"
        answer = f"Yes, {a} is greater than {b}." if a > b else f"No, {a} is less than {b}."
    else:
        wording = "Is {a} less than {b}?"
        answer = f"Yes, {a} is less than {b}." if a < b else f"No, {a} is greater than {b}."
    return Turn("arithmetic", casual(rng, wording.format(a=a, b=b)), answer)


def sums(rng: Random, level: float) -> Turn:
    """Works out several sums and differences in one answer."""
    questions, answers = [], []
    for _ in range(rng.randint(2, 3 + round(2 * level))):
        b, a = sorted((draw_number(rng, level), draw_number(rng, level)))
        if rng.random() < 0.5:
            a, b = (a, b) if rng.random() < 0.5 else (b, a)
            questions.append(f"{a} + {b}")
            answers.append(f"{a} + {b} = {a + b}")
        else:
            questions.append(f"{a} - {b}")
            answers.append(f"{a} - {b} = {a - b}")
    return Turn("arithmetic", rng.choice(_SUMS) + ", ".join(questions), ", ".join(answers))


def conversion(rng: Random, level: float) -> Turn:
    """Converts a whole amount between two units of a small table."""
    large, small, factor, most = rng.choice(CONVERSIONS)
    amount = rng.randint(2, most)
    if rng.random() < 0.3:
        amount, large, small, result = amount * factor, small, large, amount
    else:
        result = amount * factor
    wording = rng.choice(_CONVERSIONS).format(amount=amount, large=large, small=small)
    return Turn("conversion", casual(rng, opened(rng, wording, share=0.2)), f"{amount} {large} = {result} {small}")


def sort_numbers(rng: Random, level: float) -> Turn:
    """Sorts three to seven different numbers below 100, either way."""
    numbers = rng.sample(range(100), rng.randint(3, 4 + round(3 * level)))
    is_descending = rng.random() < 0.35
    wording = rng.choice(_SORTS_DOWN if is_descending else _SORTS_UP)
    ordered = sorted(numbers, reverse=is_descending)
    return Turn("sorting", wording + ", ".join(map(str, numbers)), ", ".join(map(str, ordered)))


def extreme(rng: Random, level: float) -> Turn:
    """Picks the largest or smallest of a list."""
    numbers = rng.sample(range(100), rng.randint(3, 4 + round(2 * level)))
    wording, answer = rng.choice((("largest", max(numbers)), ("smallest", min(numbers))))
    return Turn("sorting", f"Which of these numbers is the {wording}: {', '.join(map(str, numbers))}?", str(answer))


def count_range(rng: Random, level: float) -> Turn:
    """Counts up or down between two numbers, or goes on with a sequence of even steps."""
    start, length = rng.randint(0, 90), rng.randint(3, 5 + round(5 * level))
    kind = rng.randrange(3)
    if kind == 0:
        steps = range(start, start + length)
        prompt = rng.choice(("Count from {} to {}.", "Please count from {} up to {}.")).format(steps[0], steps[-1])
    elif kind == 1:
        steps = range(start + length - 1, start - 1, -1)
        prompt = rng.choice(("Count down from {} to {}.", "Count backwards from {} to {}.")).format(steps[0], steps[-1])
    else:
        step = rng.choice((1, 2, 5, 10))
        first = rng.randint(0, 10) * (step if step > 2 else 1)
        steps = range(first + 3 * step, first + 6 * step, step)
        shown = ", ".join(str(first + i * step) for i in range(3))
        prompt = f"Continue with three more numbers: {shown}"
    return Turn("counting", casual(rng, prompt), ", ".join(map(str, steps)))


def neighbour(rng: Random, level: float) -> Turn:
    """Names the number before or after one."""
    number = rng.randint(1, 999 if level > 0.5 else 99)
    after = rng.random() < 0.5
    prompt = f"Which number comes {'after' if after else 'before'} {number}?"
    return Turn("counting", casual(rng, prompt), str(number + 1 if after else number - 1))


def count_items(rng: Random, level: float) -> Turn:
    """Counts the words of a list, or how often one word is in it."""
    words = rng.sample(PLAIN_WORDS, rng.randint(2, 4 + round(5 * level)))
    if rng.random() < 0.6:
        return Turn("counting", rng.choice(_COUNTS) + ", ".join(words), str(len(words)))
    words = words[:5]
    words.extend(words[0] for _ in range(rng.randint(0, 3)))
    counted = words[0]
    rng.shuffle(words)
    prompt = f"How many times is the word {counted} in this list: {', '.join(words)}"
    return Turn("counting", prompt, str(words.count(counted)))


_ADDITIONS = (
    "What is {a} + {b}?",
    "What is {a} plus {b}?",
    "Add {a} and {b}.",
    "Calculate {a} + {b}.",
    "How much is {a} plus {b}?",
    "Find the sum of {a} and {b}.",
    "{a} + {b} = ?",
    "{name} has {a} {thing} and gets {b} more. How many {thing} are there now?",
)
_SUBTRACTIONS = (
    "What is {a} - {b}?",
    "What is {a} minus {b}?",
    "Subtract {b} from {a}.",
    "Calculate {a} - {b}.",
    "How much is {a} minus {b}?",
    "{a} - {b} = ?",
    "{name} has {a} {thing} and sells {b}. How many {thing} are left?",
)
_LARGER = (
    "Which is larger, {a} or {b}?",
    "Which number is greater: {a} or {b}?",
    "What is the maximum of {a} and {b}?",
)
_SMALLER = ("Which is smaller, {a} or {b}?", "Which number is less: {a} or {b}?", "What is the minimum of {a} and {b}?")
_SUMS = ("Work these out: ", "Calculate: ", "Solve each: ", "Give the results of ")
_CONVERSIONS = (
    "How many {small} are {amount} {large}?",
    "Convert {amount} {large} to {small}.",
    "What is {amount} {large} in {small}?",
    "Express {amount} {large} in {small}.",
    "{amount} {large} in {small}?",
)
_SORTS_UP = (
    "Sort these numbers: ",
    "Sort in ascending order: ",
    "Order these numbers from smallest to largest: ",
    "Put these numbers in order: ",
)
_SORTS_DOWN = (
    "Sort in descending order: ",
    "Order these numbers from largest to smallest: ",
    "Sort these numbers, largest first: ",
)
_COUNTS = ("How many words are in this list: ", "Count these words: ", "Count the items: ")
