"""`speculative: {mode: auto}` beside the best fixed policy: money, share in time and quality, in simulation.

    python -m tests.benchmarks.policies.auto_mode --traces FOLDER [--names azure2023_code,...] [--seed 5] [--json FILE]

A large model on a replica of one's own, a small one on another, and a dear provider that has room, as backends of type
`simulated`; the traces of FOLDER at 0.9 times what the large one's replica can do, so that bursts are more than that.

Quality: each request of a trace gets a prompt of routellm_correctness.jsonl.gz, drawn with the seed, whatever its
length (no trace tells what was asked). A router by form and words is learned on a half of the prompts and calibrated on
a fourth; requests get prompts of the last fourth only, so that quality is held out.

Fixed policies get the same calibration: the draft answers the calls that lose least by it (a cascade by the prompt), as
many as the quality allows, or half of that; the others stay, or go to the provider where the route's own admission has
no room in time. What they may spend is reckoned on the very trace that they are shown on, which flatters them and not
`auto`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import numpy as np

from backends.config import Config
from backends.registry import Registry
from backends.simulation.simulated import SimulatedConfig
from gateway.simulate.capacity import backlog_rps
from gateway.simulate.study import StudyOptions, simulate
from gateway.simulate.traces import Labels, Trace, read_trace
from policies.policy_file.load import LoadedPolicy, parse_policy
from policies.speculation.cascade.calibration import calibrate
from policies.speculation.router.labelled import LabelledPrompt, read_labelled
from policies.speculation.router.learned_router import PromptScorer, learn

_BACKENDS = """
version: 1
backends:
  large: {type: simulated, speed: 0.5, price: {input_per_1m: 0.6, output_per_1m: 2.4}}
  small: {type: simulated, speed: 2, price: {input_per_1m: 0.06, output_per_1m: 0.24}}
  dear: {type: simulated, speed: 4, overhead_us: 200000, price: {input_per_1m: 2.5, output_per_1m: 10}}
routes:
"""
_SLO = "slo: {ttft: 2s, ttft_per_1k_prompt: 250ms, tpot: 100ms}"
_DEAR = f"  - {{name: dear, match: {{models: [dear]}}, backends: [{{ref: dear}}], {_SLO}}}\n"
_SMALL = f"  - {{name: small, match: {{models: [small]}}, backends: [{{ref: small}}], {_SLO}}}\n"
_PLAIN = f"  - {{name: large, match: {{models: ['*']}}, backends: [{{ref: large}}], {_SLO}}}\n"
_GUARDED = (
    "  - {name: large, match: {models: ['*']}, backends: [{ref: large}], "
    f"{_SLO}, admission: {{on_overload: degrade, degrade_to: dear}}}}\n"
)
_AUTO = (
    f"  - {{name: large, match: {{models: ['*']}}, backends: [{{ref: large}}], {_SLO},\n"
    "     admission: {on_overload: degrade, degrade_to: dear},\n"
    "     speculative: {mode: auto, allow: [draft, elsewhere], draft: small, calibration: told, elsewhere: [dear],\n"
    "                   quality: QUALITY, share: SHARE}}\n"
)
FIXED = {
    "the provider": _DEAR.replace("[dear]}", "['*']}", 1),
    "large alone": _DEAR + _SMALL + _PLAIN,
    "large, provider where there is no room": _DEAR + _SMALL + _GUARDED,
}


def _settings_of(kind: str) -> type[Config]:
    return Registry().kind(kind).config


def _policy(routes: str) -> LoadedPolicy:
    return parse_policy((_BACKENDS + routes).encode(), Path("built in"), {}, _settings_of)


class Prompts:
    """Held-out prompts with what a calibration that has not seen them expects to be lost."""

    def __init__(self, path: Path, seed: int, quality: float) -> None:
        rows = read_labelled(path)
        order = np.random.default_rng(seed).permutation(len(rows))
        learned, rest = order[: len(rows) // 2], order[len(rows) // 2 :]
        calibrated, held = rest[: len(rest) // 2], rest[len(rest) // 2 :]
        random = np.random.default_rng(seed)
        router = learn(*_columns(rows, learned)[:2], _gains(rows, learned), random)
        scorer = PromptScorer(router)
        prompts, vectors, weak, strong = _columns(rows, calibrated)
        calibration = calibrate("router", -scorer.gains(prompts, vectors).astype(float), weak, strong, random)
        loss = calibration.loss_of(quality)
        prompts, vectors, weak, strong = _columns(rows, held)
        gains = scorer.gains(prompts, vectors)
        self.labels = [
            Labels(loss(-float(gain)), float(right), float(best))
            for gain, right, best in zip(gains, weak, strong, strict=True)
        ]

    def joined(self, trace: Trace, seed: int) -> Trace:
        """The trace, each request with a prompt's labels."""
        random = Random(seed)
        requests = [
            msgspec.structs.replace(request, model="any", labels=random.choice(self.labels))
            for request in trace.requests
        ]
        return replace(trace, requests=tuple(requests))


def _columns(rows: Sequence[LabelledPrompt], of: Any) -> tuple[list[str], Any, Any, Any]:
    chosen = [rows[row] for row in of]
    # No encoder: form and words alone, the same for all policies.
    vectors = np.zeros((len(chosen), 1), np.float32)
    weak, strong = (np.array([getattr(row, name) for row in chosen], float) for name in ("weak", "strong"))
    return [row.prompt for row in chosen], vectors, weak, strong


def _gains(rows: Sequence[LabelledPrompt], of: Any) -> Any:
    return np.array([rows[row].strong - rows[row].weak for row in of], np.float32)


def _split(trace: Trace, lines: frozenset[int]) -> Trace:
    """These go to the small model, as a cascade by the prompt does it."""
    requests = [
        msgspec.structs.replace(request, model="small") if request.line in lines else request
        for request in trace.requests
    ]
    return replace(trace, requests=tuple(requests))


def _run(
    name: str, loaded: LoadedPolicy, trace: Trace, rate: float, seed: int, small: frozenset[int]
) -> dict[str, Any]:
    found = simulate(loaded, None, trace, StudyOptions(seed=seed, rate=rate), lambda *_: None)
    outcomes = found.outcomes
    right = strong = 0.0
    drafts = 0
    for outcome in outcomes:
        labels = outcome.request.labels
        assert labels is not None
        is_drafts = outcome.is_drafts or (outcome.backend == "small" and outcome.request.line in small)
        drafts += is_drafts
        if outcome.fate == "answered":
            strong += labels.strong
            right += labels.weak if is_drafts else labels.strong
    return {
        "policy": name,
        "usd_per_1k": found.report.usd_per_1k,
        "in_slo": found.report.slo_share,
        "quality": right / strong,
        "small": drafts / len(outcomes),
        "dear": sum(outcome.backend == "dear" for outcome in outcomes) / len(outcomes),
        "wall_s": found.report.wall_s,
    }


def _show(row: dict[str, Any]) -> None:
    print(
        f"  {row['policy']:<52} {row['usd_per_1k']:8.4f} USD a 1,000  in time {row['in_slo']:6.1%}  quality "
        f"{row['quality']:6.1%}  small {row['small']:5.1%} dear {row['dear']:5.1%}  ({row['wall_s']:.0f} s)",
        flush=True,
    )


def _least_lost(trace: Trace, quality: float, seed: int) -> list[tuple[str, frozenset[int]]]:
    """Those that lose least, until what may be lost is spent, all of it or half; of equal ones some at random."""
    random = Random(seed)
    losses = sorted(
        (request.labels.draft_loss, random.random(), request.line)
        for request in trace.requests
        if request.labels is not None
    )
    found = []
    for share in (1.0, 0.5):
        left, lines = share * (1 - quality) * len(losses), set()
        for loss, _, line in losses:
            left -= max(0.0, loss)
            if left < 0:
                break
            lines.add(line)
        found.append((f"small for {share:.0%} of the quality, ", frozenset(lines)))
    return found


def _trace(given: argparse.Namespace, name: str, prompts: Prompts) -> list[dict[str, Any]]:
    trace = prompts.joined(read_trace(given.traces / f"{name}.jsonl.gz"), given.seed)
    if given.limit:
        trace = replace(trace, requests=trace.requests[: given.limit])
    large = _policy(_PLAIN).backends["large"][1]
    assert isinstance(large, SimulatedConfig), "as it is written above"
    rate = given.load * backlog_rps([large], trace)
    print(f"{trace.name}: {len(trace.requests)} requests, {rate:.2f} a second, seed {given.seed}", flush=True)
    rows = []
    for share in given.shares:
        routes = _DEAR + _AUTO.replace("QUALITY", str(given.quality)).replace("SHARE", str(share))
        rows.append(_run(f"auto, share {share:g}", _policy(routes), trace, rate, given.seed, frozenset()))
        rows[-1]["share"] = share
        _show(rows[-1])
    for named, routes in FIXED.items():
        policy = _policy(routes)
        rows.append(_run(named, policy, trace, rate, given.seed, frozenset()))
        _show(rows[-1])
        for what, small in _least_lost(trace, given.quality, given.seed) if "large" in named else ():
            rows.append(_run(what + named, policy, _split(trace, small), rate, given.seed, small))
            _show(rows[-1])
    # Fixed ones may be two points less in time, and half a point less right.
    autos = [row for row in rows if row["policy"].startswith("auto")]
    for auto in autos:
        fixed = [
            row
            for row in rows
            if not row["policy"].startswith("auto")
            and row["in_slo"] >= min(auto["in_slo"], auto["share"]) - 0.02
            and row["quality"] >= min(auto["quality"], given.quality) - 0.005
        ]
        best = min(fixed, key=lambda row: row["usd_per_1k"], default=None)
        if best is not None:
            print(f"  {auto['policy']}: {auto['usd_per_1k'] / best['usd_per_1k']:.3f} of {best['policy']}", flush=True)
    return [{"trace": name, **row} for row in rows]


def main() -> int:
    """Simulate and print."""
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--traces", type=Path, required=True, help="a folder of traces and labelled prompts")
    options.add_argument(
        "--names",
        type=lambda text: text.split(","),
        default=["mooncake_conversation", "azure2023_conv", "azure2023_code"],
    )
    options.add_argument("--quality", type=float, default=0.95, help="that all policies have to keep (default 0.95)")
    options.add_argument("--shares", type=lambda text: [float(part) for part in text.split(",")], default=[0.95])
    options.add_argument(
        "--load", type=float, default=0.9, help="times what the large model's replica can do (default 0.9)"
    )
    options.add_argument("--limit", type=int, default=0, help="requests of each trace; 0 for all")
    options.add_argument("--seed", type=int, default=5, help="of the division of prompts, the join and the simulation")
    options.add_argument("--json", type=Path, help="a file for the figures")
    given = options.parse_args()
    prompts = Prompts(given.traces / "routellm_correctness.jsonl.gz", given.seed, given.quality)
    rows = [row for name in given.names for row in _trace(given, name, prompts)]
    if given.json is not None:
        given.json.write_text(json.dumps(rows, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
