"""Requests a minute that `slipstream simulate` replays on one core, through the stacks of a small policy.

    python -m tests.benchmarks.policies.simulator_speed --requests 6000

The trace is made up: conversations with prompts of about 3,000 tokens, growing turn by turn, on eight replicas at 0.9
load. Prints wall and processor time of the replay for each balance; exit code 1 where it is under 100,000 a minute of
processor time.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from random import Random

from gateway.cli.loading import read_policy
from gateway.simulate.capacity import backlog_rps
from gateway.simulate.run import replay
from gateway.simulate.simulated_fleet import parse_fleets, refit
from gateway.simulate.traces import Trace, TraceRequest
from policies.pool.balance.settings import Balance

_POLICY = """\
version: 1
backends: {any: {type: simulated}}
routes: [{name: all, match: {models: ["*"]}, backends: [{ref: any}]}]
"""
_ASKED_PER_MINUTE = 100_000
_LOAD = 0.9


def made_trace(num_requests: int) -> Trace:
    """Conversations of up to twelve turns that overlap."""
    random = Random(1)
    talks = [0] * max(1, num_requests // 6)
    requests = []
    for number in range(num_requests):
        talk = random.randrange(len(talks))
        talks[talk] = talks[talk] % 12 + 1
        blocks = tuple(talk * 100 + block for block in range(talks[talk]))
        prompt = 512 * len(blocks) + random.randrange(512)
        requests.append(TraceRequest(number * 0.01, prompt, random.randrange(20, 500), number + 1, blocks))
    return Trace("made up", "slipstream", tuple(requests), 0)


def main() -> int:
    """Measure balances that look at calls, and one that does not."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=6000)
    num_requests = parser.parse_args().requests
    trace = made_trace(num_requests)
    [fleet] = parse_fleets("h200-8b:8")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "policy.yaml")
        path.write_text(_POLICY, encoding="utf-8")
        loaded = read_policy(path, no_env=True)
    capacity_rps = backlog_rps([*fleet.members.values()], trace)
    stretch = num_requests / trace.span_s / (_LOAD * capacity_rps)
    balances: tuple[Balance, ...] = ("round_robin", "least_tokens", "predicted_cost")
    rates = []
    print(f"{'balance':<16} {'wall s':>8} {'a minute':>10} {'processor s':>12} {'a minute':>10}")
    for balance in balances:
        began_s = time.process_time()
        wall_s = replay(refit(loaded, fleet, balance), trace, stretch=stretch, progress=lambda done, total: None).wall_s
        processor_s = time.process_time() - began_s
        wall_rate, rate = (num_requests / seconds * 60 for seconds in (wall_s, processor_s))
        print(f"{balance:<16} {wall_s:>8.2f} {wall_rate:>10,.0f} {processor_s:>12.2f} {rate:>10,.0f}")
        rates.append(rate)
    return int(min(rates) < _ASKED_PER_MINUTE)


if __name__ == "__main__":
    sys.exit(main())
