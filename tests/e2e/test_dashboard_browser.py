"""The dashboard in a real Chromium: every page with data, empty, signed out and refused; light, dark and on a phone.

What anybody may put into a name is a text there, and the browser has nothing to complain of.
"""

from __future__ import annotations

import csv
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import msgspec
import pytest

from gateway.ledger.days import Days
from gateway.ledger.row import stored
from gateway.ledger.store import LEDGER, LedgerStore
from gateway.sql.sqlite import SqliteDatabase
from tests.support.gateway import Gateway, running_gateway
from tests.support.ledger import sample_row

playwright = pytest.importorskip("playwright.sync_api")

HOSTILE = "<img src=x onerror=alert(1)>"
POLICY = """
version: 1
ledger: {{url: "sqlite:///{folder}/ledger.sqlite3"}}
stores: {{keys: {{url: "sqlite:///{folder}/keys.sqlite3"}}}}
backends:
  answers: {{type: scripted, price: {{input_per_1m: 200000, output_per_1m: 800000}}}}
  dead: {{type: openai, base_url: "http://127.0.0.1:9/v1", price: {{input_per_1m: 1, output_per_1m: 1}}}}
routes:
  - {{name: dead, match: {{models: [dead]}}, backends: [{{ref: dead}}]}}
  - {{name: all, match: {{models: ["*"]}}, backends: [{{ref: answers}}], cache: {{exact: {{ttl: 60s}}}}}}
budgets: [{{name: month, per: tenant, usd: 15, every: month, on_exceed: warn}}]
keys:
  - {{name: keeper, key: env:KEEPER, manages_keys: true}}
  - {{name: viewer, key: env:VIEWER, tenant: acme, viewer: true}}
  - {{name: plain, key: env:PLAIN}}
"""
ENVIRON = {name: f"sk-{name.lower()}-0123456789" for name in ("KEEPER", "VIEWER", "PLAIN")}
PAGES = ("", "/requests", "/errors", "/service", "/caches", "/backends", "/budgets", "/policy", "/simulate")


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """One with some traffic, some of it failed, some of it named by an enemy."""
    folder = tmp_path_factory.mktemp("dashboard")
    with running_gateway(POLICY.format(folder=folder), environ=ENVIRON) as running:
        with httpx.Client(
            verify=False, base_url=running.url, headers={"authorization": f"Bearer {ENVIRON['PLAIN']}"}
        ) as client:
            for model in ("m1", "m1", "m2", "dead", HOSTILE):
                body = {"model": model, "temperature": 0, "messages": [{"role": "user", "content": "Hello"}]}
                client.post(
                    "/v1/chat/completions",
                    json={**body, "user": HOSTILE},
                    headers={"user-agent": HOSTILE, "x-session-id": HOSTILE},
                )
        yield running


@contextmanager
def looking(browser: playwright.Browser, gateway: Gateway, name: str, **look: object) -> Iterator[playwright.Page]:
    """A page of who has signed in; fails where the browser has complained of anything but what was refused."""
    said: list[str] = []
    with browser.new_context(base_url=gateway.url, **look) as context:
        page = context.new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("dialog", lambda dialog: (said.append(f"a dialog: {dialog.message}"), dialog.accept()))
        page.goto("/dashboard")
        playwright.expect(page.get_by_label("Key")).to_be_focused()
        page.get_by_label("Key").fill(ENVIRON[name])
        page.get_by_role("button", name="Sign in").click()
        page.get_by_role("navigation", name="Pages").wait_for()
        yield page
    complaints = [text for text in said if not re.search("status of 40[0-9]", text)]
    assert complaints == []


def has_settled(page: playwright.Page) -> None:
    page.locator("main:not([aria-busy]) h1").wait_for()


@pytest.mark.parametrize(("scheme", "width"), [("light", 1240), ("dark", 1240), ("light", 390)])
def test_each_page_shows_its_figures(gateway: Gateway, browser: playwright.Browser, scheme: str, width: int) -> None:
    """Nothing runs out of the window, charts are drawn, names are texts, whatever they are."""
    with looking(browser, gateway, "KEEPER", color_scheme=scheme, viewport={"width": width, "height": 1800}) as page:
        for path in PAGES:
            page.goto(f"/dashboard{path}")
            has_settled(page)
            assert page.evaluate("document.documentElement.scrollWidth") == width, path
            assert page.locator("img").count() == 0
        page.goto("/dashboard")
        page.locator("canvas").nth(5).wait_for()
        page.wait_for_function(
            "[...document.querySelectorAll('canvas')].every(canvas => canvas.width > 0 &&"
            " canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data.some(value => value > 0))"
        )
        assert page.get_by_text(HOSTILE, exact=True).count() >= 1
        assert "spent in 7 days" in page.locator("h1").inner_text()
        background = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
        assert background == ("rgb(19, 23, 27)" if scheme == "dark" else "rgb(252, 252, 251)")


def test_one_moment_is_looked_at_on_all_charts(gateway: Gateway, browser: playwright.Browser) -> None:
    """By the arrow keys and by the pointer: each figure says what it was then, and else what it is in all."""
    with looking(browser, gateway, "KEEPER", viewport={"width": 1240, "height": 1800}) as page:
        has_settled(page)
        spent, requests = (page.locator("figure", has_text=name).first for name in ("Spent, by day", "Requests"))
        chart = spent.locator("canvas")
        chart.wait_for()
        whole = [figure.locator(".big").inner_text() for figure in (spent, requests)]
        chart.focus()
        chart.press("ArrowLeft")
        chart.press("ArrowLeft")
        playwright.expect(requests.locator(".big")).to_have_text("0")
        playwright.expect(spent.locator(".big")).to_have_text("$0.00")
        assert "before" not in requests.locator(".change").inner_text()
        chart.press("End")
        playwright.expect(requests.locator(".big")).to_have_text("5")
        assert "$" in (chart.get_attribute("aria-valuetext") or "")
        chart.press("Escape")
        playwright.expect(requests.locator(".big")).to_have_text(whole[1])
        requests.locator("canvas").hover(position={"x": 70, "y": 50})
        playwright.expect(spent.locator(".big")).to_have_text("$0.00")
        page.locator("h1").hover()
        playwright.expect(spent.locator(".big")).to_have_text(whole[0])


def test_a_call_is_found_and_opened(gateway: Gateway, browser: playwright.Browser) -> None:
    """By the keyboard alone, from a filter to the call's charges; the address leads there again, Back leads back."""
    with looking(browser, gateway, "KEEPER") as page:
        page.goto("/dashboard/requests")
        field = page.get_by_role("searchbox")
        field.fill("model:m1 cache:hit")
        field.press("Enter")
        page.wait_for_url("**/requests?filter=model*")
        row = page.locator("tbody tr")
        playwright.expect(row).to_have_count(1)
        row.focus()
        row.press("Enter")
        page.get_by_role("heading", name="Charges").wait_for()
        page.reload()
        page.get_by_role("heading", name="Charges").wait_for()
        assert "exact:" in page.locator("main").inner_text()
        page.go_back()
        playwright.expect(page.locator("tbody tr")).to_have_count(1)


def test_errors_lead_to_their_calls(gateway: Gateway, browser: playwright.Browser) -> None:
    """Whose fault, how often; a click shows those calls."""
    with looking(browser, gateway, "KEEPER") as page:
        page.get_by_role("link", name="Errors").click()
        page.get_by_role("heading", name="1 of 5 calls have failed.").wait_for()
        page.locator("tbody tr").first.click()
        page.wait_for_url("**/requests?filter=fault*")
        playwright.expect(page.locator("tbody tr")).to_have_count(1)


def test_keys_are_made_and_revoked(gateway: Gateway, browser: playwright.Browser) -> None:
    """The secret is shown once; one that is revoked says so."""
    with looking(browser, gateway, "KEEPER") as page:
        page.goto("/dashboard/budgets")
        page.get_by_text("Make a key").click()
        page.get_by_label("Name").fill("made-here")
        page.get_by_role("button", name="Make").click()
        secret = page.locator("dialog pre").inner_text()
        page.get_by_role("button", name="I have it").click()
        row = page.locator("tr", has_text="made-here")
        playwright.expect(row).to_contain_text("active")
        assert secret.endswith(row.locator("td").nth(4).inner_text().removeprefix("…"))
        assert secret not in page.content()


def test_what_a_button_has_asked_for_in_vain_is_said(gateway: Gateway, browser: playwright.Browser) -> None:
    """A key that could not be rotated is not taken for one that was."""
    with looking(browser, gateway, "KEEPER") as page:
        page.goto("/dashboard/budgets")
        page.get_by_text("Make a key").click()
        page.get_by_label("Name").fill("kept")
        page.get_by_role("button", name="Make").click()
        page.get_by_role("button", name="I have it").click()
        refused = {"error": {"message": "the store is away"}}
        page.route("**/api/keys/kept/rotate", lambda route: route.fulfill(status=409, json=refused))
        page.locator("tr", has_text="kept").get_by_role("button", name="Rotate").click()
        playwright.expect(page.locator("#strip")).to_have_text("the store is away")


def test_a_viewer_has_no_backends_and_no_keys(gateway: Gateway, browser: playwright.Browser) -> None:
    """And no traffic of others: its tenant has none, so it is told how to begin."""
    with looking(browser, gateway, "VIEWER") as page:
        page.get_by_role("heading", name="Nothing has come by yet.").wait_for()
        assert "curl" in page.locator("pre").inner_text()
        page.goto("/dashboard/budgets")
        has_settled(page)
        assert page.get_by_text("Make a key").count() == 0


@pytest.mark.parametrize("path", ["", "/caches", "/errors", "/budgets"])
def test_figures_stay_while_the_gateway_is_away(gateway: Gateway, browser: playwright.Browser, path: str) -> None:
    """With a word about it; while an answer is waited for the page says so, and goes on with the next one."""
    with browser.new_context(base_url=gateway.url) as context:
        page = context.new_page()
        page.goto("/dashboard")
        page.get_by_label("Key").fill(ENVIRON["KEEPER"])
        page.get_by_role("button", name="Sign in").click()
        page.goto(f"/dashboard{path}")
        has_settled(page)
        title = page.locator("h1").inner_text()
        page.route("**/dashboard/api/**", lambda route: route.abort())
        page.get_by_role("button", name="Refresh").click()
        page.get_by_text("The figures are old").wait_for()
        assert page.locator("h1").inner_text() == title
        page.unroute("**/dashboard/api/**")
        # Held back until nobody holds them any more.
        page.route("**/dashboard/api/**", lambda route: None)
        page.get_by_role("button", name="Refresh").click()
        page.locator("main[aria-busy]").wait_for()
        page.unroute("**/dashboard/api/**")
        has_settled(page)
        playwright.expect(page.locator("#strip")).to_be_empty()


def test_a_viewer_without_calls_is_told_so(gateway: Gateway, browser: playwright.Browser) -> None:
    """On each page in words; who is no operator is refused the policy, and finds no link to it."""
    with looking(browser, gateway, "VIEWER") as page:
        page.goto("/dashboard/caches")
        page.get_by_role("heading", name="No call has met a cache.").wait_for()
        page.goto("/dashboard/errors?range=1h")
        page.get_by_role("heading", name="No call has failed.").wait_for()
        assert page.get_by_role("link", name="Policy").count() == 0
        page.goto("/dashboard/policy")
        page.get_by_text("this key is no operator's").wait_for()


def test_who_may_not_look_stays_outside(gateway: Gateway, browser: playwright.Browser) -> None:
    """With the reason; who signs out is asked again."""
    with looking(browser, gateway, "VIEWER") as page:
        page.get_by_role("button", name="Sign out").click()
        page.get_by_label("Key").fill(ENVIRON["PLAIN"])
        page.get_by_role("button", name="Sign in").click()
        page.get_by_text("this key may not see the dashboard").wait_for()


def test_an_open_gateway_is_tried_from_its_page(browser: playwright.Browser, tmp_path: Path) -> None:
    """A question in the box, its answer streamed, and then there are figures."""
    policy = POLICY.partition("budgets:")[0].replace("stores:", "# ").format(folder=tmp_path)
    with running_gateway(policy) as gateway, browser.new_context(base_url=gateway.url) as context:
        page = context.new_page()
        said: list[str] = []
        page.on("console", lambda message: said.append(message.text))
        page.goto("/")
        page.get_by_label("Model").fill("m1")
        page.get_by_label("Question").fill("What is this?")
        page.get_by_role("button", name="Ask").click()
        page.get_by_text("tokens").wait_for()
        assert page.locator(".answer").inner_text()
        until = time.monotonic() + 15
        while "spent" not in page.locator("h1").inner_text():
            assert time.monotonic() < until
            page.reload()
            has_settled(page)
        assert said == []


NAMES = (
    "</script><script>alert(1)</script>",
    "=cmd|' /C calc'!A0",
    "\t=1+1",
    "@SUM(1)",
    "-2+3",
    'a "quote", and\nlines',
    "\u202egnp.exe",
)


def test_thousands_of_names_and_names_of_an_enemy(browser: playwright.Browser, tmp_path: Path) -> None:
    """The dearest are told and the rest is one line; nothing that is saved is reckoned with, nothing shown is run."""
    store, days = (
        LedgerStore(SqliteDatabase(tmp_path / "ledger.sqlite3", LEDGER), "Pacific/Kiritimati"),
        Days("Pacific/Kiritimati"),
    )
    store.open()
    now_us = int(time.time() * 1e6)
    rows = []
    for number in range(5000):
        row = sample_row(number, at_us=now_us - number * 1000)
        # Dearer than the others, so that they are among those that are told.
        row.model, row.cost = (NAMES[number], 10**13 - number) if number < len(NAMES) else (f"model-{number}", 10**9)
        rows.append(stored(msgspec.structs.astuple(row), 1, days.of(row.at_us)))
    store.insert(rows)
    store.close()
    policy = (
        POLICY.partition("stores:")[0].replace('3"}}', '3", time_zone: Pacific/Kiritimati}}').format(folder=tmp_path)
    )
    policy += "backends: {up: {type: scripted}}\nroutes: [{name: all, match: {models: ['*']}, backends: [{ref: up}]}]\n"
    with (
        running_gateway(policy) as gateway,
        browser.new_context(base_url=gateway.url, timezone_id="Pacific/Niue") as context,
    ):
        page = context.new_page()
        said: list[str] = []
        page.on("console", lambda message: said.append(message.text))
        page.on("dialog", lambda dialog: (said.append(f"a dialog: {dialog.message}"), dialog.accept()))
        page.goto("/dashboard?range=7d")
        has_settled(page)
        assert "4,994 others" in page.locator(".ranked").first.inner_text()
        page.get_by_text("All as a table").click()
        with page.expect_download() as download:
            page.get_by_role("button", name="Save as CSV").first.click()
        saved = download.value.path().read_text(encoding="utf-8")
        lines = list(csv.reader(saved.splitlines(keepends=True)))
        first = [line[0] for line in lines[1 : len(NAMES) + 1]]
        assert first == [f"'{name}" if name[0] in "=@-\t" else name for name in NAMES]
        assert lines[1][1] == "10"
        assert lines[-1][0] == "4950 others"
        # Days are the ledger's, also where the browser is a day behind.
        month = page.evaluate(
            "new Intl.DateTimeFormat('en-GB', {month: 'short', timeZone: 'Pacific/Kiritimati'}).format(new Date())"
        )
        assert page.locator(".ranges a").last.inner_text() == month
        assert page.locator("script").count() == 2
        assert said == []


def test_a_key_that_is_revoked_ends_the_sight(gateway: Gateway, browser: playwright.Browser) -> None:
    """In every tab that its owner has open: what was there is gone, and the way in is there."""
    headers = {"origin": gateway.url, "sec-fetch-site": "same-origin", "x-slipstream-csrf": "1"}
    with httpx.Client(verify=False, base_url=f"{gateway.url}/dashboard/api/", headers=headers) as keeper:
        keeper.post("sign-in", json={"key": ENVIRON["KEEPER"]}).raise_for_status()
        made = (
            keeper.post("keys", json={"name": "guest", "tenant": "default", "viewer": True}).raise_for_status().json()
        )
        with browser.new_context(base_url=gateway.url) as context:
            one, other = context.new_page(), context.new_page()
            one.goto("/dashboard")
            one.get_by_label("Key").fill(made["key"])
            one.get_by_role("button", name="Sign in").click()
            one.get_by_text("spent in 7 days").wait_for()
            other.goto("/dashboard/requests")
            other.locator("tbody tr").first.wait_for()
            keeper.post("keys/guest/revoke", json={}).raise_for_status()
            one.get_by_role("button", name="Refresh").click()
            for page in (one, other):
                # The list of calls asks every two seconds by itself.
                page.get_by_label("Key").wait_for()
                assert page.get_by_text("spent in").count() == page.locator("tbody tr").count() == 0
