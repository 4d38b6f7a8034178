"""The dashboard under somebody's hands and eyes, in a real Chromium: what is focused, open, marked or scrolled stays
while figures are asked for anew, and labels and sentences can be read whatever there is to tell.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path

import httpx
import msgspec
import pytest

from gateway.ledger.days import Days
from gateway.ledger.row import Row, stored
from gateway.ledger.store import LEDGER, LedgerStore
from gateway.sql.sqlite import SqliteDatabase
from tests.support.gateway import Gateway, running_gateway
from tests.support.ledger import sample_row

playwright = pytest.importorskip("playwright.sync_api")

POLICY = """
version: 1
ledger: {{url: "sqlite:///{path}"}}
backends: {{up: {{type: scripted, price: {{input_per_1m: 2, output_per_1m: 8}}}}}}
routes: [{{name: all, match: {{models: ["*"]}}, backends: [{{ref: up}}]}}]
"""
DAY_S = 86400
DRAWN = """
    // What charts have written, since each was drawn last: from where to where, and how high.
    window.written = new Map();
    const {clearRect, fillText} = CanvasRenderingContext2D.prototype;
    CanvasRenderingContext2D.prototype.clearRect = function (...place) {
      written.set(this.canvas, []);
      return clearRect.apply(this, place);
    };
    CanvasRenderingContext2D.prototype.fillText = function (text, x, y, ...more) {
      const {a: scale, e, f} = this.getTransform();
      const width = this.measureText(text).width;
      const left = x + e / scale - {left: 0, start: 0, center: width / 2, right: width, end: width}[this.textAlign];
      written.get(this.canvas)?.push({text, left, right: left + width, y: y + f / scale});
      return fillText.call(this, text, x, y, ...more);
    };
"""


@pytest.fixture
def page(browser: playwright.Browser) -> Iterator[playwright.Page]:
    """In a window of usual size; fails where the browser has complained of more than what was refused."""
    said: list[str] = []
    with browser.new_context(viewport={"width": 1240, "height": 900}) as context:
        page = context.new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        yield page
    assert [text for text in said if "400 (Bad Request)" not in text] == []


def at(days_ago: float, n: int, *, model: str = "m1", dollars: float = 1) -> Row:
    row = sample_row(n, at_us=int((time.time() - days_ago * DAY_S) * 1e6))
    row.model, row.cost = model, int(dollars * 10**12)
    return row


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return tmp_path / "ledger.sqlite3"


def fill(path: Path, rows: Iterable[Row]) -> None:
    """A ledger with these calls, all of them in its sums."""
    store, days = LedgerStore(SqliteDatabase(path, LEDGER), "UTC"), Days("UTC")
    store.open()
    if made := [stored(msgspec.structs.astuple(row), 1, days.of(row.at_us)) for row in rows]:
        store.insert(made)
    store.roll_up(10_000)
    store.close()


def call(gateway: Gateway) -> None:
    """One more, made now."""
    body = {"model": "new", "messages": [{"role": "user", "content": "Hello"}]}
    httpx.post(f"{gateway.url}/v1/chat/completions", json=body).raise_for_status()


def has_settled(page: playwright.Page) -> None:
    page.locator("main:not([aria-busy]) h1").wait_for()


def focused(page: playwright.Page) -> str:
    """What has the focus, in words."""
    return str(page.evaluate("document.activeElement.getAttribute('aria-label') ?? document.activeElement.innerText"))


def test_a_row_keeps_the_focus_while_calls_come_in(page: playwright.Page, ledger: Path) -> None:
    """The list is asked for every two seconds; whoever walks through it by the keyboard stays where they are, and
    a narrow table stays as far as it was scrolled."""
    fill(ledger, [at(0.1, n, model=f"model-{n}") for n in range(1, 30)])
    with running_gateway(POLICY.format(path=ledger)) as gateway:
        page.set_viewport_size({"width": 400, "height": 900})
        page.goto(f"{gateway.url}/dashboard/requests")
        row = page.locator("tbody tr", has_text="model-20")
        row.focus()
        page.locator(".scroll").evaluate("table => table.scrollLeft = 150")
        call(gateway)
        page.locator("tbody tr", has_text="new").wait_for()
        assert "model-20" in focused(page)
        assert page.locator(".scroll").evaluate("table => table.scrollLeft") == 150
        row.press("Enter")
        page.get_by_role("heading", name="Charges").wait_for()
        # Not at the top of the window, from where all links of the head would come first.
        assert page.evaluate("document.activeElement.id") == "main"


def test_a_marked_text_is_not_taken_away(page: playwright.Page, ledger: Path) -> None:
    """An id is copied from a page that asks anew every two seconds."""
    fill(ledger, [at(0.1, n) for n in range(1, 5)])
    with running_gateway(POLICY.format(path=ledger)) as gateway:
        page.goto(f"{gateway.url}/dashboard/requests")
        page.locator("tbody td").first.evaluate("cell => getSelection().selectAllChildren(cell)")
        marked = page.evaluate("getSelection().toString()")
        with page.expect_response(lambda answer: answer.ok and answer.json()["rows"][0]["model"] == "new"):
            call(gateway)
        # What came with that answer has been drawn where the next one is there.
        with page.expect_response("**/api/requests*"):
            pass
        assert page.evaluate("getSelection().toString()") == marked != ""
        page.evaluate("getSelection().removeAllRanges()")
        page.locator("tbody tr", has_text="new").wait_for()


def test_what_is_chosen_by_the_keyboard_keeps_the_focus(page: playwright.Page, ledger: Path) -> None:
    """A span, what money is told apart by, an open table, the button that asks anew."""
    fill(ledger, [at(n / 10, n) for n in range(1, 40)])
    with running_gateway(POLICY.format(path=ledger)) as gateway:
        page.goto(f"{gateway.url}/dashboard")
        has_settled(page)
        page.get_by_label("Told apart by").focus()
        page.keyboard.press("ArrowDown")
        page.wait_for_url("**by=backend*")
        has_settled(page)
        assert focused(page) == "Told apart by"
        page.get_by_text("All as a table").click()
        page.get_by_role("link", name="30 d").focus()
        page.keyboard.press("Enter")
        page.get_by_text("spent in 30 days").wait_for()
        assert focused(page) == "30 d"
        page.get_by_role("button", name="Refresh").press("Enter")
        has_settled(page)
        assert focused(page) == "Refresh"
        assert page.locator("details[open] table").count() == 1


def test_labels_of_charts_can_be_read(page: playwright.Page, ledger: Path) -> None:
    """None is written over another one, none runs out of its chart: a month of days, amounts with many digits, rates
    of a few in a hundred thousand."""
    rows = [at(days, days, dollars=123_456) for days in range(36)]
    for row in rows:
        row.input_tokens, row.cached_tokens = 10**9, 40_000
    fill(ledger, rows)
    page.add_init_script(DRAWN)
    with running_gateway(POLICY.format(path=ledger)) as gateway:
        for path in ("?range=7d", "?range=30d", "?range=month", "?range=24h", "/errors?range=30d"):
            page.goto(f"{gateway.url}/dashboard{path}")
            has_settled(page)
            page.wait_for_function("written.size >= 4 && [...written.values()].every(texts => texts.length > 1)")
            charts = page.evaluate(
                "[...written].map(([canvas, texts]) => ({width: canvas.clientWidth, texts, name: canvas.ariaLabel}))"
            )
            for chart in charts:
                texts = sorted(chart["texts"], key=lambda text: (round(text["y"]), text["left"]))
                for text in texts:
                    assert -1 <= text["left"] < text["right"] <= chart["width"] + 1, (path, chart["name"], text)
                for text, following in pairwise(texts):
                    is_beside = abs(text["y"] - following["y"]) < 8
                    assert not is_beside or text["right"] <= following["left"], (path, chart["name"], text, following)


def test_sentences_say_what_has_become_of_money(page: playwright.Page, ledger: Path) -> None:
    """Much more, in times; what calls of checks have added has a plus, and a long name leaves the others their room."""
    long = "a" * 300
    rows = [at(days, days, model=long, dollars=20 if days < 7 else 1) for days in range(30)]
    for row in rows:
        row.saved_extra = -(10**12)
    fill(ledger, rows)
    with running_gateway(POLICY.format(path=ledger)) as gateway:
        page.goto(f"{gateway.url}/dashboard")
        has_settled(page)
        assert page.locator("h1").inner_text().startswith("$140.00 spent in 7 days, 20 times as much as in the 7 days")
        extra = page.locator(".ranked li", has_text="Checks, hedges, failed attempts")
        assert extra.locator("span").last.inner_text() == "+$7.00"
        widths = page.locator(".grid.money > *").evaluate_all("parts => parts.map(part => part.clientWidth)")
        assert widths[0] > widths[1] == pytest.approx(widths[2], abs=1)
        assert (
            page.locator("canvas").evaluate_all("charts => charts.filter(chart => chart.ariaLabel.startsWith('by '))")
            == []
        )


def test_a_quiet_hour_is_not_an_empty_ledger(page: playwright.Page, ledger: Path) -> None:
    """It is said what is so, and not how to make a first call."""
    fill(ledger, [at(2, 1)])
    with running_gateway(POLICY.format(path=ledger)) as gateway:
        page.goto(f"{gateway.url}/dashboard?range=1h")
        page.get_by_role("heading", name="No call has come by in the last hour.").wait_for()
        assert page.get_by_label("Question").count() == 0
        # The name of something that every object has is no page's.
        page.goto(f"{gateway.url}/dashboard/constructor")
        page.get_by_text("spent in 7 days").wait_for()


def test_without_charts_it_is_said_once(page: playwright.Page, ledger: Path) -> None:
    """What to install, and not at each place where a chart would be."""
    fill(ledger, [at(0.1, 1)])
    page.route("**/chart.bundle.js", lambda route: route.fulfill(content_type="text/javascript", body=""))
    with running_gateway(POLICY.format(path=ledger)) as gateway:
        for path in ("", "/errors", "/service"):
            page.goto(f"{gateway.url}/dashboard{path}")
            has_settled(page)
            playwright.expect(page.get_by_text("Charts need Chart.js")).to_have_count(1)


def test_a_filter_that_is_not_understood_finds_nothing(page: playwright.Page, ledger: Path) -> None:
    """It is said why, and can be mended where it stands; nothing is shown that it has not found."""
    fill(ledger, [at(0.1, n) for n in range(1, 5)])
    with running_gateway(POLICY.format(path=ledger)) as gateway:
        page.goto(f"{gateway.url}/dashboard/requests")
        page.locator("tbody tr").first.wait_for()
        page.get_by_role("searchbox").fill("status:often")
        page.keyboard.press("Enter")
        page.get_by_text("status: a number is wanted").wait_for()
        assert page.locator("tbody tr").count() == 0
        page.reload()
        page.get_by_text("status: a number is wanted").wait_for()
        page.get_by_role("searchbox").fill("model:m1")
        page.keyboard.press("Enter")
        playwright.expect(page.locator("tbody tr")).to_have_count(4)


def test_a_part_of_the_calls_has_no_budget_of_all(page: playwright.Page, ledger: Path) -> None:
    """What one model will come to in a month is not held against what everybody may spend."""
    fill(ledger, [at(days, days, model=f"m{days % 2}") for days in range(30)])
    policy = POLICY.format(path=ledger) + "budgets: [{name: all, per: all, usd: 90, every: month, on_exceed: warn}]\n"
    with running_gateway(policy) as gateway:
        page.goto(f"{gateway.url}/dashboard")
        month = page.locator("p.fine", has_text="so far")
        playwright.expect(month).to_contain_text("of $90.00")
        page.get_by_role("button", name="m1").click()
        page.get_by_text("show all").wait_for()
        has_settled(page)
        assert "about" in month.inner_text()
        assert "of $90.00" not in month.inner_text()


def test_a_call_in_minutes_is_more_than_none_a_second(page: playwright.Page, ledger: Path) -> None:
    """What is simulated is told by the second, also of traffic that has less than one."""
    fill(ledger, [])
    figures = {"load": 1, "rate_rps": 0.0113, "cache_hit_share": 0, "slo_share": 1, "shed_share": 0, "failed_share": 0}
    times = {"ttft_p50_s": 0.4, "ttft_p99_s": 2, "tpot_p50_ms": 13}
    fast = {"load": 100, "rate_rps": 1234.5}
    said = {"loads": {"calls": 24, "left_out": 0, "results": [{**figures, **times}, {**figures, **times, **fast}]}}
    page.route("**/api/simulate", lambda route: route.fulfill(body=json.dumps(said) + "\n"))
    with running_gateway(POLICY.format(path=ledger)) as gateway:
        page.goto(f"{gateway.url}/dashboard/simulate")
        page.get_by_role("button", name="Simulate").click()
        cells = page.locator("tbody tr td:nth-child(2)")
        playwright.expect(cells).to_have_text(["0.011", "1,234.5"])


def test_empty_pages_say_what_to_do(page: playwright.Page, ledger: Path) -> None:
    """How a route gets a cache, and a caller a budget."""
    fill(ledger, [])
    with running_gateway(POLICY.format(path=ledger)) as gateway:
        page.goto(f"{gateway.url}/dashboard/caches")
        page.get_by_text("cache: {exact: {ttl: 1h}}").wait_for()
        page.goto(f"{gateway.url}/dashboard/budgets")
        page.get_by_text("budgets: [{name: month, per: key, usd: 50, every: month}]").wait_for()


def test_a_budget_that_is_spent_has_ended(page: playwright.Page, ledger: Path) -> None:
    """And not in this minute, at whatever pace."""
    fill(ledger, [at(0, n) for n in range(1, 4)])
    policy = POLICY.format(path=ledger) + "budgets: [{name: all, per: all, usd: 2, every: total, on_exceed: warn}]\n"
    with running_gateway(policy) as gateway:
        page.goto(f"{gateway.url}/dashboard/budgets")
        playwright.expect(page.locator("tbody tr").first.locator("td").last).to_have_text("is used up")


def test_of_a_large_fleet_the_first_page_has_the_busiest(page: playwright.Page, ledger: Path) -> None:
    """And leads to all of it."""
    rows = [at(0.1, n) for n in range(1, 63)]
    for row in rows:
        # The last by its name has the most calls.
        row.backend = f"backend-{min(row.n, 30):02}"
    fill(ledger, rows)
    with running_gateway(POLICY.format(path=ledger)) as gateway:
        page.goto(f"{gateway.url}/dashboard")
        table = page.get_by_role("region", name="backends")
        playwright.expect(table.locator("tbody tr")).to_have_count(20)
        assert table.locator("tbody td").first.inner_text() == "backend-30"
        page.get_by_role("link", name="All 31 backends").click()
        playwright.expect(table.locator("tbody tr")).to_have_count(31)
