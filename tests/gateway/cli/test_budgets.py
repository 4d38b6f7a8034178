"""`slipstream budgets list`: what is spent, as the ledger has it."""

from __future__ import annotations

import json
import time
from pathlib import Path

import msgspec

from gateway.ledger.days import Days
from gateway.ledger.row import Row, stored
from gateway.ledger.store import LEDGER, LedgerStore
from gateway.sql.sqlite import SqliteDatabase
from tests.gateway.cli.test_keys import POLICY
from tests.support.cli import Run


def test_budgets_are_listed_as_the_ledger_has_them_nearest_to_the_end_first(run: Run, tmp_path: Path) -> None:
    """Of the policy and of keys' own, with what they are raised by; a policy without a ledger is told so."""
    file = tmp_path / "policy.yaml"
    stores = f'stores: {{keys: {{url: "sqlite:///{tmp_path}/keys.sqlite3"}}}}\n'
    url = f"sqlite:///{tmp_path}/ledger.sqlite3"
    budgets = "budgets: [{name: day, per: tenant, usd: 4, every: day}, {name: ever, per: team, usd: 2, every: total}]\n"
    file.write_text(POLICY.format(stores=f'{stores}ledger: {{url: "{url}"}}\n{budgets}'))
    bare = tmp_path / "bare.yaml"
    bare.write_text(POLICY.format(stores=stores))
    assert run("keys", "create", "--config", file, "--name", "alice", "--budget", "1", "--team", "red").exit_code == 0
    more = ("--usd", "1", "--until", "7d", "--why", "launch")
    assert run("budgets", "raise", "--config", file, "--budget", "day", "--who", "default", *more).exit_code == 0
    database = SqliteDatabase(tmp_path / "ledger.sqlite3", LEDGER)
    store = LedgerStore(database, Days("UTC").zone)
    store.open()
    now_us = int(time.time() * 1e6)
    for n, key in ((1, "alice"), (2, "other")):
        row = Row(n=n, at_us=now_us, key=key, tenant="default", team="red", cost=3 * 10**11)
        values = msgspec.structs.astuple(row)
        store.insert([stored(values, worker=1, day=Days("UTC").of(now_us))])
    store.close()

    listed = json.loads(run("budgets", "list", "--config", file, "--format", "json").stdout)
    text = run("budgets", "list", "--config", file).stdout
    without = run("budgets", "list", "--config", bare)

    assert [(each["budget"], each["who"], each["spent_usd"], each["share"]) for each in listed] == [
        ("(key)", "default:alice", "0.3", 0.3),
        ("ever", "default:red", "0.6", 0.3),
        ("day", "default", "0.6", 0.12),
    ]
    assert [each["raised_usd"] for each in listed] == ["0", "0", "1"]
    assert text.splitlines()[1].split()[:2] == ["(key)", "default:alice"]
    assert "12.0%" in text
    assert "the policy has no `ledger`" in without.stderr
