"""Stores of ledger, keys and limits that are not there: an error at the start, or calls go on as the pages say."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.gateway import gateway_process, start_gateway
from tests.support.ledger import Postgres, running_postgres

POLICY = """
version: 1
backends: {{up: {{type: scripted}}}}
{section}
budgets: [{{name: each, usd: 1, every: day}}]
routes:
  - name: all
    match: {{models: ["*"]}}
    backends: [{{ref: up, price: {{input_per_1m: 1, output_per_1m: 9}}}}]
"""
ASK = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
KEY = "sk-slip-" + "A" * 43
PASSWORD = "not-to-be-shown"
SECTIONS = {
    "ledger": "ledger: {{url: env:STORE_URL, journal: {folder}/journal}}",
    "keys": "stores: {{keys: {{url: env:STORE_URL}}}}",
    "limits": "stores: {{redis: {{url: env:STORE_URL}}}}",
}


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    """One that knows a role with a password."""
    import psycopg

    with running_postgres() as server:
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute("CREATE ROLE locked LOGIN PASSWORD 'right'")
        yield server


def policy_of(store: str, folder: Path) -> str:
    """With that store."""
    return POLICY.format(section=SECTIONS[store].format(folder=folder))


@pytest.mark.parametrize("store", ["ledger", "keys"])
@pytest.mark.parametrize("wrong", ["password", "role", "database", "port", "host"])
async def test_a_postgres_that_cannot_be_reached_is_away(
    postgres: Postgres, tmp_path: Path, store: str, wrong: str
) -> None:
    """The log says why, and not with which password. Without a ledger calls go on; without keys nobody is let in."""
    server = postgres.url.removeprefix("postgresql://postgres@")
    url, said = {
        "password": (f"postgresql://locked:{PASSWORD}@{server}", "password authentication failed"),
        "role": (f"postgresql://nobody:{PASSWORD}@{server}", 'role "nobody" does not exist'),
        "database": (f"postgresql://postgres:{PASSWORD}@{server}x", 'database "postgresx" does not exist'),
        "port": (f"postgresql://u:{PASSWORD}@127.0.0.1:9/db", "Connection refused"),
        "host": (f"postgresql://u:{PASSWORD}@nowhere.invalid/db", "nowhere.invalid"),
    }[wrong]
    async with start_gateway(policy_of(store, tmp_path), environ={"STORE_URL": url}) as gateway:
        async with httpx.AsyncClient(verify=False, base_url=gateway.url, timeout=20) as client:
            answer = await client.post("/v1/chat/completions", json=ASK, headers={"authorization": f"Bearer {KEY}"})
        await gateway.wait_stderr(said)
        shown = gateway.stderr + gateway.stdout

    if store == "ledger":
        assert answer.status_code == 200
        assert (
            "what was spent before is not all known yet, the ledger is away or behind: budgets begin with the rest"
            in shown
        )
        assert "its rows wait in the journal" in shown
    else:
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "store_unavailable")
        assert answer.headers["retry-after"]
    assert PASSWORD not in shown


@pytest.mark.parametrize("store", ["ledger", "keys"])
async def test_the_folder_of_a_sqlite_file_is_made(tmp_path: Path, store: str) -> None:
    """However deep it is."""
    path = tmp_path / "not" / "there" / "store.sqlite3"
    async with start_gateway(policy_of(store, tmp_path), environ={"STORE_URL": f"sqlite:///{path}"}) as gateway:
        async with httpx.AsyncClient(verify=False, base_url=gateway.url, timeout=20) as client:
            answer = await client.post("/v1/chat/completions", json=ASK, headers={"authorization": f"Bearer {KEY}"})

    assert answer.status_code == (200 if store == "ledger" else 401)
    assert path.exists()


@pytest.mark.parametrize(
    ("store", "url", "said"),
    [
        ("ledger", "sqlite:///{folder}", "{folder} is a folder: name a file in ledger.url"),
        ("keys", "sqlite:///{folder}", "{folder} is a folder: name a file in stores.keys.url"),
        ("ledger", "sqlite:///{folder}/text", "cannot be used: file is not a database"),
        ("keys", "sqlite:///{folder}/text", "cannot be used: file is not a database"),
        ("ledger", "mysql://u@h/db", "ledger.url is no URL of a store"),
        ("keys", "mysql://u@h/db", "stores.keys.url is no URL of a store"),
        ("limits", "http://h", "stores.redis.url is not a redis:// or rediss:// URL"),
    ],
)
async def test_what_can_never_be_a_store_is_an_error_at_the_start(
    tmp_path: Path, store: str, url: str, said: str
) -> None:
    """It names the setting, or the file."""
    (tmp_path / "text").write_text("no database at all, but a text of some length " * 100)
    environ = {"STORE_URL": url.format(folder=tmp_path)}
    with gateway_process(policy_of(store, tmp_path), environ=environ) as gateway:
        assert await gateway.wait_exit() != 0
        assert said.format(folder=tmp_path) in gateway.stderr


async def test_a_redis_that_was_never_there_lets_nobody_with_a_limit_in(tmp_path: Path) -> None:
    """Nobody knows the share of this process; `allow` would say otherwise."""
    for when_away, status in (("share", 503), ("refuse", 503), ("allow", 200)):
        policy = policy_of("limits", tmp_path).replace("STORE_URL}", f"STORE_URL}}, limits: {{when_away: {when_away}}}")
        async with start_gateway(policy, environ={"STORE_URL": "redis://127.0.0.1:9/0"}) as gateway:
            async with httpx.AsyncClient(verify=False, base_url=gateway.url, timeout=20) as client:
                answer = await client.post("/v1/chat/completions", json=ASK)
            await gateway.wait_stderr("redis does not count limits and budgets")
        assert answer.status_code == status, when_away
