"""Code with the same words and other signs, and signs that are told in words."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.cache.semantic.sameness.signs import differ_in_code, in_words, of_one_width


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Use `xs[1:]` for that.", "That is what `xs[:1]` does."),
        ("Run this:\n```sh\nrm *.log\n```", "Run `rm *.log*`."),
        ("Match it with `^a+$`.", "Match it with `^a*$`."),
        ("Call `f(x, y)`.", "Call `f(y, x)`."),
        ("Put `&&` there.", "Put `||` there."),
        ("Join them by `a && b`.", "Join them by `a || b`."),
    ],
)
def test_code_of_the_same_words_and_other_signs_differs(one: str, other: str) -> None:
    """In blocks as within a line, whatever stands around it."""
    assert differ_in_code(one, other)
    assert differ_in_code(other, one)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Use `f(a='b');`.", 'Use this:\n```python\nf(a="b")\n```'),
        ("Use `f( a )`.", "Call `f(a)`."),
        ("Use `f(a)`.", "Use `g[a]`."),
        ("Use `f(a)`.", "Use f[a]."),
        ("First `a = 1`, then `b = -1`.", "`b = -1` and `a = 1`."),
        ("Use `f(a, b)`.", "Use:\n```\nf(\n    a,\n    b,\n)\n```"),
        ("Nothing of code.", "Nor here."),
    ],
)
def test_other_words_and_what_separates_are_left_to_others(one: str, other: str) -> None:
    """White space, quotes and separators say nothing; other words are seen as such."""
    assert not differ_in_code(one, other)


@given(st.text(alphabet="xyz12 `<>=!+-~±≥\n[:]*.,#", max_size=40))
def test_no_word_is_lost_where_signs_are_told_in_words(text: str) -> None:
    """And what is equal differs in nothing."""
    assert Counter(re.findall(r"[xyz12]", in_words(text))) >= Counter(re.findall(r"[xyz12]", text))
    assert not differ_in_code(text, text)


def test_numbers_of_any_length_stand_before_a_fraction() -> None:
    """Nobody turns thousands of digits into a number."""
    assert of_one_width("1\u00bd and 3\u00bc") == "1.5 and 3.25"
    assert of_one_width("9" * 4_700 + "\u00bd") == "9" * 4_700 + "0.5"
