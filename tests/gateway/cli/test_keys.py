"""`slipstream keys`: what each command says of itself, what it keeps, and errors that say what to do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.cli import Run

POLICY = """
version: 1
{stores}
keys:
  - {{name: ops, key: "env:OPS_KEY", manages_keys: true}}
backends:
  words: {{type: scripted}}
routes:
  - {{name: chat, match: {{models: ["*"]}}, backends: [{{ref: words}}]}}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A policy with a store that nobody has used yet."""
    path = tmp_path / "policy.yaml"
    path.write_text(POLICY.format(stores=f'stores: {{keys: {{url: "sqlite:///{tmp_path / "keys.sqlite3"}"}}}}'))
    return path


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("create", ["--name", "--expires", "--budget", "--rpm", "only its hash is kept"]),
        ("list", ["--config", "revoked and expired ones too"]),
        ("show", ["NAME", "--format"]),
        ("rotate", ["--overlap", "24h", "it has leaked"]),
        ("revoke", ["for good", "NAME"]),
    ],
)
def test_help_of_each_command_says_what_it_does_with_an_example(run: Run, command: str, words: list[str]) -> None:
    """Options, defaults, and a line to copy."""
    shown = run("keys", command, "--help")

    assert shown.exit_code == 0
    assert f"slipstream keys {command} --config policy.yaml" in shown.output
    assert [word for word in words if word not in " ".join(shown.output.split())] == []


def test_life_of_a_key(run: Run, file: Path, tmp_path: Path) -> None:
    """The secret is printed alone and once, terms are kept as given, and no file has the secret."""
    made = run(
        *("keys", "create", "--config", file, "--name", "alice", "--tenant", "acme", "--team", "search"),
        *("--rpm", 60, "--concurrent", 2, "--budget", "0.1", "--every", "day", "--metadata", "owner=a@example.com"),
        *("--route", "chat", "--tag", "project:x", "--priority", "low"),
    )
    first = made.stdout.strip()
    second = run("keys", "rotate", "--config", file, "alice").stdout.strip()
    shown = json.loads(run("keys", "show", "--config", file, "alice", "--format", "json").stdout)
    revoked = run("keys", "revoke", "--config", file, "alice")
    (listed,) = json.loads(run("keys", "list", "--config", file, "--format", "json").stdout)

    assert made.exit_code == 0, made.output
    assert first.startswith("sk-slip-")
    assert first != second
    assert shown["limit"] == {"rpm": 60, "tpm": None, "concurrent": 2, "burst": 6.0}
    assert (shown["budget"]["usd"], shown["budget"]["every"]) == (0.1, "day")
    assert (shown["tenant"], shown["team"], shown["priority"]) == ("acme", "search", "low")
    assert [each["ends_with"] for each in shown["secrets"]] == [first[-4:], second[-4:]]
    assert revoked.exit_code == 0
    assert listed["status"] == "revoked"
    for path in tmp_path.glob("keys.sqlite3*"):
        assert not any(secret.removeprefix("sk-slip-").encode() in path.read_bytes() for secret in (first, second))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["create", "--name", "ops"], 'the policy file has a key named "ops"'),
        (["create", "--name", "x y"], "a key needs a name"),
        (["create", "--name", "x", "--route", "chatt"], 'Did you mean "chat"?'),
        (["create", "--name", "x", "--expires", "soon"], "expires: a moment is a date"),
        (["create", "--name", "x", "--rpm", "0"], "limit.rpm: Input should be greater than or equal to 1"),
        (["create", "--name", "x", "--budget", "-1"], "budget.usd: Input should be greater than 0"),
        (["create", "--name", "x", "--budget", "0.1234567890123"], "at most twelve decimals"),
        (["create", "--name", "x", "--budget", "nan"], "budget.usd"),
        (["create", "--name", "x", "--every", "day"], "give --budget too"),
        (["create", "--name", "x", "--metadata", "a"], "write it as name=text"),
        (["create"], "Missing option '--name'"),
        (["show", "nobody"], "there is no key store"),
        (["revoke", "nobody"], "there is no key store"),
    ],
)
def test_errors_say_what_to_do(run: Run, file: Path, words: list[str], said: str) -> None:
    """A line on standard error, nothing on standard output, and nothing made."""
    done = run("keys", words[0], "--config", file, *words[1:])

    assert done.exit_code != 0
    assert done.stdout == ""
    assert said in " ".join(done.stderr.split())


def test_unknown_name_and_missing_store_are_told_apart(run: Run, file: Path, tmp_path: Path) -> None:
    """What is not in the store, and a policy that has none."""
    assert run("keys", "create", "--config", file, "--name", "alice").exit_code == 0
    bare = tmp_path / "bare.yaml"
    bare.write_text(POLICY.format(stores=""))

    taken = run("keys", "create", "--config", file, "--name", "alice")
    unknown = run("keys", "rotate", "--config", file, "bob")
    without = run("keys", "list", "--config", bare)

    assert 'the name "alice" is taken; a revoked key keeps its own' in taken.stderr
    assert 'no key named "bob"' in unknown.stderr
    assert "the policy has no key store; add `stores" in without.stderr


def test_budget_of_a_key_is_raised_and_the_trail_says_by_whom(run: Run, file: Path) -> None:
    """Before any gateway has run; what cannot be is said and leaves no trace."""
    assert run("keys", "create", "--config", file, "--name", "alice", "--budget", "1").exit_code == 0
    raising = ("budgets", "raise", "--config", file, "--until", "7d", "--why", "launch")

    made = run(*raising, "--key", "alice", "--usd", "0.5")
    unknown = run(*raising, "--key", "bob", "--usd", "0.5")
    neither = run(*raising, "--usd", "0.5")
    (listed,) = json.loads(run("budgets", "raises", "--config", file, "--format", "json").stdout)
    text = run("budgets", "raises", "--config", file).stdout

    assert made.stdout.startswith("(key) of default:alice: 0.5 USD more until ")
    assert 'no key named "bob"' in unknown.stderr
    assert "give `budget` and `who`, or `key`" in neither.stderr
    assert (listed["usd"], listed["status"], listed["why"]) == ("0.5", "in_force", "launch")
    assert listed["by"].startswith("user:")
    assert "default:alice" in text
    assert "slipstream budgets raise --config" in run("budgets", "raise", "--help").output
