"""Stop strings are found wherever the text is cut, and nothing goes out that might become one."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.engine.text.stops import StopChecker

ALPHABET = "ab"


def naive(text: str, stops: list[str], include_stop: bool) -> tuple[str, str | None]:
    """The text up to the stop string that ends first, looked for at every place."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            stop = max(found, key=len)
            return text[: end if include_stop else end - len(stop)], stop
    return text, None


@given(
    st.lists(st.text(ALPHABET, max_size=4), max_size=12),
    st.lists(st.text(ALPHABET, min_size=1, max_size=5), min_size=1, max_size=3),
    st.booleans(),
)
def test_stops_in_any_pieces_end_the_text_where_a_search_does(
    pieces: list[str], stops: list[str], include_stop: bool
) -> None:
    """Whatever the pieces, the text is what looking at every place of the whole gives."""
    checker = StopChecker(stops, include_stop=include_stop)
    said, found = "", None
    for piece in pieces:
        text, found = checker.push(piece)
        said += text
        if found is not None:
            break
    said += checker.flush()

    assert (said, found) == naive("".join(pieces), stops, include_stop)


@given(st.text(ALPHABET, max_size=20), st.lists(st.text(ALPHABET, min_size=1, max_size=5), min_size=1, max_size=3))
def test_stops_hold_back_no_more_than_what_may_become_one(text: str, stops: list[str]) -> None:
    """What is held is the longest end of the text that some stop string begins with."""
    checker = StopChecker(stops)
    said, found = checker.push(text)

    if found is None:
        held = text[len(said) :]
        begun = [end for end in (text[start:] for start in range(len(text))) if any(s.startswith(end) for s in stops)]
        assert held == max(begun, key=len, default="")
        assert said + checker.flush() == text


@pytest.mark.parametrize(
    ("pieces", "stop", "outputs"),
    [
        (["Hello<", "|e", "nd|>"], "<|end|>", ["Hello", "", ""]),
        (["a <", " b"], "<|end|>", ["a ", "< b"]),
        (["x\n", "\ny"], "\n\n", ["x", ""]),
        (["aaa", "b"], "aab", ["a", ""]),
    ],
)
def test_stops_across_pieces_send_what_is_safe_at_once(pieces: list[str], stop: str, outputs: list[str]) -> None:
    """Each piece lets out exactly what can no longer belong to the stop string."""
    checker = StopChecker([stop])

    assert [checker.push(piece)[0] for piece in pieces] == outputs


def test_stops_that_were_found_leave_nothing_behind() -> None:
    """An answer that goes on from elsewhere may hold one already."""
    checker = StopChecker(["ab", "bb"])

    assert [checker.push("ab"), checker.push("b"), checker.push("b")] == [("", "ab"), ("", None), ("", "bb")]


@pytest.mark.parametrize(
    "others", [["b" + "a" * 1000], ["a" + "b" * 1000], ["a" * 1000 + "b"]], ids=lambda each: each[0][:2]
)
def test_stops_that_hold_much_back_make_no_token_dearer(others: list[str]) -> None:
    """A call may give 64 stop strings of 1,024 characters; the engine reads the text of every answer in one thread."""
    checker = StopChecker(["a" * 1024, *(f"{other}{number}" for other in others for number in range(63))])

    def seconds(pieces: list[str]) -> float:
        began = time.thread_time()
        for piece in pieces:
            checker.push(piece)
        return time.thread_time() - began

    early = min(seconds(["a"] * 20) for _ in range(10))
    checker.push("a" * 700)
    late = min(seconds(["a"] * 20) for _ in range(5))

    assert late < 10 * early
