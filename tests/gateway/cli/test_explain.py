"""`slipstream explain`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.cli import Run

CHAT = '{"model": "gpt-4o", "messages": []}'


def test_explain_shows_route_and_stack_from_top_to_bottom(run: Run, policy: Path) -> None:
    """The stages stand in the order in which a call meets them, each further in than the one above."""
    result = run("explain", policy, "-", "--header", "X-Team: support", stdin=CHAT)

    lines = [line for line in result.output.splitlines() if line]
    stages = [line.split()[:2] for line in lines[2:8]]
    assert result.exit_code == 0
    assert lines[0] == '/v1/chat/completions, model "gpt-4o", key dev, tenant red'
    assert lines[1] == f"Route support ({policy}:10)"
    assert stages == [["fallback", "on"], ["└", "exact"], ["└", "pool"], ["├", "gpu"], ["├", "cloud"], ["└", "last"]]
    assert "kept 90s in memory per tenant" in lines[3]
    assert 'openai, 75 % of priority 0, asked for model "llama"' in lines[5]


def test_explain_leaves_out_stages_that_the_route_does_not_ask_for(run: Run, policy: Path) -> None:
    """A route without cache and fallbacks has its pool on top."""
    result = run("explain", policy, "-", "--path", "/v1/embeddings", "--format", "json", stdin='{"model": "gpt-e"}')

    answer = json.loads(result.output)
    assert answer["route"] == "embed"
    assert [(stage["name"], stage["depth"]) for stage in answer["stack"]] == [("pool", 0), ("cloud", 1)]
    assert answer["stack"][0]["detail"].startswith("no retries")


def test_explain_says_why_no_route_takes_a_request(run: Run, policy: Path) -> None:
    """Without a route every route's reason is given, and the exit code is 1."""
    result = run("explain", policy, "-", stdin=CHAT)

    assert result.exit_code == 1
    assert "No route takes this request. Answer: 404." in result.output
    assert 'support  headers.x-team: "" is not support' in result.output
    assert "spare    only a fallback of other routes" in result.output
    assert 'embed    paths: "/chat/completions" is not /v1/embeddings' in result.output


def test_explain_says_that_a_key_may_not_ask_for_the_model(run: Run, policy: Path) -> None:
    """A model that the key's `models` do not cover has no route, whatever the routes say."""
    arguments = ("explain", policy, "-", "--path", "/v1/embeddings")

    refused = run(*arguments, "--key", "dev", stdin='{"model": "llama"}')
    allowed = run(*arguments, "--key", "ops", stdin='{"model": "llama"}')

    assert refused.exit_code == 1
    assert 'No route: key dev may not ask for "llama"' in refused.output
    assert allowed.exit_code == 0


def test_explain_reads_a_file_and_needs_no_environment(run: Run, policy: Path, tmp_path: Path) -> None:
    """The request may be a file, and secrets may be unset."""
    (tmp_path / "request.json").write_text(CHAT, encoding="utf-8")
    nothing: dict[str, str | None] = {"UPSTREAM_KEY": None, "GATEWAY_KEY": None, "OPS_KEY": None}

    result = run(
        "explain", "--no-env", policy, tmp_path / "request.json", "--header", "x-team:support", environ=nothing
    )

    assert result.exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "stdin", "complaint"),
    [
        ((), "{", "not JSON"),
        ((), "[" * 100_000, "not JSON"),
        ((), "[]", "a request's body is a JSON object"),
        (("--key", "deb"), CHAT, 'no key named "deb". Known: dev, ops'),
        (("--header", "x-team"), CHAT, "write it as 'name: value'"),
    ],
    ids=["broken", "deep", "list", "key", "header"],
)
def test_explain_wrong_arguments_are_wrong_usage(
    run: Run, policy: Path, arguments: tuple[str, ...], stdin: str, complaint: str
) -> None:
    """What is wrong with an argument is said, and the exit code is 2."""
    result = run("explain", policy, "-", *arguments, stdin=stdin)

    assert result.exit_code == 2
    assert complaint in result.stderr


def test_explain_bad_policy_ends_like_check(run: Run, bad_policy: Path) -> None:
    """A policy that cannot be read is told problem by problem."""
    result = run("explain", bad_policy, "-", stdin=CHAT)

    assert result.exit_code == 1
    assert len(result.stderr.splitlines()) == 2
