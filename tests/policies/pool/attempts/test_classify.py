"""The vocabulary of failures: reason for a retry, kind for a fallback, and who is to blame."""

from __future__ import annotations

from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends import errors
from backends.errors import SlipstreamError, UpstreamError
from backends.protocol import Reply
from policies.pool.attempts.classify import Failure, Health, failure_of
from policies.pool.attempts.settings import FallbackOn, RetryOn
from tests.support.policy.pool import error_reply, stream_reply

WORKING, UNKNOWN, BROKEN = Health.WORKING, Health.UNKNOWN, Health.BROKEN


def _all_errors(root: type[SlipstreamError] = SlipstreamError) -> list[type[SlipstreamError]]:
    return [root, *(each for child in root.__subclasses__() for each in _all_errors(child))]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (errors.ConnectFailed, Failure("connect", "error", BROKEN)),
        (errors.ConnectTimeout, Failure("connect", "timeout", BROKEN)),
        (errors.PoolTimeout, Failure("connect", "timeout", UNKNOWN)),
        (errors.FirstTokenTimeout, Failure("first_token_timeout", "timeout", BROKEN)),
        (errors.StreamStalled, Failure("504", "timeout", BROKEN)),
        (errors.TotalTimeout, Failure("504", "timeout", BROKEN)),
        (errors.UpstreamCut, Failure("upstream_cut", "error", BROKEN)),
        (errors.UpstreamGarbage, Failure("502", "error", BROKEN)),
        (errors.UpstreamErrorEvent, Failure("502", "error", BROKEN)),
        (errors.UpstreamRejectedKey, Failure("rejected_key", "error", BROKEN)),
        (errors.NoBackendAvailable, Failure("503", "error", UNKNOWN)),
        (errors.ClientGone, Failure(None, None, UNKNOWN)),
        (errors.InvalidRequest, Failure(None, None, UNKNOWN)),
        (errors.InternalError, Failure(None, None, UNKNOWN)),
        (errors.Draining, Failure(None, None, UNKNOWN)),
    ],
)
def test_failure_of_error_names_reason_kind_and_blame(error: type[SlipstreamError], expected: Failure) -> None:
    """Each error of the tree has its place in the vocabulary."""
    assert failure_of(error("broken")) == expected


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (400, Failure(None, None, WORKING)),
        (401, Failure(None, None, WORKING)),
        (404, Failure(None, None, WORKING)),
        (408, Failure("408", "timeout", UNKNOWN)),
        (402, Failure("rejected_key", "error", WORKING)),
        (409, Failure("409", "error", WORKING)),
        (413, Failure(None, "context_window", WORKING)),
        (422, Failure(None, None, WORKING)),
        (425, Failure("425", "error", WORKING)),
        (429, Failure("429", "rate_limit", UNKNOWN)),
        (500, Failure("500", "error", BROKEN)),
        (501, Failure(None, "error", BROKEN)),
        (503, Failure("503", "error", BROKEN)),
        (504, Failure("504", "timeout", BROKEN)),
        (529, Failure("529", "error", BROKEN)),
    ],
)
def test_failure_of_reply_follows_its_status(status: int, expected: Failure) -> None:
    """An upstream's error answer is judged by its status, with a body or with a stream."""
    assert failure_of(error_reply(status)) == expected
    assert failure_of(stream_reply(status=status)) == expected


@pytest.mark.parametrize("status", [400, 413, 422, 500])
@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("context_length_exceeded", "context_window"),
        ("exceed_context_size_error", "context_window"),
        ("content_filter", "content_policy"),
        ("content_policy_violation", "content_policy"),
        ("moderation_blocked", "content_policy"),
    ],
)
def test_failure_of_reply_with_content_code_is_the_requests_fault(status: int, code: str, kind: FallbackOn) -> None:
    """A code about the request's content is never retried and never held against the backend."""
    assert failure_of(error_reply(status, code=code)) == Failure(None, kind, WORKING)


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("This model's maximum context length is 4096 tokens. However, you requested 5000 tokens.", "context_window"),
        ("The decoder prompt (length 8357) is longer than the maximum model length of 8192.", "context_window"),
        ("The input (9000 tokens) is longer than the model's context length (8192 tokens).", "context_window"),
        ("request (9412 tokens) exceeds the available context size (8192 tokens)", "context_window"),
        ("Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 1", "context_window"),
        ("Input validation error: `inputs` must have less than 4096 tokens. Given: 5000", "context_window"),
        (
            "You passed 8193 input tokens and requested 16 output tokens. However, the model's context length is only "
            "8192 tokens, resulting in a maximum input length of 8176 tokens.",
            "context_window",
        ),
        (
            "You passed 99999 input characters and requested 0 output tokens. However, the model's context length is "
            "only 8192 tokens, resulting in a maximum input length of 8192 tokens (at most 65536 characters).",
            "context_window",
        ),
        ("max_tokens=20000 cannot be greater than max_model_len=8192. Please request fewer.", "context_window"),
        ("max_tokens must be at least 1, got -37.", "context_window"),
        ("max_tokens must be at least 1, got 0.", None),
        (
            "The decoder prompt (length 8192) plus the number of requested output tokens (at least 1) is longer than "
            "the maximum model length of 8192.",
            "context_window",
        ),
        ("Requested token count exceeds the model's maximum context length of 8192 tokens.", "context_window"),
        ("Input length (9001 tokens) exceeds the maximum allowed length (8192 tokens).", "context_window"),
        ("Context size has been exceeded.", "context_window"),
        ("input (900 tokens) is too large to process. increase the physical batch size", "context_window"),
        (
            "The sum of prompt length (40) and max_tokens (20) should not exceed max_seq_len (4096)",
            "context_window",
        ),
        ("Requested input length 39818 exceeds maximum input length 32767", "context_window"),
        ("prompt is too long: 215000 tokens > 200000 maximum", "context_window"),
        ("input length and `max_tokens` exceed context limit: 178902 + 32000 > 200000", "context_window"),
        ("Output blocked by content filtering policy", "content_policy"),
        ("The prompt triggered Azure OpenAI's content management policy.", "content_policy"),
        ("temperature must be at most 2", None),
    ],
)
def test_failure_of_reply_reads_known_messages(message: str, kind: FallbackOn | None) -> None:
    """Servers without a code of their own are understood by their words."""
    assert failure_of(error_reply(400, message, code=400)).kind == kind
    assert failure_of(errors.UpstreamErrorEvent(message)).kind == (kind or "error")


@pytest.mark.parametrize(
    ("status", "message", "code", "is_unknown"),
    [
        (404, "The model `llama` does not exist.", None, True),
        (404, 'model "llama" not found, try pulling it first', "api_error", True),
        (404, "no", "model_not_found", True),
        (403, "Project `p` does not have access", "model_not_found", True),
        (403, "the model may not be asked from there", None, False),
        (404, "Not Found", None, False),
        (400, "the model has no tools", None, False),
    ],
)
def test_failure_of_reply_of_an_upstream_without_the_model_is_its_own(
    status: int, message: str, code: str | None, is_unknown: bool
) -> None:
    """The route's name for the model is not the client's fault; another upstream may have it."""
    expected = ("unknown_model", "error", WORKING) if is_unknown else (None, None, WORKING)

    assert failure_of(error_reply(status, message, code=code)) == expected


def test_failure_of_rate_limit_ignores_words_about_context() -> None:
    """A 429 is about capacity whatever its message says."""
    assert failure_of(error_reply(429, "maximum context length")).kind == "rate_limit"


def test_failure_of_error_is_retried_by_name_only_where_nothing_was_sent() -> None:
    """`connect` stands for exactly the errors that are safe to repeat."""
    upstream_errors = [each for each in _all_errors() if issubclass(each, UpstreamError)]

    assert len(upstream_errors) > 10
    for error in upstream_errors:
        assert (failure_of(error("x")).reason == "connect") == error.retryable, error


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["error", "message", "code", "type", "x"]), inner),
)


@given(st.integers(400, 599), st.binary() | json_values.map(msgspec.json.encode))
def test_failure_of_reply_any_body_stays_in_the_vocabulary(status: int, body: bytes) -> None:
    """No body an upstream can send breaks the classification."""
    failure = failure_of(Reply(status, [], body=body))

    assert failure.reason is None or failure.reason in get_args(RetryOn)
    assert failure.kind is None or failure.kind in get_args(FallbackOn)


def test_failure_of_reply_deeply_nested_body_is_judged_by_status() -> None:
    """A body that no parser descends into is no reason to fail."""
    body = b'{"error":{"message":' + b"[" * 100_000 + b"]" * 100_000 + b"}}"

    assert failure_of(Reply(500, [], body=body)) == Failure("500", "error", BROKEN)
