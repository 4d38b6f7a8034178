"""The dashboard's page of the policy: what is in force, what has changed, what would change; for operators alone."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from gateway.cli.main import cli
from tests.support.gateway import Gateway, running_gateway

POLICY = """
version: 1
ledger: {{url: "sqlite:///{folder}/ledger.sqlite3"}}
backends:
  near: {{type: scripted, price: {{input_per_1m: 2, output_per_1m: 8}}}}
  far: {{type: openai, base_url: "http://127.0.0.1:9/v1", headers: {{x-token: not-to-be-seen}}}}
routes:
  - {{name: all, match: {{models: ["*"]}}, backends: [{{ref: near}}]}}
keys:
  - {{name: boss, key: env:BOSS, admin: true}}
  - {{name: keeper, key: env:KEEPER, manages_keys: true}}
  - {{name: viewer, key: env:VIEWER, viewer: true}}
  - {{name: plain, key: env:PLAIN}}
"""
ENVIRON = {name: f"sk-{name.lower()}-0123456789" for name in ("BOSS", "KEEPER", "VIEWER", "PLAIN")}
HOSTILE = "<img src=x onerror=alert(1)>"
SECRETS = (*ENVIRON.values(), "not-to-be-seen")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("policy")


@pytest.fixture(scope="module")
def gateway(folder: Path) -> Iterator[Gateway]:
    """One that has streamed so many answers that it can be told how fast its backend is."""
    with running_gateway(POLICY.format(folder=folder), environ=ENVIRON) as running:
        headers = {"authorization": f"Bearer {ENVIRON['PLAIN']}"}
        with httpx.Client(verify=False, base_url=f"{running.url}/v1", headers=headers) as client:
            for number in range(24):
                message = {"role": "user", "content": f"Tell me the story number {number}"}
                body = {"model": "m1", "stream": True, "messages": [message]}
                client.post("/chat/completions", json=body).raise_for_status()
        yield running


def own(gateway: Gateway) -> dict[str, str]:
    return {"origin": gateway.url, "sec-fetch-site": "same-origin", "x-slipstream-csrf": "1"}


async def sign_in(client: httpx.AsyncClient, gateway: Gateway, name: str) -> None:
    answer = await client.post("sign-in", json={"key": ENVIRON[name]}, headers=own(gateway))
    assert answer.status_code == 200, answer.text


@pytest.fixture
async def boss(gateway: Gateway) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(verify=False, base_url=f"{gateway.url}/dashboard/api/", timeout=60) as client:
        await sign_in(client, gateway, "BOSS")
        yield client


async def tried(client: httpx.AsyncClient, gateway: Gateway, text: str, span: str = "") -> dict[str, Any]:
    """All that is told of it, and not one secret."""
    answer = await client.post("policy/try", json={"text": text, "span": span}, headers=own(gateway))
    assert answer.status_code == 200, answer.text
    assert not any(secret in answer.text for secret in SECRETS)
    said: dict[str, Any] = {}
    for line in answer.text.splitlines():
        said |= json.loads(line)
    return said


def children(gateway: Gateway) -> str:
    pid = gateway.process.pid
    return "".join(path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")).strip()


async def test_a_change_is_told_by_its_lines(gateway: Gateway, boss: httpx.AsyncClient, folder: Path) -> None:
    """In force, written and with defaults; what went and came at the last reload; what was refused since."""
    text = POLICY.format(folder=folder)
    first = (await boss.get("policy")).raise_for_status().json()
    assert (first["before"], first["refused"]) == (None, None)
    assert "circuit_breaker" in first["texts"]["effective"]
    assert "env:BOSS" in first["texts"]["written"]

    assert await gateway.reload(text.replace('models: ["*"]', 'models: ["m*"]'))
    assert not await gateway.reload(text.replace("ref: near", "ref: nowhere"))
    then = (await boss.get("policy")).json()
    gateway.write_policy(text)
    await gateway.reload(text)

    assert then["before"]["revision"] == first["revision"] != then["revision"]
    assert [line for line in then["texts"]["diff"] if line[0] in "+-"] == ["-    - '*'", "+    - m*"]
    assert "nowhere" in then["refused"]["errors"][0]
    assert not any(secret in json.dumps([first, then]) for secret in SECRETS)
    assert (await boss.get("policy")).json()["refused"] is None


async def test_what_is_wrong_is_told_as_by_the_command(
    gateway: Gateway, boss: httpx.AsyncClient, folder: Path, tmp_path: Path
) -> None:
    """Each problem with its line; also of what nobody would write in earnest."""
    text = POLICY.format(folder=folder)
    wrong = (
        text.replace("ref: near", "ref: nowhere").replace("type: scripted", "type: scriptd"),
        text.replace("env:PLAIN", "env:NOBODY_HAS_SET_IT"),
        text.replace("name: all", f"name: '{HOSTILE}'"),
        "a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1]\n"
        + "\n".join(f"{chr(98 + n)}: &{chr(98 + n)} [{', '.join([f'*{chr(97 + n)}'] * 9)}]" for n in range(9)),
    )
    for each in wrong:
        file = tmp_path / "policy.yaml"
        file.write_text(each, encoding="utf-8")
        command = CliRunner().invoke(cli, ["check", "--format", "json", str(file)], env={**ENVIRON})
        expected = [line.replace(f"{tmp_path}/", "") for line in json.loads(command.stdout)["errors"]]
        assert (await tried(boss, gateway, each))["errors"] == expected
    assert (await tried(boss, gateway, text))["diff"] == []


async def test_no_other_file_is_read(gateway: Gateway, boss: httpx.AsyncClient, folder: Path) -> None:
    """Neither beside the policy nor elsewhere: what a pasted text includes is what the policy in force includes."""
    beside = gateway.policy.parent / "beside.yaml"
    beside.write_text("keys: [{name: x, key: not-to-be-seen}]\n", encoding="utf-8")
    for pattern in ("beside.yaml", "../*.yaml", "/etc/passwd"):
        said = await tried(boss, gateway, f"{POLICY.format(folder=folder)}include: ['{pattern}']\n")
        assert len(said["errors"]) == 1, pattern
        assert "matches no file" in said["errors"][0] or "must lead to files below" in said["errors"][0]
    for body in ({"text": ""}, {"text": 1}, {"text": "x" * 300_000}, {"text": "x", "span": "1y"}, []):
        assert (await boss.post("policy/try", json=body, headers=own(gateway))).status_code == 400


async def test_a_change_is_tried_on_the_last_hour(gateway: Gateway, boss: httpx.AsyncClient, folder: Path) -> None:
    """Which routes would take its calls, what they would cost; what is not known of a backend is said."""
    async with asyncio.timeout(15):
        while len((await boss.get("requests?filter=end:clean")).json()["rows"]) < 24:
            await asyncio.sleep(0.05)
    text = POLICY.format(folder=folder)
    dearer = text.replace("output_per_1m: 8", "output_per_1m: 16")
    said = await tried(boss, gateway, dearer.replace("name: all", "name: 'every'"), "1h")
    elsewhere = await tried(boss, gateway, text.replace("ref: near", "ref: far"), "1h")
    nowhere = await tried(boss, gateway, text.replace('models: ["*"]', "models: [m2]"), "1h")

    assert said["moves"] == [{"from": "all", "to": "every", "calls": 24}]
    assert "+      output_per_1m: 16.0" in said["diff"]
    now, then = said["simulated"]["results"]
    assert float(then["cost"]) > float(now["cost"]) > 0
    assert now["backends"] == then["backends"] == {"near": 24}
    assert said["progress"] == 1
    assert "far: the log shows too little of it" in elsewhere["problem"]
    assert nowhere["moves"] == [{"from": "all", "to": None, "calls": 24}]
    assert "No call is left" in nowhere["problem"]


async def test_who_leaves_ends_it(gateway: Gateway, boss: httpx.AsyncClient, folder: Path) -> None:
    """The process that tries a policy goes with the visitor; a second visitor is told to wait."""
    route = "  - {{name: r{0}, match: {{models: [m{0}]}}, backends: [{{ref: near}}]}}"
    many = "\n".join(route.format(number) for number in range(3500))
    text = POLICY.format(folder=folder).replace("routes:\n", f"routes:\n{many}\n")
    async with asyncio.timeout(20):
        asking = asyncio.create_task(tried(boss, gateway, text))
        while not children(gateway):
            await asyncio.sleep(0.01)
        assert "try again" in (await tried(boss, gateway, "version: 1"))["problem"]
        asking.cancel()
        while children(gateway):
            await asyncio.sleep(0.01)
    assert (await tried(boss, gateway, POLICY.format(folder=folder)))["diff"] == []


async def test_only_operators_see_it(gateway: Gateway) -> None:
    """Nobody else by any path, and no other site's page."""
    for name in ("KEEPER", "VIEWER", "BOSS"):
        async with httpx.AsyncClient(verify=False, base_url=f"{gateway.url}/dashboard/api/") as client:
            await sign_in(client, gateway, name)
            foreign = {**own(gateway), "sec-fetch-site": "cross-site"}
            assert (await client.post("policy/try", json={"text": "x"}, headers=foreign)).status_code == 403
            if name != "BOSS":
                answers = [
                    await client.get("policy"),
                    await client.post("policy/try", json={"text": "version: 1"}, headers=own(gateway)),
                ]
                assert [answer.status_code for answer in answers] == [403, 403]
                assert not any("routes" in answer.text for answer in answers)


def test_the_page_tries_a_policy(gateway: Gateway, folder: Path) -> None:
    """Wrong, then right; names are texts; nothing runs out of the window; who goes elsewhere ends what was begun."""
    playwright = pytest.importorskip("playwright.sync_api")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("no Chromium")
    said: list[str] = []
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_context(base_url=gateway.url, viewport={"width": 1240, "height": 1400}).new_page()
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("dialog", lambda dialog: (said.append(dialog.message), dialog.accept()))
        page.goto("/dashboard")
        page.get_by_label("Key").fill(ENVIRON["BOSS"])
        page.get_by_role("button", name="Sign in").click()
        page.get_by_role("link", name="Policy").click()
        page.get_by_role("heading", name="What would a change do?").wait_for()
        text = POLICY.format(folder=folder)
        page.get_by_label("A policy").fill(text.replace("ref: near", f"ref: '{HOSTILE}'"))
        page.get_by_role("button", name="Try it on").click()
        page.get_by_text("■ It has").wait_for()
        assert HOSTILE in page.locator(".explained pre").inner_text()
        page.get_by_label("A policy").fill(text.replace("output_per_1m: 8", "output_per_1m: 16"))
        page.get_by_role("button", name="Try it on").click()
        page.get_by_text("replayed in virtual time").wait_for()
        assert page.get_by_role("cell", name="Cost, at the policy's own prices").count() == 1
        assert page.locator("img").count() == 0
        for width in (1240, 390):
            page.set_viewport_size({"width": width, "height": 1400})
            assert page.evaluate("document.documentElement.scrollWidth") == width
        browser.close()
    assert said == []


async def test_more_traffic_is_simulated(gateway: Gateway, boss: httpx.AsyncClient) -> None:
    """The calls that were, faster and faster, through the policy in force; no secret is told."""
    answer = await boss.post("simulate", json={"span": "1h"}, headers=own(gateway))
    said: dict[str, Any] = {}
    for line in answer.text.splitlines():
        said |= json.loads(line)

    assert not any(secret in answer.text for secret in SECRETS)
    results = said["loads"]["results"]
    assert said["loads"]["calls"] == 24
    assert [one["load"] for one in results] == [1, 2, 5, 20, 100]
    assert results[4]["rate_rps"] == pytest.approx(100 * results[0]["rate_rps"])
    assert all(0 <= one["slo_share"] <= 1 for one in results)
    assert children(gateway) == ""


@pytest.mark.parametrize("body", [{"span": "1y"}, {"span": ["1h"]}, {"span": None}, ["1h"], "1h"])
async def test_a_simulation_of_something_else_is_refused(
    gateway: Gateway, boss: httpx.AsyncClient, body: object
) -> None:
    """Before any process is started."""
    answer = await boss.post("simulate", json=body, headers=own(gateway))
    assert answer.status_code == 400, answer.text
