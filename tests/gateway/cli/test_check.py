"""`slipstream check`."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.cli import ENVIRON, POLICY, Run


def test_check_good_file_sums_it_up(run: Run, policy: Path) -> None:
    """A file that is right is summed up: routes, backends with their types, keys with their tenants."""
    result = run("check", policy)

    assert result.exit_code == 0
    assert f"{policy}: OK, revision " in result.output
    assert "support -> gpu, cloud, last" in result.output
    assert "last (scripted)" in result.output
    assert "dev (tenant red)" in result.output
    assert "warning" not in result.output


def test_check_bad_file_says_everything_on_standard_error(run: Run, bad_policy: Path) -> None:
    """Every problem is a line on standard error with its place in the file; the exit code is 1."""
    result = run("check", bad_policy)

    assert (result.exit_code, result.stdout) == (1, "")
    lines = result.stderr.splitlines()
    assert lines[0].startswith(f"{bad_policy}:14: routes[0].cache.exact.ttl: 90 - a duration needs")
    assert lines[1].startswith(f'{bad_policy}:17: routes[1].backends[0].ref: no backend is named "lost". Did you mean')
    assert lines[2:] == ["2 problems"]


def test_check_json_holds_the_summary(run: Run, policy: Path) -> None:
    """As JSON the summary is for programs."""
    summary = json.loads(run("check", "--format", "json", policy).output)

    assert summary["ok"] is True
    assert summary["routes"]["support"] == ["gpu", "cloud", "last"]
    assert summary["keys"] == {"dev": "red", "ops": "default"}


def test_check_json_holds_the_problems(run: Run, bad_policy: Path) -> None:
    """As JSON the problems are a list, and the exit code is still 1."""
    result = run("check", "--format", "json", bad_policy)

    answer = json.loads(result.stdout)
    assert (result.exit_code, answer["ok"], len(answer["errors"])) == (1, False, 2)


def test_check_shows_warnings(run: Run, policy: Path) -> None:
    """What can hardly be meant is shown, and is no error."""
    policy.write_text(POLICY.replace("fallbacks: {routes: [spare]}", "timeouts: {total: 1m}"), encoding="utf-8")
    result = run("check", policy)

    assert result.exit_code == 0
    assert 'warning: routes[1]: route "spare" is internal' in result.output


def test_check_missing_variable_is_named(run: Run, policy: Path) -> None:
    """A secret that is not set is a problem which names the variable; --no-env lets it pass."""
    environ = {**ENVIRON, "UPSTREAM_KEY": None}

    strict, lenient = run("check", policy, environ=environ), run("check", "--no-env", policy, environ=environ)

    assert strict.exit_code == 1
    assert "backends.gpu.api_key: the environment variable UPSTREAM_KEY is not set" in strict.stderr
    assert lenient.exit_code == 0


def test_check_missing_file_is_a_problem_of_the_file(run: Run, tmp_path: Path) -> None:
    """A file that is not there is said to be so."""
    result = run("check", tmp_path / "gone.yaml")

    assert result.exit_code == 1
    assert "gone.yaml: the policy file cannot be read: No such file or directory" in result.stderr


def test_check_without_file_is_wrong_usage(run: Run) -> None:
    """A missing argument ends with 2."""
    assert run("check").exit_code == 2


def test_check_preset_is_told_by_itself(run: Run, tmp_path: Path) -> None:
    """A name that is none says so where it stands, with the one that was meant; a list there is refused alike."""
    file = tmp_path / "policy.yaml"
    file.write_text(
        "version: 1\nbackends:\n  up: {type: openai, preset: vlm}\n  other: {type: openai, preset: [vllm]}\n"
        "routes: [{name: all, match: {models: ['*']}, backends: [{ref: up}, {ref: other}]}]\n",
        encoding="utf-8",
    )
    result = run("check", file)

    misspelt, listed, *rest = result.stderr.splitlines()
    assert misspelt.startswith(f'{file}:3: backends.up.preset: "vlm" - allowed: azure, ')
    assert misspelt.endswith('Did you mean "vllm"?')
    assert listed.startswith(f"{file}:4: backends.other.preset: a list - allowed: azure, ")
    assert rest == ["2 problems"]
