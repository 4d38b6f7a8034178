"""`slipstream explain`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from policies.pool.load.latency_model import LatencyModel, features
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


def test_explain_shows_where_a_stream_that_breaks_goes_on(run: Run, tmp_path: Path) -> None:
    """Only for a stream."""
    policy = tmp_path / "resume.yaml"
    policy.write_text(
        "version: 1\nbackends: {a: {type: openai, preset: vllm}}\n"
        'routes: [{name: all, match: {models: ["*"]}, backends: [{ref: a}], resume: {mode: best_effort}}]\n'
    )

    shown = run("explain", policy, "-", stdin='{"model": "m", "messages": [], "stream": true}').output

    assert "a stream that breaks off goes on at whoever can go on behind its text" in shown
    assert "breaks off" not in run("explain", policy, "-", stdin=CHAT).output


@pytest.mark.parametrize(("path", "status"), [("/v1/chat/completion", "403"), ("/v1/nonsense", "404")])
def test_explain_path_that_does_not_pass_is_taken_by_no_route(run: Run, tmp_path: Path, path: str, status: str) -> None:
    """As the gateway would answer it, though the route's conditions hold; what the route lists is taken."""
    policy = tmp_path / "policy.yaml"
    text = (
        "version: 1\nbackends: {a: {type: openai, preset: vllm}}\n"
        'routes: [{name: all, match: {models: ["*"]}, backends: [{ref: a}], passthrough: {allow: [PASSING]}}]\n'
    )
    policy.write_text(text.replace("PASSING", "defaults"))
    refused = run("explain", policy, "-", "--path", path, stdin=CHAT)
    speech = run("explain", policy, "-", "--path", "/v1/audio/speech", stdin=CHAT)
    policy.write_text(text.replace("PASSING", f'"POST {path.removeprefix("/v1")}"'))
    listed = run("explain", policy, "-", "--path", path, stdin=CHAT)

    assert (refused.exit_code, speech.exit_code, listed.exit_code) == (1, 0, 0)
    assert f"POST {path.removeprefix('/v1')} does not pass all, whose passthrough.allow" in refused.output
    assert f"Answer: {status}." in refused.output


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


BALANCED = """\
version: 1
backends:
  a: {type: scripted}
  b: {type: scripted}
stores: {state: STATE}
routes:
  - name: all
    match: {models: ["*"]}
    backends:
      - {ref: a, price: {input_per_1m: 1, output_per_1m: 2}}
      - {ref: b, price: {input_per_1m: 3, output_per_1m: 4}}
    routing: {policy: POLICY}
"""


def _balanced(folder: Path, policy: str) -> Path:
    path = folder / "balanced.yaml"
    path.write_text(BALANCED.replace("STATE", str(folder)).replace("POLICY", policy), encoding="utf-8")
    return path


def _leaves(run: Run, path: Path) -> tuple[str, list[str]]:
    """What is said of the pool and of its two backends."""
    chat = json.dumps({"model": "m", "messages": [{"role": "user", "content": "x" * 4000}]})
    stack = json.loads(run("explain", path, "-", "--format", "json", stdin=chat).output)["stack"]
    return stack[-3]["detail"], [stage["detail"] for stage in stack[-2:]]


def test_explain_says_what_is_known_of_backends_that_are_balanced_by_prediction(run: Run, tmp_path: Path) -> None:
    """What a gateway has written down counts; a backend of which nothing is written is not known."""
    model = LatencyModel()
    for _ in range(40):
        model.observe(features(0, 1000, 1000, 0, 0), 0.3)
    (tmp_path / "latency.json").write_text(json.dumps({"a": model.dump()}))
    pool, (a, b) = _leaves(run, _balanced(tmp_path, "auto"))

    assert pool.startswith("predicted_cost: the least of predicted seconds to the first token + 2 x")
    assert re.match(
        r"scripted, priority 0, 0\.[23]\d* s to the first token while idle, for 1011 prompt tokens at \d+", a
    )
    assert "learned from 40" in a
    assert b == "scripted, priority 0, not known yet: 0 first tokens seen; 1011 prompt tokens more"


def test_explain_damaged_state_is_as_good_as_none(run: Run, tmp_path: Path) -> None:
    """The command says what a gateway would know, which is nothing."""
    (tmp_path / "latency.json").write_text('{"a": {"weights": 1}}')
    _, leaves = _leaves(run, _balanced(tmp_path, "latency"))

    assert all("not known yet" in leaf for leaf in leaves)


@pytest.mark.parametrize(
    ("policy", "pool", "said"),
    [
        ("least_tokens", "the fewest prompt tokens ahead", "1011 prompt tokens more"),
        ("least_request", "the fewest calls in flight", "1011 prompt tokens more"),
        ("cost", "the lowest price", "for 1011 prompt tokens and an answer of 256"),
        ("weighted", "in turn, by weight", "50 % of priority 0"),
        ("round_robin", "in turn", "50 % of priority 0"),
    ],
)
def test_explain_names_the_way_of_balancing(run: Run, tmp_path: Path, policy: str, pool: str, said: str) -> None:
    """Each way says its rule, and of each backend what the rule looks at."""
    detail, leaves = _leaves(run, _balanced(tmp_path, policy))

    assert detail.startswith(f"{policy}: {pool}")
    assert all(said in leaf for leaf in leaves)


def test_explain_consistent_hash_shows_the_prompts_order(run: Run, tmp_path: Path) -> None:
    """The same order every time: it follows from the prompt alone."""
    path = _balanced(tmp_path, "consistent_hash")
    first, again = _leaves(run, path)[1], _leaves(run, path)[1]

    assert first == again
    assert sorted(leaf.rpartition("priority 0, ")[2] for leaf in first) == [
        "number 1 for this prompt",
        "number 2 for this prompt",
    ]


def test_explain_shows_batching_where_embeddings_are_asked_for(run: Run, tmp_path: Path) -> None:
    """Between the caches and the pool, and only on the way of what can share a call."""
    path = _balanced(tmp_path, "auto")
    path.write_text(path.read_text() + "    batching: {max_batch: 16, max_in_flight: 3}\n", encoding="utf-8")

    def stages(of: str) -> dict[str, str]:
        said = run("explain", path, "-", "--path", of, "--format", "json", stdin='{"model": "m", "input": "a"}').output
        return {stage["name"]: stage["detail"] for stage in json.loads(said)["stack"]}

    assert list(stages("/v1/embeddings")) == ["batching", "pool", "a", "b"]
    assert "up to 16 inputs and 256KiB a call, 3 at once" in stages("/v1/embeddings")["batching"]
    assert list(stages("/v1/chat/completions")) == ["pool", "a", "b"]


def test_explain_shows_hedges_and_probes_where_there_are_some(run: Run, tmp_path: Path) -> None:
    """When a second backend is asked, which backends are asked how they are, and what quotas and keys they have."""
    path = _balanced(tmp_path, "weighted")
    keys = tmp_path / "a.key", tmp_path / "b.key"
    for key in keys:
        key.write_text(key.name, encoding="utf-8")
    given = f"['file:{keys[0]}', 'file:{keys[1]}']"
    probed = (
        "a: {type: openai, base_url: 'http://127.0.0.1:9/v1', health: {path: /live, interval: 3s}, "
        f"api_keys: {given}, quota: {{rpm: 60, tpm: 90000}}}}"
    )
    text = re.sub(r"\ba: \{type: scripted[^\n]*\}", probed, path.read_text(encoding="utf-8"), count=1)
    path.write_text(text + "    hedge: {budget: 0.1, quantile: 0.9}\n", encoding="utf-8")
    pool, (a, b) = _leaves(run, path)

    assert "a second backend for a call that is later than 90 % of its kind, for up to 10 % of the calls" in pool
    assert "rests 10s after 5 failures in a row or over 20 % of 20 calls" in pool
    assert a.endswith(
        "2 keys, each call by what is left, at most 60 requests and 90,000 tokens a minute, probed at /live every 3s"
    )
    assert "probed" not in b


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("", "counted, and nothing done about it"),
        (", admission: {}", "who cannot be: 429; up to 4096 wait, in turns by tenant"),
        (", admission: {on_overload: queue, max_wait: 3s}", "who cannot be: waits up to 3s, then 429"),
        (", admission: {on_overload: degrade, degrade_to: b, fairness: {by: key}}", "who cannot be: route b; "),
    ],
)
def test_explain_shows_limits_and_what_becomes_of_who_is_late(run: Run, tmp_path: Path, more: str, said: str) -> None:
    """In front of the pool, as the call meets them; a route without limits has no such stage."""
    file = tmp_path / "policy.yaml"
    file.write_text(
        "version: 1\nbackends: {gpu: {type: scripted}}\nroutes:\n"
        f"  - {{name: a, match: {{models: [llama]}}, backends: [{{ref: gpu}}], slo: {{ttft: 2s, total: 60s}}{more}}}\n"
        '  - {name: b, match: {models: ["*"]}, backends: [{ref: gpu}]}\n',
        encoding="utf-8",
    )
    body = '{"model": "llama", "messages": []}'
    stack = json.loads(run("explain", file, "-", "--format", "json", stdin=body).output)["stack"]
    other = json.loads(run("explain", file, "-", "--format", "json", stdin=body.replace("llama", "x")).output)["stack"]

    assert [stage["name"] for stage in stack][-3:] == ["admission", "pool", "gpu"]
    assert [(stage["name"], stage["detail"]) for stage in stack][:-3] == (
        [("degrade", "on overload: route b")] if "degrade_to" in more else []
    )
    assert stack[-3]["detail"].startswith(
        "in time: first token within 2s and 125ms for each 1000 tokens of the prompt, then one every 100ms, "
        "all within 1m"
    )
    assert said in stack[-3]["detail"]
    assert [stage["name"] for stage in other] == ["pool", "gpu"]


def test_explain_tells_what_each_way_of_a_call_would_cost(run: Run, tmp_path: Path) -> None:
    """Of a route that chooses, the cheapest first; a draft cannot answer a call with tools."""
    policy = tmp_path / "auto.yaml"
    price = "price: {input_per_1m: %s, output_per_1m: %s}"
    policy.write_text(
        "version: 1\nbackends:\n"
        + "".join(
            f"  {name}: {{type: openai, preset: vllm, {price % (usd, usd)}}}\n"
            for name, usd in (("own", 2), ("small", 1), ("far", 9))
        )
        + 'routes:\n  - {name: all, match: {models: ["*"]}, slo: {}, backends: [{ref: own}], speculative:\n'
        "    {mode: auto, allow: [draft, elsewhere], draft: small, calibration: pair.cascade, elsewhere: [far]}}\n"
        "  - {name: far, match: {internal: true}, backends: [{ref: far}]}\n"
    )
    asked = {"model": "m", "messages": [{"role": "user", "content": "x" * 4000}]}

    shown = run("explain", policy, "-", stdin=json.dumps(asked)).output
    with_tools = run("explain", policy, "-", stdin=json.dumps({**asked, "tools": [{}]})).output

    assert shown.index("draft, if little enough is lost 0.001") < shown.index("target 0.002") < shown.index("far 0.011")
    assert "no draft for such a call" in with_tools
