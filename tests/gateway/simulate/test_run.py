"""Replaying a trace through a policy's stacks: nothing is lost, seeds decide, and the figures are what they say."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from backends.errors import ConfigurationError
from gateway.cli.loading import read_policy
from gateway.simulate.capacity import backlog_rps, shared_prefix_hit
from gateway.simulate.report import jain, max_min_shares, percentile
from gateway.simulate.run import RequestFate
from gateway.simulate.simulated_fleet import parse_fleets, refit, replicas_of
from gateway.simulate.slo import parse_slo
from gateway.simulate.study import StudyOptions, StudyResult, simulate, smallest_fleets
from gateway.simulate.trace_calls import prompt_pieces
from gateway.simulate.traces import Labels, Trace, TraceRequest
from policies.policy_file.load import LoadedPolicy

POLICY = """\
version: 1
backends:
  gpu: {type: openai, base_url: "http://127.0.0.1:9000/v1"}
keys:
  - {name: dev, key: "env:GATEWAY_KEY", tenant: red}
routes:
  - name: chat
    match: {models: ["llama", "other-*"]}
    backends: [{ref: gpu}]
    %s
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where policy files are written."""
    return tmp_path


def policy(folder: Path, more: str = "") -> LoadedPolicy:
    """A policy of one route on an upstream."""
    path = folder / "policy.yaml"
    path.write_text(POLICY % more, encoding="utf-8")
    return read_policy(path, no_env=True)


def trace(*requests: tuple[float, int, int], **fields: Any) -> Trace:
    """A trace of these moments, prompts and answers."""
    return Trace(
        "t.jsonl",
        "slipstream",
        tuple(
            TraceRequest(at, prompt, output, number, **fields)
            for number, (at, prompt, output) in enumerate(requests, 1)
        ),
        0,
    )


def conversation(number: int = 300) -> Trace:
    """Sixty conversations whose prompts grow, from three clients."""
    requests = []
    for index in range(number):
        talk, turn = index % 60, index // 60
        blocks = tuple(talk * 1000 + block for block in range(2 * turn + 2))
        requests.append(
            TraceRequest(index * 0.05, 512 * len(blocks) + 100, 20 + index % 50, index + 1, blocks, f"c{index % 3}")
        )
    return Trace("t.jsonl", "slipstream", tuple(requests), 0)


def run(loaded: LoadedPolicy, requests: Trace, fleet: str | None = "2", **asked: Any) -> StudyResult:
    """One simulation."""
    asked = {"slo": parse_slo(""), "model": "llama", **asked}
    return simulate(
        loaded, parse_fleets(fleet)[0] if fleet else None, requests, StudyOptions(**asked), lambda done, total: None
    )


def figures(result: StudyResult) -> Mapping[str, Any]:
    """Everything but the real time that it took."""
    return {name: getattr(result.report, name) for name in result.report.__struct_fields__ if name != "wall_s"}


def test_simulation_single_request_takes_the_closed_form(folder: Path) -> None:
    """Through all the stages, a request alone has its first token when the formula says."""
    result = run(policy(folder), trace((0.0, 5000, 100)))

    step = parse_fleets("1")[0].members["h200-8b-1"].model().step
    assert result.report.ttft_p50_s == pytest.approx(step.first_token_s(5000, 2048))
    [outcome] = result.outcomes
    assert outcome.fate is RequestFate.ANSWERED
    assert outcome.token_gap_s == pytest.approx(
        sum(step.flat_s(1, 1) + step.decode_s(5001 + number) for number in range(99)) / 99
    )


@pytest.mark.parametrize("balance", ["predicted_cost", "round_robin", "p2c", "least_tokens", "consistent_hash"])
def test_simulation_conserves_requests(folder: Path, balance: Any) -> None:
    """Every request has one outcome, in order, and with room for everything each is answered once."""
    requests = conversation()

    result = run(policy(folder), requests, "3", balance=balance, load=0.8)

    assert [outcome.request for outcome in result.outcomes] == list(requests.requests)
    assert {outcome.fate for outcome in result.outcomes} == {RequestFate.ANSWERED}
    assert result.report.failed_share == result.report.shed_share == result.report.retries == 0
    assert result.report.load == pytest.approx(0.8)
    assert {outcome.backend for outcome in result.outcomes} == {"h200-8b-1", "h200-8b-2", "h200-8b-3"}


def test_simulation_same_seed_same_figures(folder: Path) -> None:
    """A seed decides everything; another one decides otherwise."""
    loaded, requests = policy(folder), conversation()

    first, again, other = (figures(run(loaded, requests, balance="p2c", load=0.9, seed=seed)) for seed in (7, 7, 8))

    assert first == again
    assert first["ttft_p50_s"] != other["ttft_p50_s"]


def test_simulation_one_replica_hits_what_a_shared_cache_would(folder: Path) -> None:
    """With one replica and room for all, prefixes hit as in a cache without limits."""
    requests = conversation()

    report = run(policy(folder), requests, "1", rate=2).report

    repeated = sum(512 * max(0, len(request.blocks) - 2) for request in requests.requests)
    expected = repeated / sum(request.prompt_tokens for request in requests.requests)
    assert report.prefix_hit == pytest.approx(expected)
    assert report.prefix_hit_shared == pytest.approx(expected)


def test_simulation_exact_cache_answers_what_repeats(folder: Path) -> None:
    """The gateway's own cache is in the stack: the same call again needs no replica."""
    requests = Trace("t.jsonl", "slipstream", tuple(TraceRequest(at, 1024, 9, at + 1, (1, 2)) for at in range(4)), 0)

    report = run(policy(folder, "cache: {exact: {ttl: 1h}}"), requests).report

    assert report.cache_hit_share == 0.75


def test_simulation_timeouts_of_the_policy_fail_requests(folder: Path) -> None:
    """A route's time limits hold in virtual time, and what they end counts as failed."""
    report = run(policy(folder, "timeouts: {total: 1s}"), trace((0, 1000, 10), (0.5, 1000, 2000))).report

    assert (report.failed_share, report.slo_share) == (0.5, 0.5)


def test_simulation_admission_keeps_answers_in_time_where_without_it_all_are_late(folder: Path) -> None:
    """Far beyond what the fleet can do: with a gate what is answered is in time, and that is more."""
    requests = conversation(1200)
    loaded = policy(folder)
    limits = parse_slo("ttft=1s,ttft_per_1k_prompt=0s,tpot=1s")
    without, gated = (
        run(loaded, requests, "1", slo=limits, load=8.0, admission=choice).report for choice in ("none", "slo")
    )

    assert without.shed_share == 0
    assert 0 < gated.shed_share < 0.75
    assert gated.goodput_rps > 1.5 * without.goodput_rps
    assert gated.admitted_slo_share > 0.95


def test_simulation_slow_replicas_are_worse(folder: Path) -> None:
    """Replicas at half speed miss what others meet."""
    requests = conversation()
    fast, slow = (run(policy(folder), requests, f"h200-8b{speed}:2", rate=20).report for speed in ("", "@0.25"))

    assert fast.slo_share > slow.slo_share
    assert fast.capacity_rps == pytest.approx(4 * slow.capacity_rps, rel=0.01)


def test_simulation_own_simulated_backends_need_no_fleet(tmp_path: Path) -> None:
    """A policy whose backends are simulated is replayed as it is."""
    path = tmp_path / "policy.yaml"
    path.write_text(
        "version: 1\nbackends: {a: {type: simulated, speed: 2}}\n"
        'routes: [{name: r, match: {models: ["*"]}, backends: [{ref: a}]}]\n',
        encoding="utf-8",
    )

    report = run(read_policy(path, no_env=True), trace((0, 100, 2)), None).report

    assert (report.replicas, report.fleet) == (1, "a")


def test_simulation_names_what_cannot_be_simulated(folder: Path) -> None:
    """An upstream without a stand-in is an error with its line; so is a model that no route takes."""
    with pytest.raises(ConfigurationError, match=r"policy.yaml:3: backends.gpu.type: .*--fleet"):
        run(policy(folder), trace((0, 1, 1)), None)
    with pytest.raises(ConfigurationError, match=r'no route takes .* "gpt-4o" \(t.jsonl:1\)'):
        run(policy(folder), trace((0, 1, 1)), model="gpt-4o")


@pytest.mark.parametrize(
    ("slo", "message"),
    [
        (
            "ttft=1ms,ttft_per_1k_prompt=0ms",
            r"slo: ttft: 1ms cannot be met: the shortest prompt \(t.jsonl:2, 90 tokens\)",
        ),
        ("tpot=1ms", r"slo: tpot: 1ms cannot be met: alone on an idle replica a token takes 6.1 ms"),
        ("ttft=2", 'slo: ttft: "2": a duration needs a number and a unit'),
        ("latency=2s", 'slo: "latency=2s" is not NAME=DURATION with one of ttft, ttft_per_1k_prompt, tpot'),
    ],
)
def test_simulation_slo_that_cannot_be_is_refused(folder: Path, slo: str, message: str) -> None:
    """A limit that no request could ever meet, or that is none, is named."""
    with pytest.raises(ConfigurationError, match=message):
        run(policy(folder), trace((0, 5000, 20), (1, 90, 20)), slo=parse_slo(slo))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0", "it has no replicas"),
        ("h200-8b:0", "it has no replicas"),
        ("h200:8", 'unknown profile "h200". Did you mean "h200-8b"'),
        ("8 replicas", "is not PROFILE"),
        ("4..2", "ends below its beginning"),
        ("2,4..6", "mixes a range"),
        ("h200-8b@0:2", "a speed is more than 0"),
        ("2000", "at most 1024 replicas"),
    ],
)
def test_fleet_that_is_wrong_is_refused(text: str, message: str) -> None:
    """Each mistake has its own message."""
    with pytest.raises(ConfigurationError, match=message):
        parse_fleets(text)


def test_fleet_texts_are_understood(folder: Path) -> None:
    """Numbers, profiles, speeds and ranges."""
    assert [len(fleet.members) for fleet in parse_fleets("h200-8b:4..6")] == [4, 5, 6]
    [mixed] = parse_fleets("h200-8b:6,h200-8b@0.5:2")
    assert [settings.speed for settings in mixed.members.values()] == [1.0] * 6 + [0.5] * 2
    loaded = refit(policy(folder), mixed, "least_tokens")
    assert [settings.tokens_per_event for settings in replicas_of(loaded)] == [0] * 8
    assert [(route.balance, route.routing.cache_tokens) for route in loaded.policy.routes] == [
        ("least_tokens", 800_000)
    ]


def test_capacity_grows_with_the_fleet_and_knows_small_traces() -> None:
    """Twice the replicas take twice as much; a trace of one request is repeated until that shows."""
    one, two = ([*fleet.members.values()] for fleet in parse_fleets("1..2"))
    single = trace((0.0, 2048, 1))

    many = trace(*((number * 0.1, 1000 + number, 30) for number in range(500)))

    assert backlog_rps(two, many) == pytest.approx(2 * backlog_rps(one, many), rel=0.02)
    step = one[0].model().step
    assert backlog_rps(one, single) == pytest.approx(1 / step.first_token_s(2048, 2048), rel=0.01)
    assert shared_prefix_hit(one, single) is None


def test_prompt_texts_share_what_the_trace_shares() -> None:
    """Texts are as long as the prompts, alike for the same blocks, and different beyond them."""

    def text(prompt_tokens: int, blocks: tuple[int, ...], number: int) -> bytes:
        return b"".join(prompt_pieces(TraceRequest(0, prompt_tokens, 1, 1, blocks), number))

    first, second = text(1300, (5, 6, 7), 0), text(1300, (5, 6, 8), 1)
    tiny = {text(1, blocks, number) for blocks in ((), (5,), (6,)) for number in range(1000)}

    assert (len(first), len(second)) == (5200, 5200)
    assert [len(text(513 + more, (5, 2**63 - 1), 0)) for more in (0, 511, 512)] == [2052, 4096, 4100]
    assert first[:4096] == second[:4096]
    assert first[4096:4104] != second[4096:4104]
    assert len(tiny) == 1002


def test_report_fairness_is_max_min() -> None:
    """Who wants little gets it all; the rest is divided evenly; Jain's index knows the extremes."""
    assert max_min_shares([1, 5, 10], 9) == [1, 4, 4]
    assert max_min_shares([1, 2], 9) == [1, 2]
    assert (jain([1, 1, 1]), jain([0, 0]), jain([1, 0])) == (1, 0, 0.5)
    assert (percentile([], 0.5), percentile([1, 2, 3, 4], 0.5), percentile([1, 2, 3], 0.99)) == (None, 2, 3)


def test_study_smallest_fleet_is_the_first_that_stays_good(folder: Path) -> None:
    """The curve's answer is the smallest fleet from which on the share holds."""
    requests = conversation()
    reports = [
        simulate(
            policy(folder),
            fleet,
            requests,
            StudyOptions(parse_slo("ttft=300ms"), rate=60, model="llama"),
            lambda *_: None,
        ).report
        for fleet in parse_fleets("1..4")
    ]

    found = smallest_fleets(reports)

    assert [report.slo_share for report in reports] == sorted(report.slo_share for report in reports)
    for share, size in found.items():
        assert size == next((report.replicas for report in reports if report.slo_share >= float(share)), None)


def test_simulation_of_auto_shows_money_and_quality(folder: Path) -> None:
    """What loses nothing by its trace goes to the draft in the end, what loses all to the target; both are told."""
    price = "price: {input_per_1m: %d, output_per_1m: %d}"
    path = folder / "auto.yaml"
    path.write_text(
        f"version: 1\nbackends:\n  big: {{type: simulated, {price % (10, 10)}}}\n"
        f"  small: {{type: simulated, {price % (1, 1)}}}\n"
        'routes: [{name: all, match: {models: ["*"]}, slo: {}, backends: [{ref: big}], speculative: {mode: auto,\n'
        "  allow: [draft], draft: small, calibration: of-no-use-here}}]\n",
        encoding="utf-8",
    )
    loaded = read_policy(path, no_env=True)
    asked = trace(*((float(second), 100, 10) for second in range(600)))
    easy, hard = Labels(0.0, 1.0, 1.0), Labels(1.0, 0.0, 1.0)
    requests = tuple(
        msgspec.structs.replace(request, labels=hard if request.line % 2 else easy) for request in asked.requests
    )

    result = run(loaded, dataclasses.replace(asked, requests=requests), None, model="m")

    last = [(outcome.request.labels, outcome.is_drafts) for outcome in result.outcomes[-100:]]
    assert sum(is_drafts for labels, is_drafts in last if labels is easy) == 50
    assert sum(is_drafts for labels, is_drafts in last if labels is hard) <= 10
    assert result.report.quality is not None
    assert 0.95 <= result.report.quality < 1
    assert result.report.usd_per_1k is not None
    assert 0.55 < result.report.usd_per_1k < 0.85
