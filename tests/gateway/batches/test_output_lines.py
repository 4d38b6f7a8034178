"""Lines of results: made of answers, found in a provider's files, and told apart however their bytes arrive."""

from __future__ import annotations

import json
from contextlib import suppress
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.batches.output_lines import (
    LineSplitter,
    error_line,
    read_provider_line,
    result_of_answer,
    result_of_provider,
    results_of_provider,
    usage_of,
)
from gateway.batches.records import LineRow

CHAT = {"id": "c", "model": "m", "usage": {"prompt_tokens": 7, "completion_tokens": 3}}
RESPONSE = {"usage": {"input_tokens": 7, "output_tokens": 3, "input_tokens_details": {"cached_tokens": 2}}}


def test_result_of_an_answer_is_one_line_with_its_numbers_as_written() -> None:
    """However the body was laid out."""
    body = b'{\n  "x": 1.50,\n "big": 123456789012345678901234567890, "usage": {"prompt_tokens": 7}}'
    result = result_of_answer(1, "a", 200, "r", body)

    assert b"\n" not in result.text
    assert b'"x":1.50,"big":123456789012345678901234567890' in result.text
    assert (result.is_answered, result.input_tokens) == (True, 7)


def test_result_of_an_error_answer_is_a_failed_one() -> None:
    """It has a response, and goes to the error file."""
    result = result_of_answer(1, "a", 400, "r", b'{"error":{}}')

    assert not result.is_answered
    assert json.loads(result.text)["response"]["status_code"] == 400


@pytest.mark.parametrize("body", [b"", b"<html>", b'{"a":', b'"\xff"'])
def test_result_of_no_json_is_refused(body: bytes) -> None:
    """It would spoil the whole file."""
    with pytest.raises(ValueError, match="no JSON"):
        result_of_answer(1, "a", 200, "r", body)


def test_error_line_is_as_openai_writes_it() -> None:
    """No response, a code and a message."""
    found = json.loads(error_line("a", "batch_expired", "too late"))

    assert found["id"].startswith("batch_req_")
    assert (found["custom_id"], found["response"]) == ("a", None)
    assert found["error"] == {"code": "batch_expired", "message": "too late"}


@pytest.mark.parametrize(
    ("body", "tokens"),
    [
        (CHAT, (7, 0, 3, 0)),
        (RESPONSE, (7, 2, 3, 0)),
        ({"usage": {"prompt_tokens": 20, "completion_tokens": 198, "total_tokens": 623}}, (20, 0, 603, 405)),
        ({"usage": {"prompt_tokens": 9, "completion_tokens": 1, "prompt_cache_hit_tokens": 5}}, (9, 5, 1, 0)),
        ({"usage": None}, (0, 0, 0, 0)),
        ({"usage": {"prompt_tokens": "many"}}, (0, 0, 0, 0)),
        ({"usage": {"prompt_tokens": -4}}, (0, 0, 0, 0)),
        ([], (0, 0, 0, 0)),
    ],
)
def test_tokens_of_an_answer_are_found(body: Any, tokens: tuple[int, ...]) -> None:
    """In the words of every upstream, as of other calls; what makes no sense counts as nothing."""
    found = usage_of(json.dumps(body).encode())

    assert (found.prompt_tokens, found.cached_tokens, found.completion_tokens, found.reasoning_tokens) == tokens


def test_result_of_a_provider_line_has_our_id_and_model() -> None:
    """The provider's names end here."""
    raw = {"custom_id": "line-1", "response": {"status_code": 200, "body": {"model": "real", "n": 2.50}}, "error": None}
    found = read_provider_line(json.dumps(raw).encode())
    assert found is not None
    result = result_of_provider(found, 1, "mine", "alias")

    line = json.loads(result.text)
    assert line["custom_id"] == "mine"
    assert line["response"]["body"] == {"model": "alias", "n": 2.5}
    assert b"line-1" not in result.text


def test_result_of_a_provider_line_without_an_answer_has_its_error() -> None:
    """Code and message are passed on."""
    found = read_provider_line(b'{"custom_id":"q","error":{"code":"batch_expired","message":"late"}}')
    assert found is not None
    result = result_of_provider(found, 1, "mine", None)

    assert json.loads(result.text)["error"] == {"code": "batch_expired", "message": "late"}
    assert not result.is_answered


@given(raw=st.binary(max_size=100) | st.text(max_size=100).map(lambda text: json.dumps({"custom_id": text}).encode()))
def test_provider_line_of_any_bytes_is_read_or_not(raw: bytes) -> None:
    """A provider's garbage raises nothing, and what is made of it is one line."""
    found = read_provider_line(raw)
    if found is not None:
        assert b"\n" not in result_of_provider(found, 1, "mine", "alias").text


@given(
    lines=st.lists(st.binary(min_size=1, max_size=20).map(lambda raw: raw.replace(b"\n", b"x").strip() or b"y")),
    cuts=st.lists(st.integers(0, 300)),
    ends=st.sampled_from([b"\n", b"\r\n", b"\n\n"]),
    has_last_end=st.booleans(),
)
def test_lines_are_found_however_their_bytes_arrive(
    lines: list[bytes], cuts: list[int], ends: bytes, has_last_end: bool
) -> None:
    """Whole, in pieces, with or without the last line's end."""
    text = ends.join(lines) + ends * has_last_end
    places = sorted({0, len(text), *(min(cut, len(text)) for cut in cuts)})
    splitter = LineSplitter(1000)
    found = [line for start, stop in pairwise(places) for line in splitter.feed(text[start:stop])]
    found += splitter.end()

    assert found == lines


PROVIDER_LINES = st.one_of(
    st.binary(max_size=20),
    st.builds(
        lambda number, text: json.dumps(
            {"custom_id": f"line-{number}", "response": {"status_code": 200, "body": {"said": text}}, "error": None}
        ).encode(),
        st.integers(0, 12),
        st.text(max_size=5),
    ),
)


@given(lines=st.lists(PROVIDER_LINES, max_size=30))
def test_results_of_any_provider_are_of_the_lines_that_it_names(lines: list[bytes]) -> None:
    """In any order, with lines of others, twice, and garbage between them: each answer is that of its own line."""
    waiting = {f"line-{number}": LineRow(number, 1, f"mine {number}", 0, 1, "m", "r", 0) for number in range(8)}
    results = results_of_provider(lines, waiting, None)

    expected = []
    for raw in lines:
        with suppress(ValueError, KeyError, TypeError):
            found = json.loads(raw)
            if (row := waiting.get(found["custom_id"])) is not None:
                expected.append((row.id, row.custom_id, found["response"]["body"]["said"]))
    said = [json.loads(result.text) for result in results]
    assert [
        (result.line, line["custom_id"], line["response"]["body"]["said"])
        for result, line in zip(results, said, strict=True)
    ] == expected


def test_line_that_is_too_long_is_an_error() -> None:
    """Memory has a bound, whatever comes."""
    splitter = LineSplitter(10)
    for _ in range(10):
        assert list(splitter.feed(b"x")) == []

    with pytest.raises(ValueError, match="more than 10 bytes"):
        list(splitter.feed(b"x"))
