"""An access log of two simulated backends, one of them slower in ways of its own, as a gateway writes it."""

from __future__ import annotations

from pathlib import Path
from random import Random

import msgspec

from backends.charges.usage import Usage
from backends.operations import Operation
from gateway.cli.loading import read_policy
from gateway.record.access_log import LogLine
from gateway.simulate.study import StudyOptions, simulate
from gateway.simulate.traces import Trace, TraceRequest
from policies.policy_file.load import LoadedPolicy

POLICY = "version: 1\nbackends: {fast: %s, slow: %s}\nroutes: [{name: all, match: {models: ['*']}, backends: [%s]}]\n"
LIVE = ("{type: simulated}", "{type: simulated, speed: 0.5, token_us: 35, overhead_us: 20000}")
UPSTREAM = "{type: openai, base_url: 'http://127.0.0.1:9/v1'}"
BOTH = "{ref: fast}, {ref: slow}"


def policy(folder: Path, fast: str = UPSTREAM, slow: str = UPSTREAM, used: str = BOTH) -> LoadedPolicy:
    """A policy of two backends."""
    path = folder / "policy.yaml"
    path.write_text(POLICY % (fast, slow, used), encoding="utf-8")
    return read_policy(path, no_env=True)


def traffic(number: int = 600) -> Trace:
    """Prompts of many lengths as a Poisson process; every other one begins like others."""
    random = Random(5)
    requests = []
    at = 0.0
    for index in range(number):
        at += random.expovariate(24.0)
        blocks = (index % 7, 100 + index % 7, 1000 + index) if index % 2 else ()
        prompt = 512 * len(blocks) + int(random.lognormvariate(6.5, 0.8)) + 1
        requests.append(TraceRequest(at, prompt, 1 + int(random.lognormvariate(4, 0.7)), index + 1, blocks))
    return Trace("t.jsonl", "slipstream", tuple(requests), 0)


def write_log(folder: Path) -> Path:
    """The log of `traffic` in virtual time, as a file of the folder."""
    result = simulate(policy(folder, *LIVE), None, traffic(), StudyOptions(seed=1), lambda *_: None)
    path = folder / "access.log"
    with path.open("wb") as file:
        for number, outcome in enumerate(result.outcomes):
            ended_at = 1e9 + outcome.arrived_at + outcome.total_s
            line = LogLine(round(ended_at, 3), f"r{number}", "all", Operation.CHAT, 200, outcome.total_s * 1e3)
            line.model, line.backend, line.attempts = "m", outcome.backend, 1
            line.usage = Usage(outcome.request.prompt_tokens, outcome.request.output_tokens, outcome.cached_tokens)
            line.first_token_ms = outcome.first_token_s * 1e3
            file.write(msgspec.json.encode(line) + b"\n")
    return path
