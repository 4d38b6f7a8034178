"""What a newcomer types first: short sums with and without spaces, small sorts, times tables."""

from random import Random

from backends.engine.demo_models.turn import Turn, hurried, join_words, opened
from backends.engine.demo_models.words import ANIMALS, COLOURS, FRUIT, NAMES, NOUNS

LARGEST_FACTOR = 12


def short_sum(rng: Random, level: float) -> Turn:
    """Adds or subtracts two numbers that fit on a hand or a page, as a hurried person writes it."""
    named: tuple[str, ...]
    largest = rng.choice((10, 20, 100, 100, 1000 if level > 0.5 else 100))
    b, a = sorted((rng.randrange(largest), rng.randrange(largest)))
    if rng.random() < 0.6:
        a, b = (a, b) if rng.random() < 0.5 else (b, a)
        sign, named, answer = "+", _ADDITIONS, f"{a} + {b} = {a + b}"
    else:
        a, b = (b, a) if rng.random() < 0.1 else (a, b)
        sign, named, answer = "-", _SUBTRACTIONS, f"{a} - {b} = {a - b}"
    gap = rng.choice(("", "", " "))
    asked = (
        f"{a}{gap}{sign}{gap}{b}" if rng.random() < 0.75 else rng.choice(named).format(a=_said(rng, a), b=_said(rng, b))
    )
    return Turn("arithmetic", hurried(rng, opened(rng, rng.choice(_SUMS).format(asked), share=0.1)), answer)


def times_table(rng: Random, level: float) -> Turn:
    """Multiplies two numbers up to 12, or divides their product by one of them."""
    a, b = rng.randint(0, LARGEST_FACTOR), rng.randint(0, LARGEST_FACTOR)
    if rng.random() < 0.25 and b > 0:
        asked, answer = rng.choice(_DIVISIONS).format(a=a * b, b=b), f"{a * b} / {b} = {a}"
    else:
        asked, answer = rng.choice(_PRODUCTS).format(a=a, b=b), f"{a} * {b} = {a * b}"
    return Turn("tables", hurried(rng, opened(rng, rng.choice(_SUMS).format(asked), share=0.1)), answer)


def small_sort(rng: Random, level: float) -> Turn:
    """Sorts three to five numbers or words, written in one of many ways."""
    count = rng.choice((3, 3, 3, 4, 4, 5))
    if rng.random() < 0.7:
        numbers = rng.sample(range(1, rng.choice((10, 10, 20, 100))), count)
        is_descending = rng.random() < 0.2
        items = list(map(str, numbers))
        ordered = list(map(str, sorted(numbers, reverse=is_descending)))
        wording = rng.choice(_DOWN if is_descending else _UP + _NUMBERS)
    else:
        items = rng.sample(rng.choice((FRUIT, FRUIT, ANIMALS, COLOURS, NAMES, NOUNS, _LETTERS)), count)
        ordered = sorted(items)
        wording = rng.choice(_WORDS + _UP)
    kind = rng.random()
    if kind < 0.1:
        listed = f"[{', '.join(items)}]"
    elif kind < 0.2:
        listed = join_words(items)
    else:
        listed = rng.choice((", ", ", ", ", ", ",", " ")).join(items)
    # no `hurried` here: letters and names keep their case, which decides the order
    typed = wording.format(listed) if rng.random() < 0.7 else wording.lower().rstrip(" ?.!").format(listed)
    return Turn("sorting", typed, ", ".join(ordered))


def _said(rng: Random, number: int) -> str:
    return _WORDS_OF_NUMBERS[number] if number < len(_WORDS_OF_NUMBERS) and rng.random() < 0.3 else str(number)


_SUMS = (
    *("{}", "{}", "{} =", "{}=", "{}=?", "{} = ?", "{}?"),
    *("What is {}?", "What is {}?", "What's {}?", "whats {}", "what is {}", "How much is {}?", "Calculate {}"),
    *("Compute {}.", "Can you work out {}?", "What does {} make?", "solve {}", "{} equals?", "{} is", "{} please"),
    *("Can you calculate {}?", "What does {} equal?", "What is the result of {}?", "Tell me {}.", "Do you know {}?"),
)
_ADDITIONS = (
    *("{a} plus {b}", "{a} plus {b}", "{a} and {b} together", "the sum of {a} and {b}", "{b} added to {a}"),
    *("{a} more than {b}", "adding {a} and {b}"),
)
_SUBTRACTIONS = (
    *("{a} minus {b}", "{a} minus {b}", "{a} take away {b}", "{a} less {b}", "{b} subtracted from {a}"),
    "the difference of {a} and {b}",
)
_WORDS_OF_NUMBERS = (
    *("zero", "one", "two", "three", "four", "five", "six"),
    *("seven", "eight", "nine", "ten", "eleven", "twelve"),
)
_PRODUCTS = (
    *("{a} * {b}", "{a}*{b}", "{a} x {b}", "{a}x{b}", "{a} times {b}", "{a} times {b}", "{a} multiplied by {b}"),
    *("{a} \N{MULTIPLICATION SIGN} {b}", "the product of {a} and {b}", "{a} multiplied with {b}", "{a} X {b}"),
)
_DIVISIONS = ("{a} / {b}", "{a}/{b}", "{a} divided by {b}", "{a} over {b}", "{a} \N{DIVISION SIGN} {b}")
_UP = (
    *("Sort {}", "Sort {}", "sort {}", "Sort {}.", "Sort: {}", "sort: {}", "Sort these: {}", "Sort these: {}"),
    *("Please sort {}.", "Can you sort {}?", "Could you sort {} for me?", "Sort the list {}", "Sort this list: {}"),
    *("Put these in order: {}", "Put {} in order.", "Order these: {}", "order {}", "Arrange in order: {}", "{} sorted"),
    *("Help me sort {}.", "Sort ascending: {}", "Sort {} ascending.", "Can you put {} in order?", "Sort this: {}"),
    *("I want {} sorted.", "Bring {} into order.", "Which order do {} come in?", "Please sort this list: {}"),
)
_DOWN = (
    *("Sort in descending order: {}", "Sort {} in descending order.", "Sort {} from largest to smallest."),
    *("Sort these, largest first: {}", "Sort descending: {}"),
    *("Sort {} descending.", "Sort {} from high to low.", "Biggest first: {}", "Sort {} in reverse order."),
)
_WORDS = (
    *("Sort these words: {}", "Sort alphabetically: {}", "Sort {} alphabetically.", "Put these words in order: {}"),
    *("Sort the words {}", "Alphabetize {}.", "Order {} alphabetically.", "Put {} in alphabetical order."),
    *("Sort by letter: {}", "Sort {} from A to Z."),
)
_NUMBERS = (
    *("Sort the numbers {}", "Sort these numbers: {}", "Sort {} from smallest to largest.", "Order the numbers {}"),
    *("Sort {} from low to high.", "Smallest to largest: {}", "Smallest first: {}", "Sort numbers {}"),
)
_LETTERS = tuple("abcdefghijklmnopqrstuvwxyz")
