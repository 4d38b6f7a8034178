"""What a call costs that only passes through, before it goes out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.operations import Metering, Terms
from policies.objects.names import COLLECTIONS
from policies.passthrough.rules import WITHOUT_STATE, PassRules
from policies.passthrough.settings import PassthroughPolicy

FREE, METERED, UNMETERED = Metering.FREE, Metering.METERED, Metering.UNMETERED
STATELESS = {
    "/audio/transcriptions": UNMETERED,
    "/audio/translations": UNMETERED,
    "/audio/speech": UNMETERED,
    "/images/generations": UNMETERED,
    "/images/edits": UNMETERED,
    "/images/variations": UNMETERED,
    "/moderations": METERED,
    "/rerank": METERED,
    "/score": METERED,
    "/classify": METERED,
    "/pooling": METERED,
    "/tokenize": FREE,
    "/detokenize": FREE,
    "/messages": METERED,
    "/messages/count_tokens": FREE,
    "/responses/compact": METERED,
    "/chat/completions/batch": METERED,
    "/responses/input_tokens": FREE,
}
MADE = {
    "/files": FREE,
    "/uploads": FREE,
    "/conversations": FREE,
    "/threads": FREE,
    "/assistants": FREE,
    "/batches": UNMETERED,
    "/vector_stores": UNMETERED,
    "/fine_tuning/jobs": UNMETERED,
    "/videos": UNMETERED,
    "/containers": UNMETERED,
}


def rules(flat_usd: dict[str, float] | None = None) -> PassRules:
    return PassRules(PassthroughPolicy(flat_usd=flat_usd or {}), is_shared=False)


def metering(method: str, path: str) -> Metering:
    return rules().terms(method, path).metering


def test_every_call_that_passes_by_default_has_its_metering() -> None:
    """A new one of the list is decided about, not forgotten."""
    assert {call.removeprefix("POST ") for call in WITHOUT_STATE} == STATELESS.keys()
    assert {path: metering("POST", path) for path in STATELESS} == STATELESS
    assert {path: metering("POST", path) for path in MADE} == MADE
    assert set(COLLECTIONS) - MADE.keys() == {"/responses", "/chat/completions"}


@pytest.mark.parametrize(
    "path",
    [
        *("/threads/runs", "/threads/t/runs", "/threads/t/runs/r/submit_tool_outputs", "/vector_stores/v/search"),
        *("/fine_tuning/jobs/j/resume", "/realtime/sessions", "/realtime/client_secrets", "/evals/e/runs"),
        *("/messages/batches", "/skills/x", "/engines/davinci/completions", "/openai/deployments/d/chat/completions"),
        *("/files/f/x/y", "/responses/r", "/conversations/c/items/i", "/chat/completions/c/messages"),
        "/chat/completions/c",
    ],
)
def test_what_starts_something_or_is_not_known_is_unmetered(path: str) -> None:
    """Jobs, runs, sessions of other protocols, other APIs."""
    assert metering("POST", path) is UNMETERED
    assert metering("PUT", "/files/f") is UNMETERED
    assert metering("PATCH", path) is UNMETERED


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("GET", "/responses/r", FREE),
        ("HEAD", "/files", FREE),
        ("GET", "/chat/completions", FREE),
        ("DELETE", "/anything", FREE),
        ("GET", "/prompt/a-cat", UNMETERED),
        ("POST", "/responses/r/cancel", FREE),
        ("POST", "/threads/t/runs/r/cancel", FREE),
    ],
)
def test_what_reads_or_ends_something_is_free(method: str, path: str, expected: Metering) -> None:
    """Of the API; of others a GET may have a model work."""
    assert metering(method, path) is expected
    assert rules().terms(method, path).is_reading is (expected is FREE)


def test_a_kept_chat_is_known_by_its_id() -> None:
    """To change what is kept costs nothing; servers have other calls beside it, which have a model work."""
    assert metering("POST", "/chat/completions/chatcmpl-123") is FREE
    assert metering("POST", "/v1/chat/completions/Batch/") is METERED


@pytest.mark.parametrize("path", [path for path, each in {**STATELESS, **MADE}.items() if each is FREE])
def test_what_is_free_and_begins_something_is_no_reading(path: str) -> None:
    """A spent budget lets it go no more."""
    assert not rules().terms("POST", path).is_reading


@given(st.sampled_from(sorted({**STATELESS, **MADE})), st.lists(st.booleans(), min_size=40, max_size=40))
def test_spelling_does_not_change_what_it_costs(path: str, upper: list[bool]) -> None:
    """An upstream may not mind the case, and then it is the same call."""
    flat = rules({"POST /v1/audio/*": 0.015, "POST /files": 0.1})
    written = "".join(letter.upper() if up else letter for letter, up in zip(path, upper, strict=False))

    for each in (written, f"/v1{written}", f"{written}/"):
        assert flat.terms("POST", each) == flat.terms("POST", path)


def test_first_flat_price_that_fits_counts_and_0_is_one() -> None:
    """Exactly, to the pico-dollar; every other call is as it was."""
    flat = rules(
        {"POST /v1/audio/speech": 0.000000000015, "POST /audio/*": 0.1, "GET /skills/*": 0, "* /v1/videos*": 2}
    )

    assert flat.terms("POST", "/audio/speech") == Terms(Metering.FLAT, 15)
    assert flat.terms("POST", "/audio/translations") == Terms(Metering.FLAT, 10**11)
    assert flat.terms("HEAD", "/skills/x") == Terms(Metering.FLAT, 0)
    assert flat.terms("POST", "/videos").flat_cost == flat.terms("DELETE", "/videos/v").flat_cost == 2 * 10**12
    assert flat.terms("GET", "/audio/voices").metering is FREE
    assert flat.terms("POST", "/rerank").metering is METERED
