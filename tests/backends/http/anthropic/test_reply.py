"""What the Messages API answers, in OpenAI's words: whole answers, usage, errors, rate-limit fields."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from openai.types.chat import ChatCompletion

from backends.charges.usage import Usage
from backends.errors import UpstreamGarbage, UpstreamRejectedKey
from backends.http.anthropic.reply import encode_completion, error_reply, read_counts, read_message, translate_headers
from tests.support.servers.anthropic_server import make_error, make_message, text_block, thinking_block, tool_block

_NOW_S = 1_700_000_000


def translate(message: dict[str, Any]) -> ChatCompletion:
    """The answer as OpenAI's own library reads it, strictly."""
    body = encode_completion(read_message("claude", msgspec.json.encode(message)), _NOW_S)
    return ChatCompletion.model_validate_json(body, strict=True)


def test_encode_completion_text_blocks_are_joined() -> None:
    """Several text blocks are one content; the rest of the completion is as OpenAI's library wants it."""
    completion = translate(make_message(text_block("Hello "), text_block("there.")))

    assert completion.choices[0].message.content == "Hello there."
    assert completion.choices[0].message.tool_calls is None
    assert (completion.id, completion.model, completion.created) == ("msg_01", "claude-test-1", _NOW_S)


def test_encode_completion_nullable_fields_are_there() -> None:
    """Clients index these without asking."""
    body = encode_completion(read_message("claude", msgspec.json.encode(make_message(text_block("x")))), _NOW_S)

    choice = msgspec.json.decode(body)["choices"][0]
    assert choice["logprobs"] is None
    assert choice["message"] == {"role": "assistant", "content": "x", "refusal": None}


def test_encode_completion_tools_only_has_null_content_and_json_arguments() -> None:
    """Tool uses become tool calls in order."""
    calls = [tool_block("toolu_1", "weather", {"city": "Zürich"}), tool_block("toolu_2", "now", {})]

    completion = translate(make_message(*calls, stop_reason="tool_use"))

    choice = completion.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    assert [
        (call.id, call.function.name, msgspec.json.decode(call.function.arguments))  # type: ignore[union-attr]
        for call in choice.message.tool_calls or ()
    ] == [("toolu_1", "weather", {"city": "Zürich"}), ("toolu_2", "now", {})]


def test_encode_completion_thinking_is_reasoning_content() -> None:
    """Reasoning stands beside the answer, in the field that OpenAI-compatible servers use."""
    completion = translate(make_message(thinking_block("Hm."), text_block("Yes.")))

    thought = {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}
    assert completion.choices[0].message.model_extra == {"reasoning_content": "Hm.", "thinking_blocks": [thought]}
    assert completion.choices[0].message.content == "Yes."


def test_encode_completion_thoughts_without_a_signature_are_not_to_come_back() -> None:
    """Other servers of this API sign nothing, and the Messages API itself takes nothing that is not signed."""
    hidden = {"type": "redacted_thinking", "data": "aGlkZGVu"}
    unsigned = {"type": "thinking", "thinking": "Hm.", "signature": ""}
    completion = translate(make_message(unsigned, hidden, text_block("Yes.")))

    assert completion.choices[0].message.model_extra == {"reasoning_content": "Hm.", "thinking_blocks": [hidden]}


def test_encode_completion_silent_answer_has_empty_content() -> None:
    """An answer without any block is an empty text, not a missing one."""
    assert translate(make_message()).choices[0].message.content == ""


@pytest.mark.parametrize(
    ("stop_reason", "expected"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("pause_turn", "length"),
        ("tool_use", "tool_calls"),
        ("refusal", "content_filter"),
        ("a_reason_of_tomorrow", "length"),
    ],
)
def test_encode_completion_stop_reason_is_translated(stop_reason: str, expected: str) -> None:
    """Only what is known to be finished is called finished."""
    assert translate(make_message(text_block("x"), stop_reason=stop_reason)).choices[0].finish_reason == expected


def test_usage_cached_tokens_are_prompt_tokens_too() -> None:
    """The API counts them apart, OpenAI counts them in."""
    message = make_message(text_block("x"), cache_read_input_tokens=30, cache_creation_input_tokens=2)

    usage = translate(message).usage

    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (42, 5, 47)
    assert usage.prompt_tokens_details is not None
    assert usage.prompt_tokens_details.cached_tokens == 30
    assert read_counts(msgspec.Raw(msgspec.json.encode(message["usage"]))).counted() == Usage(42, 5, 30, 2)


@pytest.mark.parametrize(
    ("told", "written"),
    [
        ({"cache_creation_input_tokens": 7}, (7, 0)),
        ({"cache_creation_input_tokens": 7, "cache_creation": {"ephemeral_1h_input_tokens": 5}}, (2, 5)),
        ({"cache_creation": {"ephemeral_5m_input_tokens": 3, "ephemeral_1h_input_tokens": 5}}, (3, 5)),
        ({"cache_creation_input_tokens": 7, "cache_creation": {"ephemeral_1h_input_tokens": 90}}, (0, 7)),
        ({"cache_creation_input_tokens": 7, "cache_creation": None}, (7, 0)),
        ({"cache_creation_input_tokens": 7, "cache_creation": {"ephemeral_1h_input_tokens": "x"}}, (7, 0)),
    ],
)
def test_usage_what_is_kept_is_counted_by_how_long(told: dict[str, Any], written: tuple[int, int]) -> None:
    """An hour costs more than five minutes; what is not said to be for an hour is for five minutes."""
    message = make_message(text_block("x"), **told)
    usage = read_counts(msgspec.Raw(msgspec.json.encode({**message["usage"], "service_tier": "priority"}))).counted()

    assert (usage.written_5m_tokens, usage.written_1h_tokens) == written
    assert usage.prompt_tokens == 10 + sum(written)
    assert usage.service_tier == "priority"
    shown = translate(message).usage
    assert shown is not None
    assert shown.prompt_tokens == 10 + sum(written)


def test_usage_of_a_conversation_that_was_summed_up_has_that_too() -> None:
    """Its tokens are paid for and stand in no total; what other iterations tell is in there."""
    own = {"input_tokens": 23000, "output_tokens": 1000, "cache_read_input_tokens": 7}
    iterations = [
        {"type": "compaction", "input_tokens": 180000, "output_tokens": 3500, "cache_creation_input_tokens": 5},
        {"type": "message", **own},
        {"type": "advisor_message", "model": "dear", "input_tokens": 800, "output_tokens": 500},
    ]
    told = read_counts(msgspec.Raw(msgspec.json.encode({**own, "iterations": iterations})))

    assert told.counted() == Usage(203012, 4500, 7, 5)
    lie = {**own, "iterations": [{"type": "compaction", "input_tokens": 10**9}] * 1000}
    assert read_counts(msgspec.Raw(msgspec.json.encode(lie))).counted().prompt_tokens == 10**9
    assert read_counts(msgspec.Raw(msgspec.json.encode({**own, "iterations": "x"}))).counted() == Usage(23007, 1000, 7)


def test_usage_of_haste_is_of_a_tier_of_its_own() -> None:
    """The API says so beside a tier that stays the standard one; it costs up to six times as much."""
    tiers = [
        read_counts(msgspec.Raw(b'{"input_tokens":9,"service_tier":"standard","speed":"%b"}' % speed)).counted()
        for speed in (b"standard", b"fast")
    ]

    assert [usage.service_tier for usage in tiers] == ["standard", "fast"]


@pytest.mark.parametrize(
    ("told", "tier"),
    [
        (b'"inference_geo":"us"', "us"),
        (b'"inference_geo":"us","speed":"fast"', "fast-us"),
        (b'"inference_geo":"global"', "standard"),
        (b'"inference_geo":"not_available","speed":"fast"', "fast"),
        (b'"inference_geo":7', "standard"),
    ],
)
def test_usage_of_a_place_is_of_a_tier_of_its_own(told: bytes, tier: str) -> None:
    """What is kept in one place costs a tenth more, whoever has asked for that: the call or its workspace."""
    usage = read_counts(msgspec.Raw(b'{"input_tokens":9,"service_tier":"standard",%b}' % told)).counted()

    assert usage.service_tier == tier


def test_usage_thinking_tokens_are_reasoning_tokens() -> None:
    """The newer breakdown is shown where the upstream gives it."""
    message = make_message(text_block("x"))
    message["usage"]["output_tokens_details"] = {"thinking_tokens": 3}

    usage = translate(message).usage

    assert usage is not None
    assert usage.completion_tokens_details is not None
    assert usage.completion_tokens_details.reasoning_tokens == 3


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"<html>secret</html>",
        b'{"type":"message"}',
        b'{"type":"completion","id":"x"}',
        b"\xff\xfe",
        b"[" * 100_000,
        msgspec.json.encode({**make_message(), "stop_reason": None}),
        msgspec.json.encode({**make_message(), "content": "text"}),
        msgspec.json.encode(make_message(tool_block("t", "f", {"a": "b"}))).replace(b'"b"', b'"\xff"'),
    ],
    ids=range(10),
)
def test_read_message_anything_else_is_garbage_and_not_shown(body: bytes) -> None:
    """Whatever came instead of a message is named as such, without its text."""
    with pytest.raises(UpstreamGarbage, match='upstream "claude"') as caught:
        read_message("claude", body)

    assert "secret" not in caught.value.message


@pytest.mark.parametrize(
    ("status", "type", "message", "expected"),
    [
        (400, "invalid_request_error", "top_p: wrong", (400, "invalid_request_error", None)),
        (
            400,
            "invalid_request_error",
            "prompt is too long: 9 tokens > 8 maximum",
            (400, "invalid_request_error", "context_length_exceeded"),
        ),
        (
            400,
            "invalid_request_error",
            "input length and `max_tokens` exceed context limit: 9 + 9 > 10",
            (400, "invalid_request_error", "context_length_exceeded"),
        ),
        (402, "billing_error", "pay", (402, "invalid_request_error", None)),
        (404, "not_found_error", "model: x", (404, "invalid_request_error", "model_not_found")),
        (413, "request_too_large", "big", (413, "invalid_request_error", "request_too_large")),
        (429, "rate_limit_error", "slow down", (429, "rate_limit_error", "rate_limit_exceeded")),
        (500, "api_error", "oops", (500, "server_error", None)),
        (504, "timeout_error", "late", (504, "server_error", None)),
        (529, "overloaded_error", "Overloaded", (503, "server_error", "overloaded")),
    ],
)
def test_error_reply_error_gets_openais_shape(
    status: int, type: str, message: str, expected: tuple[int, str, str | None]
) -> None:
    """Status, type and code are those that OpenAI's clients act on; the message is the upstream's."""
    reply = error_reply("claude", status, [(b"retry-after", b"7")], msgspec.json.encode(make_error(type, message)))

    assert reply.body is not None
    error = msgspec.json.decode(reply.body)["error"]
    assert (reply.status, error["type"], error["code"]) == expected
    assert error["message"] == message
    assert reply.header(b"retry-after") == b"7"


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize("body", [msgspec.json.encode(make_error("authentication_error", "secret")), b"secret"])
def test_error_reply_refused_key_is_the_gateways_trouble(status: int, body: bytes) -> None:
    """A client whose own key was fine must not be told that it was not."""
    with pytest.raises(UpstreamRejectedKey, match="api_key") as caught:
        error_reply("claude", status, [], body)

    assert "secret" not in caught.value.message


@pytest.mark.parametrize("status", [301, 400, 404, 500, 502])
@pytest.mark.parametrize("body", [b"", b"<html>secret</html>", b'{"error":"secret"}', b"\xff", b"[" * 100_000])
def test_error_reply_without_messages_error_is_garbage(status: int, body: bytes) -> None:
    """A proxy's page is not passed on."""
    with pytest.raises(UpstreamGarbage, match=str(status)) as caught:
        error_reply("claude", status, [], body)

    assert "secret" not in caught.value.message


@pytest.mark.parametrize(("status", "expected"), [(429, 429), (503, 503), (529, 503)])
def test_error_reply_try_again_later_survives_without_json(status: int, expected: int) -> None:
    """The status and its Retry-After are worth more than the page around them."""
    reply = error_reply("claude", status, [(b"retry-after", b"7")], b"<html>secret</html>")

    assert reply.status == expected
    assert reply.header(b"retry-after") == b"7"
    assert b"secret" not in (reply.body or b"")


def test_translate_headers_rate_limits_get_openais_names() -> None:
    """Exact counterparts only; a moment becomes the time until then, and never less than nothing."""
    headers = [
        (b"content-type", b"application/json"),
        (b"anthropic-organization-id", b"org"),
        (b"request-id", b"req_1"),
        (b"retry-after", b"3"),
        (b"anthropic-ratelimit-requests-limit", b"50"),
        (b"anthropic-ratelimit-requests-remaining", b"49"),
        (b"anthropic-ratelimit-requests-reset", b"2023-11-14T22:13:21Z"),
        (b"anthropic-ratelimit-tokens-remaining", b"1000"),
        (b"anthropic-ratelimit-tokens-reset", b"2020-01-01T00:00:00Z"),
        (b"anthropic-ratelimit-input-tokens-remaining", b"900"),
        (b"set-cookie", b"a=b"),
    ]

    assert translate_headers(headers, b"text/event-stream", _NOW_S + 0.5) == [
        (b"content-type", b"text/event-stream"),
        (b"x-upstream-request-id", b"req_1"),
        (b"retry-after", b"3"),
        (b"x-ratelimit-limit-requests", b"50"),
        (b"x-ratelimit-remaining-requests", b"49"),
        (b"x-ratelimit-reset-requests", b"1s"),
        (b"x-ratelimit-remaining-tokens", b"1000"),
        (b"x-ratelimit-reset-tokens", b"0s"),
    ]


@pytest.mark.parametrize("value", [b"", b"soon", b"\xff", b"12"])
def test_translate_headers_reset_that_is_no_time_is_left_out(value: bytes) -> None:
    """A field that cannot be translated is not invented."""
    assert translate_headers([(b"anthropic-ratelimit-tokens-reset", value)], b"x", _NOW_S) == [(b"content-type", b"x")]
