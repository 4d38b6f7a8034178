"""Calls put together and answers taken apart."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.charges.usage import Usage
from backends.header_names import HeaderNames
from backends.operations import Operation
from backends.protocol import Call, Facts, Priority, Timeouts
from policies.batching.merge import Portion, group_of, inputs_of, merge_calls, portions_of, split_answer, usage_of
from tests.support.calls import make_call
from tests.support.policy.batching import embed

ONE = Portion(0, 1, 1)


def _inputs(value: object, **fields: Any) -> object:
    return inputs_of(embed(value, **fields), max_batch=4, max_bytes=1000)


@pytest.mark.parametrize(
    ("value", "inputs"),
    [
        ("one", ["one"]),
        (["one", "two"], ["one", "two"]),
        ([1, 2, 3], [[1, 2, 3]]),
        ([[1, 2], [3]], [[1, 2], [3]]),
    ],
)
def test_inputs_of_every_form_are_a_list(value: object, inputs: object) -> None:
    """A text, texts, a text as tokens, texts as tokens."""
    assert _inputs(value) == inputs


@pytest.mark.parametrize(
    "value",
    [
        "",
        [],
        ["a", ""],
        ["a", 1],
        [1, [2]],
        [[]],
        [[1], []],
        [["a"]],
        [True],
        [1.5],
        [{"text": "a"}],
        ["a"] * 5,
        "a" * 999,
    ],
    ids=str,
)
def test_inputs_of_what_cannot_share_are_none(value: object) -> None:
    """Nothing, mixtures, what nobody knows, and too much of it go by themselves."""
    assert _inputs(value) is None


def test_inputs_of_other_calls_are_none() -> None:
    """Only whole embeddings are put together."""
    assert _inputs("a", stream=True) is None
    assert _inputs("a", body=None) is None
    assert inputs_of(make_call(operation=Operation.COMPLETION), max_batch=4, max_bytes=1000) is None


def _group(value: object = "a", extra: dict[str, Any] | None = None, **fields: Any) -> bytes:
    call = embed(value, extra, **fields)
    inputs = inputs_of(call, max_batch=4, max_bytes=1000)
    assert inputs is not None
    return group_of(call, inputs, HeaderNames(["x-*", "openai-organization"]))


@pytest.mark.parametrize(
    "other",
    [
        {"value": [1, 2]},
        {"extra": {"dimensions": 8}},
        {"extra": {"encoding_format": "base64"}},
        {"extra": {"user": "u"}},
        {"extra": {"nobody-knows": {"this": [1]}}},
        {"extra": {"big": 2**70}},
        {"model": "another"},
        {"tenant": "another"},
        {"path": "/other/embeddings"},
        {"query": "version=2"},
        {"priority": Priority.LOW},
        {"timeouts": Timeouts(connect_s=1.0)},
        {"headers": [(b"x-anything", b"1")]},
        {"headers": [(b"openai-organization", b"1")]},
    ],
    ids=str,
)
def test_group_of_what_could_change_an_answer_is_another(other: dict[str, Any]) -> None:
    """Neither bodies, nor tenants, nor headers that could matter meet."""
    assert _group(**other) != _group()


def test_group_of_callers_that_ask_alike_is_one() -> None:
    """Who asks, in which order fields stand, and headers that no backend reads part nobody."""
    fields = [
        (b"user-agent", b"curl"),
        (b"traceparent", b"00-1"),
        (b"x-datadog-trace-id", b"1"),
        (b"accept", b"*/*"),
    ]

    assert _group(headers=fields, key_id="another", request_id="r") == _group(headers=[], value=["b", "c"])
    assert _group(extra={"dimensions": 8, "user": "u"}) == _group(extra={"user": "u", "dimensions": 8})


def test_group_of_numbers_that_python_takes_for_equal_is_another() -> None:
    """1, 1.0 and true are three values, deep inside of a field too."""
    values: list[object] = [1, 1.0, True]

    assert len({_group(extra={"field": value}) for value in values}) == 3
    assert len({_group(extra={"field": {"deep": [value]}}) for value in values}) == 3


def test_merge_calls_is_the_first_call_with_every_input() -> None:
    """The last deadline holds, and the facts are the batch's own."""
    calls = [embed("a", {"user": "u"}, deadline=2.0, request_id="r"), embed(["b", "c"], {"user": "u"}, deadline=3.0)]
    facts = Facts()

    call = merge_calls(calls, [["a"], ["b", "c"]], facts)

    assert call.body == {"model": "test-model", "input": ["a", "b", "c"], "user": "u"}
    assert msgspec.json.decode(call.raw) == call.body
    assert (call.deadline, call.facts, call.request_id) == (3.0, facts, "r")


def test_split_answer_keeps_every_byte_of_a_vector() -> None:
    """Numbers stay as they were written, base64 stays base64, and what nobody knows goes to everyone."""
    body = b'{"id":"x","data":[{"index":1,"embedding":"AAA="},{"index":0,"embedding":[1.50, 1e-3],"more":{"a" : 1}}]}'

    assert split_answer(body, [1, 1], [Portion(0, 1, 2), Portion(1, 2, 2)]) == [
        b'{"id":"x","data":[{"index":0,"embedding":[1.50, 1e-3],"more":{"a" : 1}}]}',
        b'{"id":"x","data":[{"index":0,"embedding":"AAA="}]}',
    ]


def test_split_answer_shares_out_the_numbers_of_usage() -> None:
    """By weight, whole numbers whole, whatever they are called."""
    usage = {"prompt_tokens": 10, "details": {"cached": 3}, "cost": 1.0, "tier": "a", "free": True, "nothing": None}
    body = msgspec.json.encode({"data": [{"index": 0}, {"index": 1}], "usage": usage})

    first, second = [
        msgspec.json.decode(part)["usage"]
        for part in split_answer(body, [1, 1], [Portion(0, 1, 4), Portion(1, 4, 4)]) or []
    ]

    assert first == {**usage, "prompt_tokens": 2, "details": {"cached": 0}, "cost": 0.25}
    assert second == {**usage, "prompt_tokens": 8, "details": {"cached": 3}, "cost": 0.75}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"data":{}}',
        b'{"data":[{"index":0},{"index":0}]}',
        b'{"data":[{"index":0},{"index":2}]}',
        b'{"data":[{"index":0}]}',
        b'{"data":[{"index":0},{}]}',
        b'{"data":[{"index":0},{"index":1},{"index":1}]}',
        b'{"data":[{"index":0},{"index":"1"}]}',
        b"\x1f\x8b",
    ],
)
def test_split_answer_is_none_where_nothing_says_whose_is_whose(body: bytes) -> None:
    """A vector is never given to somebody by guessing."""
    assert split_answer(body, [1, 1], [Portion(0, 1, 2), Portion(1, 2, 2)]) is None


@given(st.lists(st.integers(1, 500), min_size=1, max_size=12), st.integers(0, 10**9))
def test_portions_together_are_the_sum(weights: list[int], total: int) -> None:
    """Nothing is lost or charged twice, and who sends tokens pays for just these."""
    portions = portions_of([[[7] * weight] for weight in weights])

    parts = [portion.of(total) for portion in portions]

    assert sum(parts) == total
    assert min(parts) >= 0
    assert [portion.of(sum(weights)) for portion in portions] == weights
    assert sum(usage.prompt_tokens for each in portions if (usage := usage_of(Usage(total, 0, total), each))) == total


def test_portions_of_texts_are_their_bytes() -> None:
    """A letter that takes three bytes counts for three."""
    assert portions_of([["ab", "c"], ["字"]]) == [Portion(0, 3, 6), Portion(3, 6, 6)]
    assert portions_of([[""], [""]]) == [Portion(0, 1, 2), Portion(1, 2, 2)]
    assert usage_of(None, ONE) is None


def test_calls_are_never_written_to() -> None:
    """What comes in stays as it came."""
    call: Call = embed(["a"])
    merge_calls([call, embed("b")], [["a"], ["b"]], Facts())

    assert call.body is not None
    assert call.body["input"] == ["a"]
