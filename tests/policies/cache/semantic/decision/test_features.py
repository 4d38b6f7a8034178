"""What words tell of two questions that vectors do not."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.cache.semantic.decision.features import MAX_CHARACTERS, Difference, Wording
from policies.cache.semantic.decision.features import difference as difference_of


def difference(one: str, two: str) -> Difference:
    return difference_of(Wording(one), Wording(two))


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("convert 5 km to miles", "convert 6 km to miles"),
        ("the top three songs", "the top four songs"),
        ("is it at 10:30", "is it at 10:45"),
        ("can I eat this", "can't I eat this"),
        ("countries with a king", "countries without a king"),
        ("how do I enable roaming", "how do I disable roaming"),
        ("the oldest winner", "the youngest winner"),
        ("what to eat before a run", "what to eat after a run"),
        ("I don\u2019t want it", "I want it"),
    ],
)
def test_guard_sees_numbers_negations_and_opposites(one: str, two: str) -> None:
    """Each of these pairs asks for two different answers."""
    assert difference(one, two).guarded
    assert difference(two, one).guarded


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("convert 5 km to miles", "what is 5.0 km in miles"),
        ("what are 1,000 euros in dollars", "1000 euros to dollars"),
        ("top three songs", "top 3 songs"),
        ("how do I enable roaming", "how can I turn roaming on"),
        ("", ""),
        ("\u0440\u0443\u0441\u0441\u043a\u0438\u0439 \u0442\u0435\u043a\u0441\u0442", "\u5b57\u5e55"),
    ],
)
def test_guard_lets_other_wordings_pass(one: str, two: str) -> None:
    """The same number in another spelling is the same number."""
    assert not difference(one, two).guarded


def test_swapped_is_one_content_word_for_another() -> None:
    """An entity exchanged, not a paraphrase."""
    assert difference("what is the capital of Norway", "what is the capital of Chile").swapped
    assert not difference("what is the capital of Norway", "what is the main city of Chile").swapped
    assert not difference("Norway", "Chile").swapped


def test_reordered_is_the_same_words_in_another_order() -> None:
    """Direction is all that differs; fillers and endings are no matter of order."""
    assert difference("flights from Rome to Oslo", "flights from Oslo to Rome").reordered
    assert not difference("flights from Rome to Oslo", "flight from Rome to Oslo please").reordered
    assert not difference("flights from Rome to Oslo", "flights from Rome to Oslo").reordered


@pytest.mark.parametrize(
    ("one", "two", "renamed"),
    [
        ("hello world in Java", "hello world in JavaScript", True),
        ("when was George W. Bush born?", "when was George H. W. Bush born?", True),
        ("how much does Alice owe Bob?", "what amount does Bob owe to Alice", True),
        ("how much does Alice owe Bob?", "Alice's debt to Bob", False),
        ("JSON to XML with python", "python code to turn XML into JSON", True),
        ("JSON to XML with python", "Python code to turn JSON into XML", False),
        ("the weather in Oslo, Norway", "Oslo weather. Please, for Norway", False),
        ("the weather in Oslo", "the weather in oslo", False),
        ("can I go there", "Can we go? There we are", False),
        ("WHERE IS MY CARD", "where is my money", False),
        (
            "\u043f\u043e\u0435\u0437\u0434 \u0432 \u041c\u043e\u0441\u043a\u0432\u0443",
            "\u043f\u043e\u0435\u0437\u0434 \u0432 \u041a\u0438\u0435\u0432",
            True,
        ),
    ],
)
def test_renamed_is_a_name_of_one_alone_or_names_in_another_order(one: str, two: str, renamed: bool) -> None:
    """Capitals tell names, but where a sentence begins or all are capitals."""
    assert difference(one, two).renamed is renamed
    assert difference(two, one).renamed is renamed


def test_length_is_that_of_the_shorter_and_counts_what_says_something() -> None:
    """A question of one word may ask for anything that has to do with it; fillers say nothing, either way round."""
    short, long = "what is the fee", "which fee does a transfer to another country take"

    assert difference(short, long).length == difference(long, short).length == difference(short, short).length
    assert difference(long, long).length > difference(short, long).length > difference("", long).length == 0.0


@given(st.text(max_size=80), st.text(max_size=80))
def test_difference_is_symmetric_and_bounded(one: str, two: str) -> None:
    """Any text at all, either way round."""
    found = difference(one, two)

    assert found == difference(two, one)
    assert 0.0 <= found.overlap <= 1.0
    assert not difference(one, one).guarded
    assert difference(one, one).overlap == 1.0


def test_difference_of_huge_texts_takes_bounded_time() -> None:
    """Of 100,000 words only the beginning is looked at."""
    began = time.thread_time()
    found = difference("word " * 100_000, "word " * 100_000 + "7")

    assert time.thread_time() - began < 0.1
    assert not found.guarded
    assert difference("x " * MAX_CHARACTERS + "7", "x " * MAX_CHARACTERS).overlap == 1.0
