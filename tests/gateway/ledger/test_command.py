"""`slipstream ledger` over rows that callers have named as they liked."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from gateway.cli.main import cli
from gateway.ledger.days import Days
from gateway.ledger.row import stored
from gateway.ledger.store import LEDGER, LedgerStore
from gateway.sql.sqlite import SqliteDatabase
from tests.support.ledger import sample_row

POLICY = """
version: 1
ledger: {{url: "sqlite:///{path}"}}
backends: {{up: {{type: scripted}}}}
routes: [{{name: all, match: {{models: ["*"]}}, backends: [{{ref: up}}]}}]
"""
USERS = ["", "日本", "two\nlines", "one\rline", "\0", "=1+1", "\uff1d1+1", 'say "no", twice']
BERLIN = "Europe/Berlin"
HALF_PAST_MIDNIGHT_US = int(datetime(2026, 11, 1, 23, 30, tzinfo=UTC).timestamp()) * 10**6
Ask = Callable[..., Result]


@pytest.fixture
def ask(tmp_path: Path) -> Ask:
    """A ledger of days in Berlin in which each of these users has a call, the first at half past midnight. Who asks it
    has a policy that says nothing of its days, and a locale without most scripts.
    """
    path, policy = tmp_path / "ledger.sqlite3", tmp_path / "policy.yaml"
    policy.write_text(POLICY.format(path=path))
    store = LedgerStore(SqliteDatabase(path, LEDGER), BERLIN)
    store.open()
    rows = [sample_row(n, at_us=HALF_PAST_MIDNIGHT_US if not n else None) for n in range(len(USERS))]
    for row, user in zip(rows, USERS, strict=True):
        row.user = user
        store.insert([stored(msgspec.structs.astuple(row), 1, Days(BERLIN).of(row.at_us))])
    store.close()

    def invoke(command: str, *arguments: str) -> Result:
        words = ["ledger", command, "--config", str(policy), *arguments]
        return CliRunner(charset="latin-1").invoke(cli, words)

    return invoke


def test_every_name_comes_out_as_it_is(ask: Ask) -> None:
    """In UTF-8, whatever the locale; a line of CSV is a call, and no formula."""
    lines = ask("export").stdout_bytes.decode().splitlines()
    assert [json.loads(line)["user"] for line in lines] == USERS
    text = ask("export", "--format", "csv").stdout_bytes.decode()
    plain = [f"'{user}" if user.startswith(("=", "\uff1d")) else user for user in USERS]
    assert [row["user"] for row in csv.DictReader(io.StringIO(text, newline=""))] == plain
    report = csv.DictReader(
        io.StringIO(ask("report", "--by", "user", "--format", "csv").stdout_bytes.decode(), newline="")
    )
    assert {row["user"] for row in report} == set(plain)
    table = ask("report", "--by", "user").stdout_bytes.decode()
    assert "日本" in table
    assert len(table.splitlines()) == 1 + len(USERS)


COMMANDS = pytest.mark.parametrize("command", ["export", "report --by day", "latency"])


@COMMANDS
def test_file_that_no_gateway_has_opened_yet_is_told_of(ask: Ask, tmp_path: Path, command: str) -> None:
    """As one is that a gateway of before has left."""
    for each in tmp_path.glob("ledger.sqlite3*"):
        each.unlink()
    (tmp_path / "ledger.sqlite3").touch()
    done = ask(*command.split())
    assert done.exit_code == 1
    assert "a gateway of this one has to open it first" in done.stderr


@COMMANDS
def test_period_that_ends_before_it_begins_is_refused(ask: Ask, command: str) -> None:
    """It has no calls, but that says nothing of the ledger."""
    done = ask(*command.split(), "--since", "2026-12-01", "--until", "2026-11-01")
    assert done.exit_code == 2
    assert "--until 2026-11-01 is before --since 2026-12-01" in done.stderr


@pytest.mark.parametrize("by", ["day", "hour"])
def test_days_are_those_of_the_ledger(ask: Ask, by: str) -> None:
    """Hours of a day too, whatever the policy at hand says of days."""
    period = ("--since", "2026-11-02", "--until", "2026-11-02")
    found = json.loads(ask("report", "--by", by, "--format", "json", *period).stdout)
    assert [line[by] for line in found] == [{"day": "2026-11-02", "hour": "2026-11-01T23Z"}[by]]
