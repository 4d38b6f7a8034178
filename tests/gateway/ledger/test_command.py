"""`slipstream ledger` over rows that callers have named as they liked."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
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
Ask = Callable[..., Result]


@pytest.fixture
def ask(tmp_path: Path) -> Ask:
    """A ledger in which each of these users has a call, and who asks it in a locale without most scripts."""
    path, policy = tmp_path / "ledger.sqlite3", tmp_path / "policy.yaml"
    policy.write_text(POLICY.format(path=path))
    store = LedgerStore(SqliteDatabase(path, LEDGER), "UTC")
    store.open()
    for n, user in enumerate(USERS):
        row = sample_row(n)
        row.user = user
        store.insert([stored(msgspec.structs.astuple(row), 1, Days("UTC").of(row.at_us))])
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
