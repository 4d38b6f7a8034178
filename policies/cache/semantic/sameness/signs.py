"""Signs that say what words say: at least, minus, not equal. Answers are read by their words, and code by its signs.

"Store it at -18 °C" and "Store it at 18 °C", "≥ 18" and "≤ 18", `xs[1:]` and `xs[:-1]` have the same words.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter

_AMOUNT = r"[$€£]?\d[\d.,]*(?![\d.,A-Z])"
"""What is more or less than it; "Settings > 2FA" is a way through menus, as "Cards > Limits" is."""
_IN_WORDS = [
    (re.compile(form), words)
    for form, words in (
        (r" ?(?:≥|>=) ?(?=[\w$€£(.-])", " at least "),
        (r" ?(?:≤|(?<![<=])<=) ?(?=[\w$€£(.-])", " at most "),
        (r" ?(?:≠|!==?) ?(?=[\w$€£(.\"'-])", " not equal to "),
        (rf" ?(?<![-=<>\w])> ?(?={_AMOUNT})", " more than "),
        (rf" ?(?<![<=>\w])< ?(?={_AMOUNT})", " less than "),
        (r" ?(?:±|\+/-) ?(?=\d)", " plus or minus "),
        (r"(?<![\w/.])[~≈] ?(?=[$€£]?\d)", "about "),
        (r"(?:(?<=[\s(\[:=,;\"'/])|^)(?<!\d )[-\u2212\u2013](?=[$€£]?\d)", "minus "),
        (r"(?:(?<=[\s(\"'])|^)\+(?=\d{1,3}(?:[.,]\d+)? ?[%°])", "plus "),
        (r"\b([A-D]|AB|O|[Cc])\+\+(?!\w)", r"\1 plus plus "),
        (r"\b([A-F]|AB|O)\+(?=[\s.,;:)]|$)", r"\1 plus"),
        (r"\b([A-F]|AB|O)[-\u2212](?=[\s.,;:)]|$)", r"\1 minus"),
        (r"\b([CF])#", r"\1 sharp"),
    )
]
_MAYBE = re.compile(r"[<>=≥≤≠±≈~+#\u2212\u2013-]")
_POWERS = str.maketrans({power: f"^{digit}" for digit, power in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")})
_FRACTION = re.compile(r"(?:(?<![\d.,])(\d{1,9}) ?)?([¼½¾⅓⅔⅕⅛⅜⅝⅞])")
_CODE = re.compile(r"```[^\n`]*\n?(?P<block>.*?)```|`(?P<span>[^`\n]+)`", re.DOTALL)
_TOKEN = re.compile(r"\w+|[^\w\s]")
_WORD = re.compile(r"\w")
_SAYS_NOTHING = frozenset("\"';,")
"""Of signs in code: quotes are one or the other, and what separates is seen by what it separates."""


def of_one_width(text: str) -> str:
    """Unicode's compatible form, in which powers and fractions stay what they are: 10^2 is not 102, nor 1 1/2 11/2."""
    if not text.isascii():
        text = _FRACTION.sub(_decimal, text).translate(_POWERS)
    return unicodedata.normalize("NFKC", text)


def _decimal(found: re.Match[str]) -> str:
    return f"{int(found[1] or 0) + unicodedata.numeric(found[2]):.3f}".rstrip("0")


def in_words(text: str) -> str:
    """The text with such signs told in words."""
    if _MAYBE.search(text) is not None:
        for form, words in _IN_WORDS:
            text = form.sub(words, text)
    return text


def differ_in_code(left: str, right: str) -> bool:
    """Whether the code of two answers, in blocks or within a line, has the same words and other signs, or the same
    signs elsewhere.
    """
    if "`" not in left or "`" not in right:
        return False
    mine, theirs = ([_told(line) for line in _lines_of_code(text)] for text in (left, right))
    one, other = ([token for line in lines for token in line] for lines in (mine, theirs))
    words, others = (Counter(token for token in tokens if _WORD.match(token)) for tokens in (one, other))
    # Lines may stand in another order, or be broken elsewhere.
    return bool(one and other) and words == others and one != other and Counter(mine) != Counter(theirs)


def _lines_of_code(text: str) -> list[str]:
    return [line for found in _CODE.finditer(text) for line in (found["block"] or found["span"] or "").splitlines()]


def _told(line: str) -> tuple[str, ...]:
    return tuple(token for token in _TOKEN.findall(line) if token not in _SAYS_NOTHING)
