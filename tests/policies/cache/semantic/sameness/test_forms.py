"""What form alone decides, and what nobody here can read."""

from __future__ import annotations

import pytest

from policies.cache.semantic.sameness.forms import SURE, Unreadable, for_sure, unread_share


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("Press the button.", "press  the\nbutton"),
        ("\uff26ull width", "full width!"),
        ('{"a": 1, "b": [2]}', '{"b":[2],"a":1}'),
        ("Sure! Press the red button. Let me know if you need more.", "Press the red button."),
        ("```python\nif x:\n    y = f(1)\n```", "```\nif x:\n  y=f( 1 )\n```".replace("  y", "    y")),
        ("| a | b |\n|---|---|\n| 1 | 2 |", "|a|b|\n| :- | -: |\n| 1 | 2 |"),
        ("", ""),
        ("\u4f60\u597d", "\u4f60\u597d"),
    ],
)
def test_for_sure_same(left: str, right: str) -> None:
    """But for form."""
    assert for_sure(left, right) == SURE
    assert for_sure(right, left) == SURE


@pytest.mark.parametrize(
    ("left", "right"),
    [("It is 10\u00b2 m long.", "It is 102 m long."), ("Wait 1\u00bd hours.", "Wait 11\u20442 hours.")],
)
def test_nothing_is_for_sure_of_powers_and_fractions(left: str, right: str) -> None:
    """Unicode's compatible form makes one of them."""
    assert for_sure(left, right) is None


@pytest.mark.parametrize(
    ("left", "right"), [('{"a": 1}', '{"a": 2}'), ('{"a": 1}', '{"b": 1}'), ("[1]", "[1, 1]"), ("[true]", "[1]")]
)
def test_for_sure_different(left: str, right: str) -> None:
    """JSON whose bones differ."""
    assert for_sure(left, right) == -SURE


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("", "It costs 5."),
        ("word " * 2_000, "word " * 2_001),
        ('{"a": "red"}', '{"a": "crimson"}'),
        ('{"a": 1}', "The a is 1."),
        ("```\nx = 1\n```", "```\nx = 2\n```"),
        ("```\nif x:\n    y()\nz()\n```", "```\nif x:\n    y()\n    z()\n```"),
        ("| a |\n| 1 |", "| a |\n| 2 |"),
        ("\u0e27\u0e31\u0e19\u0e19\u0e35\u0e49", "\u0e1e\u0e23\u0e38\u0e48\u0e07"),
        ("It opens \u660e\u5929\u4e0b\u5348\u4e09\u70b9.", "It opens \u660e\u5929\u4e0b\u5348\u4e94\u70b9."),
        ("\x00\x01\x02\ufffd\ufffd binary", "\x00\x05\x02\ufffd\ufffd binary"),
    ],
)
def test_for_sure_unreadable(left: str, right: str) -> None:
    """No head has learned to read these: nobody knows."""
    with pytest.raises(Unreadable):
        for_sure(left, right)


def test_unread_share_counts_letters_of_other_scripts() -> None:
    """Latin ones with marks are read."""
    assert unread_share("Grüße aus Malmö, señor: ça va?") == 0
    assert unread_share("\u4f60\u597d 12 .") == 1
    assert 0.4 < unread_share("abc \u4f60\u597d\u554a") < 0.6
    assert unread_share("12 + 3") == 0
