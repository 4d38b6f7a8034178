"""The dashboard over HTTP: who signs in sees what its key may see, and nobody else sees or changes anything."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from gateway.cli.main import cli
from tests.support.gateway import Gateway, running_gateway, start_gateway

POLICY = """
version: 1
ledger: {{url: "sqlite:///{folder}/ledger.sqlite3"}}
stores: {{keys: {{url: "sqlite:///{folder}/keys.sqlite3"}}}}
backends:
  answers: {{type: scripted, price: {{input_per_1m: 2, output_per_1m: 8}}}}
routes: [{{name: all, match: {{models: ["*"]}}, backends: [{{ref: answers}}], cache: {{exact: {{ttl: 60s}}}}}}]
budgets: [{{name: month, per: tenant, usd: 50, every: month}}]
keys:
  - {{name: boss, key: env:BOSS, admin: true}}
  - {{name: keeper, key: env:KEEPER, manages_keys: true}}
  - {{name: acme-web, key: env:ACME, tenant: acme, viewer: true}}
  - {{name: other-web, key: env:OTHER, tenant: other, viewer: true}}
  - {{name: plain, key: env:PLAIN, tenant: acme}}
"""
ENVIRON = {name: f"sk-{name.lower()}-0123456789" for name in ("BOSS", "KEEPER", "ACME", "OTHER", "PLAIN")}
READ = (
    *("me", "overview", "service", "backends", "fleet", "errors", "budgets", "keys", "requests", "requests/1"),
    *("caches", "cache/entries", "cache/served/1", "cache/policy", "policy"),
)
HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """One that has answered six calls of two tenants."""
    folder = tmp_path_factory.mktemp("dashboard")
    with running_gateway(POLICY.format(folder=folder), environ=ENVIRON) as running:
        for name, model in (("PLAIN", "m1"), ("PLAIN", "m1"), ("PLAIN", HOSTILE), ("OTHER", "m1"), ("OTHER", "m2")):
            body = {"model": model, "temperature": 0, "messages": [{"role": "user", "content": f"{name} {model}"}]}
            headers = {"authorization": f"Bearer {ENVIRON[name]}"}
            httpx.post(f"{running.url}/v1/chat/completions", json=body, headers=headers).raise_for_status()
        yield running


def own(gateway: Gateway) -> dict[str, str]:
    """What a browser sends with a change that the dashboard's own page asks for."""
    return {"origin": gateway.url, "sec-fetch-site": "same-origin", "x-slipstream-csrf": "1"}


@asynccontextmanager
async def signed_in(gateway: Gateway, name: str) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(verify=False, base_url=f"{gateway.url}/dashboard/api/") as client:
        answer = await client.post("sign-in", json={"key": ENVIRON[name]}, headers=own(gateway))
        assert answer.status_code == 200, answer.text
        yield client


@pytest.fixture
async def boss(gateway: Gateway) -> AsyncIterator[httpx.AsyncClient]:
    async with signed_in(gateway, "BOSS") as client:
        yield client


@pytest.fixture
async def viewer(gateway: Gateway) -> AsyncIterator[httpx.AsyncClient]:
    async with signed_in(gateway, "ACME") as client:
        yield client


async def stored(client: httpx.AsyncClient, calls: int) -> dict[str, Any]:
    """The overview once so many calls are in the ledger."""
    async with asyncio.timeout(15):
        while True:
            found: dict[str, Any] = (await client.get("overview")).raise_for_status().json()
            if found["totals"]["calls"] >= calls:
                return found
            await asyncio.sleep(0.05)


async def test_an_admin_sees_what_the_ledger_has(gateway: Gateway, boss: httpx.AsyncClient) -> None:
    """The same sums as the command line, to the last decimal."""
    found = await stored(boss, 5)
    report = CliRunner().invoke(
        cli, ["ledger", "report", "--config", str(gateway.policy), "--by", "model", "--format", "json"]
    )
    lines = {line["model"]: line for line in json.loads(report.stdout)}

    assert found["totals"]["hits"] == 1
    assert Decimal(found["money"]["spent"]) == sum(Decimal(line["cost_usd"]) for line in lines.values()) > 0
    assert Decimal(found["money"]["saved"]) == sum(Decimal(line["saved_usd"]) for line in lines.values()) > 0
    assert {line["name"]: line["cost"] for line in found["money"]["by"]} == {
        model: line["cost_usd"] for model, line in lines.items()
    }
    assert {share["name"] for share in found["shares"]} == {"acme", "other"}


async def test_a_viewer_sees_its_tenant_alone(viewer: httpx.AsyncClient, boss: httpx.AsyncClient) -> None:
    """Its own calls in each figure; what is everybody's is not there for it."""
    await stored(boss, 5)
    found = (await viewer.get("overview", params={"by": "tenant"})).json()
    calls = (await viewer.get("requests", params={"filter": "-tenant:acme"})).json()
    everything = (await boss.get("requests")).json()["rows"]
    foreign = next(row["seq"] for row in everything if row["tenant"] == "other")

    assert [line["name"] for line in found["money"]["by"]] == ["acme"]
    assert found["shares"] == []
    assert calls["rows"] == []
    assert {row["tenant"] for row in (await viewer.get("requests")).json()["rows"]} == {"acme"}
    assert {row["who"] for row in (await viewer.get("budgets")).json()["rows"]} == {"acme"}
    assert {row["who"] for row in (await boss.get("budgets")).json()["rows"]} == {"acme", "other"}
    for budget in (await boss.get("budgets")).json()["rows"]:
        # The month has gone on for some time, or its end cannot be told.
        likely = budget["by_its_end_usd"]
        assert likely is None or Decimal(likely) >= Decimal(budget["spent_usd"]) > 0
    for hidden in ("backends", "keys", f"requests/{foreign}"):
        assert (await viewer.get(hidden)).status_code == 404
    assert (await viewer.get("overview", params={"only": "tenant:other"})).status_code == 400


@pytest.mark.parametrize("cookie", ["", "slipstream_dashboard=", "slipstream_dashboard=WyJib3NzIl0.AAAA"])
async def test_without_a_session_there_is_nothing(gateway: Gateway, cookie: str) -> None:
    """A key in a header is none: other sites' scripts could not send it, but programs have their own APIs."""
    headers = {"authorization": f"Bearer {ENVIRON['BOSS']}", **({"cookie": cookie} if cookie else {})}
    async with httpx.AsyncClient(verify=False, base_url=f"{gateway.url}/dashboard/api/", headers=headers) as client:
        for path in READ:
            assert (await client.get(path)).status_code == 401, path
        for path in ("keys", "keys/boss/revoke", "raises", "cache/feedback", "cache/explain", "policy/try"):
            assert (await client.post(path, json={}, headers=own(gateway))).status_code == 401, path


async def test_keys_that_may_see_nothing_do_not_get_in(gateway: Gateway) -> None:
    """Neither do those that are none."""
    async with httpx.AsyncClient(verify=False, base_url=f"{gateway.url}/dashboard/api/") as client:
        for key, status in ((ENVIRON["PLAIN"], 403), ("sk-none", 401), ("", 401), ("\u00e4", 401), (None, 401)):
            answer = await client.post("sign-in", json={"key": key}, headers=own(gateway))
            assert (answer.status_code, "set-cookie" in answer.headers) == (status, False), key


async def test_changes_need_the_right_and_the_own_page(gateway: Gateway, boss: httpx.AsyncClient) -> None:
    """Keys are made, rotated and revoked, budgets raised, by one key alone, and never by another site's page."""
    async with signed_in(gateway, "KEEPER") as keeper:
        foreign = {**own(gateway), "sec-fetch-site": "cross-site", "origin": "http://evil.example"}
        for headers in (foreign, {"origin": gateway.url, "sec-fetch-site": "same-origin"}, {}):
            assert (await keeper.post("keys", json={"name": "new"}, headers=headers)).status_code == 403
        as_text = {**own(gateway), "content-type": "text/plain"}
        form = await keeper.post("keys", content=b'{"name": "new"}', headers=as_text)
        assert form.status_code == 400
        assert (await boss.post("keys", json={"name": "new"}, headers=own(gateway))).status_code == 403

        made = (await keeper.post("keys", json={"name": "new", "tenant": "acme"}, headers=own(gateway))).json()
        chat = {"model": "m1", "messages": [{"role": "user", "content": "hi"}]}
        call = {"headers": {"authorization": f"Bearer {made['key']}"}, "json": chat}
        url = f"{gateway.url}/v1/chat/completions"
        assert (await keeper.post(url, **call)).status_code == 200
        listed = (await keeper.get("keys")).json()
        assert [key["name"] for key in listed["stored"]["data"]] == ["new"]
        assert "key" not in listed["stored"]["data"][0]
        raised = {"budget": "month", "who": "acme", "usd": "5", "until": "1h", "why": "a test"}
        assert (await keeper.post("raises", json=raised, headers=own(gateway))).status_code == 200
        assert (await keeper.post("keys/new/revoke", json={}, headers=own(gateway))).status_code == 200
        assert (await keeper.post(url, **call)).status_code == 401


async def test_hits_are_told_by_step_route_and_tenant(boss: httpx.AsyncClient, viewer: httpx.AsyncClient) -> None:
    """The same as on the first page; of a tenant its own, without how sure the semantic cache is of all of them."""
    whole = await stored(boss, 5)
    found, own = (await boss.get("caches")).json(), (await viewer.get("caches")).json()

    for name, counts in found["counts"].items():
        assert sum(counts) == found["totals"][name] == whole["totals"][name], name
    assert [(route["name"], route["hits"]) for route in found["routes"]] == [("all", 1)]
    assert found["totals"]["looked_up"] > own["totals"]["looked_up"] > 0
    assert {model["name"] for model in own["models"]} == {"m1", HOSTILE}
    assert (own["semantic"], own["has_entries"]) == ({}, False)


async def test_each_span_tells_the_same_of_the_last_minute(boss: httpx.AsyncClient, viewer: httpx.AsyncClient) -> None:
    """By the minute from rows, by the hour and the day from sums: to the last decimal, percentiles too."""
    await stored(boss, 5)
    for client in (boss, viewer):
        found = {
            span: (await client.get("overview", params={"range": span})).raise_for_status().json()
            for span in ("1h", "24h", "7d")
        }
        by_minute, *others = found.values()
        assert len(by_minute["at"]) == 60
        for other in others:
            for name in ("totals", "shares"):
                assert by_minute[name] == other[name], name
            assert by_minute["money"]["by"] == other["money"]["by"]
            assert by_minute["money"]["spent"] == other["money"]["spent"]
            wholes = [{name: of["whole"] for name, of in each["times"].items()} for each in (by_minute, other)]
            assert wholes[0] == wholes[1]
    for page in ("caches", "backends", "errors"):
        assert (await boss.get(page, params={"range": "1h"})).status_code == 200


async def test_backends_have_a_past(boss: httpx.AsyncClient) -> None:
    """How many calls each had in hand, and for how long it was away: from samples of each minute."""
    async with asyncio.timeout(15):
        while True:
            (backend,) = (await boss.get("backends", params={"range": "1h"})).json()["rows"]
            if any(value is not None for value in backend["in_flight"]):
                break
            await asyncio.sleep(0.05)
    assert len(backend["in_flight"]) == 60
    assert (backend["minutes_out"], backend["minutes_silent"]) == (0, 0)


async def test_what_has_not_changed_is_not_told_again(
    gateway: Gateway, boss: httpx.AsyncClient, viewer: httpx.AsyncClient
) -> None:
    """Until a call comes by; nobody is told by another one's tag that nothing has changed."""
    before = await stored(boss, 5)
    for path in ("overview", "overview?range=1h", "caches", "errors", "requests"):
        tags = {(await client.get(path)).headers["etag"] for client in (boss, viewer)}
        assert len(tags) == 2, path
        first = await boss.get(path)
        again = {"if-none-match": first.headers["etag"]}
        assert float(first.headers["server-timing"].removeprefix("ledger;dur=")) >= 0
        assert (await viewer.get(path, headers=again)).status_code == 200
    tag = (await boss.get("requests")).headers["etag"]
    assert (await boss.get("requests", headers={"if-none-match": tag})).status_code == 304
    body = {"model": "m1", "messages": [{"role": "user", "content": "hi"}]}
    call = {"headers": {"authorization": f"Bearer {ENVIRON['OTHER']}"}, "json": body}
    (await boss.post(f"{gateway.url}/v1/chat/completions", **call)).raise_for_status()
    await stored(boss, before["totals"]["calls"] + 1)
    assert (await boss.get("requests", headers={"if-none-match": tag})).status_code == 200


async def test_who_signs_out_is_out(gateway: Gateway) -> None:
    """The cookie is taken away."""
    async with signed_in(gateway, "BOSS") as client:
        answer = await client.post("sign-out", json={}, headers=own(gateway))
        assert "Max-Age=0" in answer.headers["set-cookie"]
        assert (await client.get("me")).status_code == 401


async def test_page_and_files_are_its_own(gateway: Gateway) -> None:
    """Each address shows the page, with a policy for browsers that lets nothing else in; files have a hash in them."""
    async with httpx.AsyncClient(verify=False, base_url=gateway.url) as client:
        for path in ("/dashboard", "/dashboard/", "/dashboard/requests", "/dashboard/requests/7?filter=x"):
            page = await client.get(path)
            assert page.status_code == 200
            assert "default-src 'none'; script-src 'self'" in page.headers["content-security-policy"]
            assert page.headers["cache-control"] == "no-store"
        folder = re.findall(r'src="(/dashboard/assets/\w+/)main.js"', page.text)[0]
        weight = 0
        for name in ("main.js", "app.css", "chart.bundle.js", "pages/overview.js"):
            file = await client.get(folder + name)
            assert file.status_code == 200
            assert "immutable" in file.headers["cache-control"]
            weight += int(file.headers["content-length"])
        assert weight < 250 * 1024
        assert b"Chart" in (await client.get(f"{folder}chart.bundle.js")).content
        root = await client.get("/", headers={"accept": "text/html,application/xhtml+xml,*/*;q=0.8"})
        assert (root.status_code, root.headers["location"]) == (307, "/dashboard")
        for path in ("../app.py", "..%2fapp.py", "%2e%2e/app.py", "pages/", "", "/etc/passwd"):
            assert (await client.get(folder + path)).status_code == 404, path
        for path in ("/dashboard/api/none", "/dashboards", "/dashboard/assets/0/main.js"):
            assert (await client.get(path)).status_code == 404, path


async def test_odd_questions_are_refused(boss: httpx.AsyncClient) -> None:
    """With what is wrong, and never with a fault of the gateway."""
    for path in (
        *("overview?range=2h", "overview?by=password", "overview?only=model", "overview?only=x:y"),
        *(
            "requests?filter=nonsense:1",
            "requests?before=x",
            "requests?before=99999999999999999999",
            "requests?filter=%22",
        ),
        *("requests/0", "requests/99999999999999999999", "requests/999999"),
    ):
        answer = await boss.get(path)
        assert answer.status_code in (400, 404), path
        assert answer.json()["error"]["message"]


async def test_a_ledger_that_is_away_is_said(tmp_path: Path) -> None:
    """The calls go on; who looks is told what is the matter."""
    async with start_gateway(POLICY.format(folder=tmp_path), environ=ENVIRON) as gateway:
        async with signed_in(gateway, "BOSS") as client:
            (tmp_path / "ledger.sqlite3").rename(tmp_path / "elsewhere")
            (tmp_path / "ledger.sqlite3").mkdir()
            answer = await client.get("overview")

    assert answer.status_code in (500, 503)
    assert "ledger" in answer.json()["error"]["message"]


async def test_without_keys_only_this_machine_looks(tmp_path: Path) -> None:
    """Nobody signs in there; a page that leads another name here sees nothing. Without a ledger it says so."""
    routes = "routes: [{name: all, match: {models: ['*']}, backends: [{ref: a}]}]"
    policy = f"version: 1\nbackends: {{a: {{type: scripted}}}}\n{routes}\n"
    with_ledger = f'{policy}ledger: {{url: "sqlite:///{tmp_path}/l.sqlite3"}}\n'
    async with start_gateway(with_ledger) as gateway, httpx.AsyncClient(verify=False, base_url=gateway.url) as client:
        assert (await client.get("/dashboard/api/me")).json()["has_keys"] is False
        for headers in ({"host": "evil.example"}, {"origin": "http://evil.example"}):
            assert (await client.get("/dashboard/api/overview", headers=headers)).status_code == 403
    async with start_gateway(policy) as gateway, httpx.AsyncClient(verify=False, base_url=gateway.url) as client:
        answer = await client.get("/dashboard/api/me")
        assert answer.status_code == 404
        assert "no ledger is kept" in answer.json()["error"]["message"]
        assert (await client.get("/dashboard")).status_code == 200


async def test_whoever_cannot_unpack_gets_it_unpacked(gateway: Gateway) -> None:
    """The page, its files and its figures, for curl and scripts that say nothing of gzip."""
    plain = {"accept-encoding": "identity"}
    async with signed_in(gateway, "BOSS") as client:
        page = await client.get(f"{gateway.url}/dashboard", headers=plain)
        style = re.findall(r"/dashboard/assets/[^\"]+css", page.text)[0]
        answers = [await client.get(place, headers=plain) for place in (gateway.url + style, "overview")]
        packed = await client.get("overview")

    assert [answer.headers.get("content-encoding") for answer in (page, *answers)] == [None] * 3
    assert answers[1].json().keys() == packed.json().keys()
    assert packed.headers["content-encoding"] == "gzip"
