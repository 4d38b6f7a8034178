"""`slipstream config`."""

from __future__ import annotations

import json
from pathlib import Path

import yaml
from jsonschema import Draft202012Validator

from gateway.cli.loading import read_policy
from policies.policy_file.locate import read_document
from tests.support.cli import ENVIRON, POLICY, Run


def test_config_show_effective_has_every_default_with_units(run: Run, policy: Path) -> None:
    """Every section is written out, durations and sizes as a file would have them."""
    shown = yaml.safe_load(run("config", "show", "--effective", policy).output)

    assert shown["routes"][0]["timeouts"]["stream_idle"] == "2m"
    assert shown["routes"][0]["cache"]["exact"]["ttl"] == "90s"
    assert shown["stores"]["memory"]["max_size"] == "256MiB"
    assert shown["backends"]["gpu"]["max_answer"] == "64MiB"
    assert next(iter(shown["backends"]["gpu"])) == "type"


def test_config_show_never_has_a_secret(run: Run, policy: Path) -> None:
    """Secrets are references; what looks like one among fixed headers is hidden; the rest stays."""
    for arguments in (("--effective",), ()):
        output = run("config", "show", *arguments, policy).output

        assert "api_key: env:UPSTREAM_KEY" in output
        assert "x-api-key: '**********'" in output
        assert "x-team: a" in output
        assert not any(value in output for value in (*ENVIRON.values(), "sk-fixed"))


def test_config_show_effective_loads_to_the_same_policy(run: Run, policy: Path, tmp_path: Path) -> None:
    """What is shown is a policy file that means the same."""
    # A scripted step tells its outcome by which keys are given, so it does not stand having them all.
    priced = "{type: anthropic, price: {input_per_1m: 0.07, output_per_1m: 8}}"
    text = POLICY.replace("x-api-key: sk-fixed, ", "").replace("{type: scripted}", priced)
    policy.write_text(text, encoding="utf-8")
    again = tmp_path / "again.yaml"
    again.write_text(run("config", "show", "--effective", "--no-env", policy).output, encoding="utf-8")

    first, second = read_policy(policy, no_env=True), read_policy(again, no_env=True)

    assert second.policy.routes == first.policy.routes
    assert second.policy.keys == first.policy.keys
    assert second.backends == first.backends
    prices = [{name: backend.price for name, backend in each.policy.backends.items()} for each in (first, second)]
    assert prices[1] == prices[0] != dict.fromkeys(prices[0])


def test_config_show_as_written_adds_nothing(run: Run, policy: Path) -> None:
    """Without --effective only what the file says is shown."""
    shown = yaml.safe_load(run("config", "show", policy).output)

    assert shown["routes"][2] == yaml.safe_load(POLICY)["routes"][2]


def test_config_show_bad_file_ends_with_its_problems(run: Run, bad_policy: Path) -> None:
    """A file that cannot be used is not shown."""
    result = run("config", "show", bad_policy)

    assert (result.exit_code, result.stdout) == (1, "")


def test_config_schema_accepts_what_loads_and_refuses_what_does_not(run: Run) -> None:
    """The schema is a valid one and agrees with the loader on structure, for every built-in type."""
    schema = json.loads(run("config", "schema").output)
    Draft202012Validator.check_schema(schema)
    validator = Draft202012Validator(schema)

    assert validator.is_valid(read_document(POLICY.encode()).data)
    for old, new in (
        ("ttl: 90s", "ttl: 90"),
        ("version: 1", "version: 2"),
        ("type: scripted", "type: skripted"),
        ("{type: scripted}", "{type: scripted, reqeat: last}"),
        ("retry: {attempts: 0}", "retry: {attempts: -1}"),
        ('"env:OPS_KEY"', "sk-123"),
        ("  gpu:", "  g p u:"),
    ):
        assert not validator.is_valid(read_document(POLICY.replace(old, new).encode()).data), new


def test_config_schema_writes_defaults_with_units(run: Run) -> None:
    """An editor that fills in a default writes a value that loads."""
    definitions = json.loads(run("config", "schema").output)["$defs"]

    assert definitions["TimeoutsPolicy"]["properties"]["total"]["default"] == "10m"
    assert definitions["ExactCachePolicy"]["properties"]["max_entry"]["default"] == "1MiB"
