"""The right answers of the demo generator's prompts, worked out again from nothing but the prompts' text."""

from __future__ import annotations

import json
import re

LENGTHS = {"kilometres": 1_000_000, "metres": 1000, "centimetres": 10, "millimetres": 1}
YARDS = {"yards": 36, "feet": 12, "inches": 1}
WEIGHTS = {"kilograms": 1000, "grams": 1, "litres": 1000, "millilitres": 1}
TIMES = {"weeks": 604_800, "days": 86_400, "hours": 3600, "minutes": 60, "seconds": 1, "years": 12, "months": 1}
UNITS = LENGTHS | YARDS | WEIGHTS | TIMES
NUMBERS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
AROUND_A_LIST = set(
    re.findall(
        r"\w+",
        "sort sorted please can could you for me these those this that the list put in order arrange bring into which"
        " do come help want ascending words alphabetically alphabetical alphabetize and by alphabet",
    )
)
ORDINALS = ["first", "second", "third", "fourth", "fifth", "sixth"]


def arithmetic(prompt: str) -> str:
    """Sums, differences and comparisons."""
    text = re.sub(r"[a-z]+", _digits, prompt.lower().removeprefix("one more thing: "))
    numbers = [int(number) for number in re.findall(r"\d+", text)]
    if len(numbers) > 2:
        pairs = re.findall(r"(\d+) ([+-]) (\d+)", prompt)
        return ", ".join(f"{a} {sign} {b} = {int(a) + int(b) * (1 if sign == '+' else -1)}" for a, sign, b in pairs)
    a, b = numbers
    if re.search(r"\bis \d+ (greater|less) than", text):
        is_so = a > b if "greater" in text else a < b
        return f"{'Yes' if is_so else 'No'}, {a} is {'greater' if a > b else 'less'} than {b}."
    if re.search("larger|greater|maximum", text):
        return str(max(a, b))
    if re.search("smaller|number is less|minimum", text):
        return str(min(a, b))
    if "added to" in text or "subtract" in text:
        a, b = b, a
    if re.search(r"\+|plus|\badd|sum\b|gets|together|more than", text):
        return f"{a} + {b} = {a + b}"
    return f"{a} - {b} = {a - b}"


def tables(prompt: str) -> str:
    """Products up to 12 by 12, and the divisions that undo them."""
    a, b = (int(number) for number in re.findall(r"\d+", prompt))
    if re.search("/|divided|over|\N{DIVISION SIGN}", prompt):
        assert a % b == 0
        return f"{a} / {b} = {a // b}"
    return f"{a} * {b} = {a * b}"


def conversion(prompt: str) -> str:
    """Amounts in another unit."""
    [(amount, unit)] = re.findall(r"(\d+) (\w+)", prompt)
    [other] = {word for word in re.findall(r"[a-z]+", prompt) if word in UNITS} - {unit}
    return f"{amount} {unit} = {int(amount) * UNITS[unit] // UNITS[other]} {other}"


def sorting(prompt: str) -> str:
    """Sorted lists, largest and smallest."""
    text = prompt.lower()
    numbers = [int(number) for number in re.findall(r"\d+", prompt)]
    if text.startswith("which of"):
        return str((max if "largest" in text else min)(numbers))
    if numbers:
        is_down = re.search("descending|largest to|(largest|biggest) first|high to low|reverse", text) is not None
        return ", ".join(map(str, sorted(numbers, reverse=is_down)))
    listed = re.sub(r"^(I|i) want | by letter| from [aA] to [zZ]\.?$", "", prompt)
    return ", ".join(sorted(word for word in re.findall(r"\w+", listed) if word.lower() not in AROUND_A_LIST))


def counting(prompt: str) -> str:
    """Ranges, neighbours, numbers of things."""
    numbers = [int(number) for number in re.findall(r"\d+", prompt)]
    text = prompt.lower()
    if "comes" in text:
        return str(numbers[0] + (1 if "after" in text else -1))
    if text.startswith("continue"):
        step = numbers[1] - numbers[0]
        return ", ".join(str(numbers[2] + step * i) for i in (1, 2, 3))
    if numbers:
        step = 1 if numbers[1] > numbers[0] else -1
        return ", ".join(map(str, range(numbers[0], numbers[1] + step, step)))
    listed = prompt.partition(": ")[2].split(", ")
    counted = re.search(r"the word (\w+) in", prompt)
    return str(len(listed) if counted is None else sum(item == counted[1] for item in listed))


def spelling(prompt: str) -> str:
    """Letters of one word."""
    text = prompt.lower().rstrip("?.")
    match = re.search(
        r"write (\w+) letter by letter|(?:spell the word|spell|in the word|letters has|letters of|letter of) (\w+)$",
        text,
    )
    assert match is not None, prompt
    word = match[1] or match[2]
    if "letters" in text:
        return f"The word {word} has {len(word)} letters."
    if "first letter" in text or "last letter" in text:
        return word[0 if "first" in text else -1]
    return "-".join(word)


def quoting(prompt: str) -> str:
    """The text itself, or one of its sentences."""
    wording, mark, text = re.split(r"(: |:\n|\?\n)", prompt, maxsplit=1)
    which = re.search(r"(\w+) sentence", wording)
    if which is None:
        assert mark in (": ", ":\n")
        return text
    sentences = re.findall(r"[^.]+\.", text)
    picked: str = sentences[-1 if which[1] == "last" else ORDINALS.index(which[1])]
    return picked.strip()


def rewriting(prompt: str) -> str:
    """Another case, another word, another value."""
    wording, _, text = re.split(r"(: |:\n)", prompt, maxsplit=1)
    if re.search("capital|upper", wording):
        return text.upper()
    if re.search("small letters|lower", wording):
        return text.lower()
    if prompt.endswith("}"):
        document = json.loads(prompt[prompt.index("{") :])
        change = re.search(
            r"(?:Set|field|document,|Here) (\w+) (?:to|must be|should be) ([^:.{]+?)(?: in this JSON)?[:.]", prompt
        )
        assert change is not None, prompt
        key, value = change[1], change[2]
        is_text = isinstance(document[key], str) or (value not in ("null", "true", "false") and not value.isdigit())
        document[key] = value if is_text and value != "null" else json.loads(value)
        return json.dumps(document)
    swap = re.search(r"(?:word|Replace|Change) (?!the word)(\w+) (?:by|with|to) (\w+)", wording)
    backwards = re.search(r"with (\w+) instead of (\w+)", wording)
    assert swap is not None or backwards is not None, prompt
    old, new = (swap[1], swap[2]) if swap is not None else (backwards[2], backwards[1])  # type: ignore[index]
    return re.sub(rf"(?<![\w-]){old}(?![\w-])", new, text)


def follow_up(prompt: str, former_answer: str) -> str:
    """What follows from the former answer."""
    text = prompt.lower()
    numbers = re.findall(r"\d+", prompt)
    if numbers:
        value, other = int(former_answer.rpartition("= ")[2]), int(numbers[0])
        sign = "-" if re.search("subtract|minus", text) else "+"
        return f"{value} {sign} {other} = {value - other if sign == '-' else value + other}"
    if "name" in text or "who am i" in text:
        return f"Your name is {former_answer.split(', ')[1].rstrip('.')}."
    if re.search("revers|other way", text):
        return ", ".join(former_answer.split(", ")[::-1])
    return former_answer


ORACLES = {
    "arithmetic": arithmetic,
    "tables": tables,
    "conversion": conversion,
    "sorting": sorting,
    "counting": counting,
    "spelling": spelling,
    "quoting": quoting,
    "rewriting": rewriting,
}


def _digits(word: re.Match[str]) -> str:
    return str(NUMBERS.index(word[0])) if word[0] in NUMBERS else word[0]
