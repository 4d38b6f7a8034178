"""The strict reading of bodies: what is wrong is an InvalidRequest that names its field, nothing right is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.errors import InvalidRequest
from backends.operations import Operation
from gateway.http.decode import decode_body, decode_json

JSON_OPERATIONS = [Operation.CHAT, Operation.COMPLETION, Operation.EMBEDDING, Operation.RESPONSES]
GOOD: dict[str, Any] = {
    "model": "m",
    "messages": [{"role": "user", "content": "x"}],
    "input": "x",
    "prompt": "x",
}
_JSON = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(10**30), 10**30),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(),
    ),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=15,
)  # fmt: skip


@given(raw=st.binary(max_size=300) | st.text(alphabet='{}[]":,\\u0123deNaInfity \n', max_size=80).map(str.encode))
def test_any_bytes_are_json_or_an_invalid_request(raw: bytes) -> None:
    """No other exception; what is accepted, Python's own decoder accepts too and reads alike."""
    try:
        value = decode_json(raw)
    except InvalidRequest:
        return

    assert value == json.loads(raw)


@given(value=_JSON)
def test_valid_json_is_read_as_python_reads_it(value: Any) -> None:
    """Nothing that is right is refused or changed."""
    assert decode_json(json.dumps(value).encode()) == value


@pytest.mark.parametrize("operation", JSON_OPERATIONS)
@given(changes=st.dictionaries(st.sampled_from([*GOOD, "stream", "stream_options", "n", "user", "tools", "x"]), _JSON))
def test_any_object_is_taken_or_refused_with_its_field(operation: Operation, changes: dict[str, Any]) -> None:
    """A refusal names a field that is in the body; the body that is taken is the one that was sent."""
    sent = {**GOOD, **changes}
    refused = None
    try:
        body, fields = decode_body(json.dumps(sent).encode(), operation)
    except InvalidRequest as error:
        refused = error

    if refused is None:
        assert (body, fields.model) == (sent, sent["model"])
    elif refused.param is not None:
        assert refused.param.split(".")[0].split("[")[0] in sent


@pytest.mark.parametrize("operation", JSON_OPERATIONS)
def test_unknown_fields_may_hold_anything(operation: Operation) -> None:
    """What the gateway does not know is the upstream's matter."""
    body = {**GOOD, "top_k": "x", "verbosity": None, "prefix": [[1], {}], "guided_json": {"a": True}}

    assert decode_body(json.dumps(body).encode(), operation)[0] == body


@pytest.mark.parametrize(
    "value", [None, "x", ["a", {"type": "text", "text": "x"}], []], ids=["null", "text", "parts", "no_parts"]
)
def test_message_content_may_be_what_openai_allows(value: Any) -> None:
    """A text, parts, or nothing beside tool calls."""
    body = {"model": "m", "messages": [{"role": "assistant", "content": value, "tool_calls": []}]}

    decode_body(json.dumps(body).encode(), Operation.CHAT)


_TEXT_PART = {"type": "text", "text": "x"}


@pytest.mark.parametrize("content", ["", "x", "x" * 2**20, [], [_TEXT_PART, _TEXT_PART], [{"type": "text"}]])
def test_prediction_may_be_what_openai_allows(content: Any) -> None:
    """A text of any length, also none, or parts; null is none."""
    for prediction in ({"type": "content", "content": content}, None):
        decode_body(json.dumps({**GOOD, "prediction": prediction}).encode(), Operation.CHAT)


@pytest.mark.parametrize(
    "prediction",
    [
        *("x", 7, [], {}, {"type": "content"}, {"content": "x"}, {"type": "text", "content": "x"}),
        *({"type": "content", "content": content} for content in (None, 7, {}, ["x"], [{"text": "x"}])),
        {"type": "content", "content": [{"type": "text", "text": 7}]},
    ],
    ids=repr,
)
def test_prediction_of_a_wrong_type_is_refused(prediction: Any) -> None:
    """By its name."""
    with pytest.raises(InvalidRequest) as refused:
        decode_body(json.dumps({**GOOD, "prediction": prediction}).encode(), Operation.CHAT)

    assert (refused.value.param or "").startswith("prediction")


def test_prediction_of_half_a_character_is_no_json() -> None:
    """A lone surrogate is no text that anybody could be told."""
    raw = json.dumps({**GOOD, "prediction": {"type": "content", "content": "\ud800"}}).encode()

    with pytest.raises(InvalidRequest, match="not valid JSON"):
        decode_body(raw, Operation.CHAT)


def test_response_may_leave_its_model_to_a_stored_prompt() -> None:
    """`prompt` names a stored one; then there is neither model nor input."""
    body, fields = decode_body(b'{"prompt":{"id":"pmpt_1"}}', Operation.RESPONSES)

    assert (body, fields.model) == ({"prompt": {"id": "pmpt_1"}}, "")


@pytest.mark.parametrize("depth", [100, 150])
def test_reasonable_depth_is_read(depth: int) -> None:
    """Schemas nest."""
    raw = b'{"a":' * depth + b"1" + b"}" * depth

    assert decode_json(raw)
