"""What is taken out of an upstream's errors, and what is not."""

from __future__ import annotations

import json

import pytest
from pydantic import SecretStr

from backends.http.redact import Redactor

KEY = "sk-a/b+c-1234"
redactor = Redactor("https://llm.inner.example:8443/v1", [SecretStr(KEY)], {"x-token": "Basic dXNlcjpwYXNz"})


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("got sk-a/b+c-1234.", "got [redacted]."),
        ("key dXNlcjpwYXNz is wrong", "key [redacted] is wrong"),
        ("key Basic dXNlcjpwYXNz is wrong", "key [redacted] is wrong"),
        ("POST https://llm.inner.example:8443/v1/chat", "POST [redacted]/chat"),
        ("llm.inner.example:8443 refused", "[redacted] refused"),
        ("resolve llm.inner.example.", "resolve [redacted]."),
        ("\nsk-other", "\nsk-other"),
        ("nothing of that", "nothing of that"),
    ],
)
def test_secrets_and_addresses_are_taken_out(said: str, shown: str) -> None:
    """As text, and in JSON with any escapes."""
    assert redactor.text(said) == shown
    escaped = "".join(f"\\u{ord(character):04x}" for character in said)
    assert json.loads(redactor.data(b'"%b"' % json.dumps(said)[1:-1].encode())) == shown
    assert json.loads(redactor.data(b'"%b"' % escaped.encode())) == shown


def test_bytes_without_a_secret_stay_as_they_are() -> None:
    """Escapes too."""
    said = b'{"error":{"message":"a\\u0062\\/ \\n","x":"\\\\u0073"}}'

    assert redactor.data(said) == said


@pytest.mark.parametrize("key", ["EMPTY", "none", ""])
def test_placeholder_is_no_secret(key: str) -> None:
    """Words that stand where a key should are left in messages, and so is a host that is a word."""
    plain = Redactor("http://vllm:8000/v1", [SecretStr(key)], {"content-type": "application/json"})

    assert plain.text("EMPTY none vllm application/json") == "EMPTY none vllm application/json"
    assert plain.text("at vllm:8000") == "at [redacted]"


def test_header_field_that_holds_a_secret_is_left_out() -> None:
    """The others stay."""
    headers = [(b"www-authenticate", b'Basic realm="dXNlcjpwYXNz"'), (b"x-a", b"1")]

    assert redactor.fields(headers) == [(b"x-a", b"1")]


def test_good_answers_fields_show_no_secret() -> None:
    """What is around it stays, and so does every other field; places may be named on purpose."""
    fields = [
        (b"x-debug", b"Bearer sk-a/b+c-1234;"),
        (b"x-echo", b"dXNlcjpwYXNz"),
        (b"location", b"llm.inner.example:8443"),
    ]

    assert redactor.answer_fields(fields) == [
        (b"x-debug", b"Bearer [redacted];"),
        (b"x-echo", b"[redacted]"),
        (b"location", b"llm.inner.example:8443"),
    ]
    assert redactor.answer_fields(fields[2:]) == fields[2:]
