"""A made-up trace of conversations, and the access log of two simulated backends that have answered them."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from random import Random

import msgspec

from backends.charges.usage import Usage
from backends.operations import Operation
from gateway.record.access_log import LogLine
from gateway.simulate.run import RequestFate
from gateway.simulate.study import StudyOptions, simulate
from gateway.simulate.traces import BLOCK_TOKENS, Trace, TraceRequest
from policies.policy_file.load import LoadedPolicy

_MINUTES = 8
_CONVERSATIONS_A_SECOND = 1.2
_APPS = ("support", "search", "agents", "research")
_SYSTEM_BLOCKS = 2
"""Of 512 tokens, with which all prompts of an application begin."""
_MONDAY = datetime(2026, 11, 16, 9, tzinfo=UTC).timestamp()


def trace(random: Random) -> Trace:
    """Conversations of one to six turns, each of which begins with all that was said before."""
    requests = sorted(_requests(random), key=lambda request: request.at_s)
    numbered = [msgspec.structs.replace(each, line=line) for line, each in enumerate(requests, 1)]
    return Trace("trace.jsonl.gz", "slipstream", tuple(numbered), 0)


def _requests(random: Random) -> Iterator[TraceRequest]:
    begin = 0.0
    next_block = 1000
    while begin < _MINUTES * 60:
        begin += random.expovariate(_CONVERSATIONS_A_SECOND)
        app = random.choices(range(len(_APPS)), (5, 3, 1, 1))[0]
        blocks = [10 * app + place for place in range(_SYSTEM_BLOCKS)]
        at, said = begin, len(blocks) * BLOCK_TOKENS
        for _ in range(random.choice((1, 1, 2, 3, 4, 6))):
            said += 20 + int(random.lognormvariate(4.5, 0.9))
            while len(blocks) * BLOCK_TOKENS < said:
                blocks.append(next_block)
                next_block += 1
            answer = 1 + int(random.lognormvariate(4.6, 0.7))
            yield TraceRequest(at, said, answer, 0, tuple(blocks), _APPS[app])
            said += answer
            # Somebody reads the answer, and writes the next question.
            at += answer * 0.03 + random.expovariate(1 / 12)


def write_trace(path: Path, requests: Sequence[TraceRequest]) -> None:
    """In our own format, gzipped. Raises: OSError."""
    with gzip.open(path, "wb") as file:
        for each in requests:
            line = {"t": round(each.at_s, 3), "i": each.prompt_tokens, "o": each.output_tokens, "h": each.blocks}
            file.write(msgspec.json.encode({**line, "c": each.client}) + b"\n")


def write_table(path: Path, requests: Sequence[TraceRequest]) -> None:
    """As a table out of somebody's own books. Raises: OSError."""
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(("id", "time", "input", "output", "app"))
        for each in requests:
            created = datetime.fromtimestamp(_MONDAY + each.at_s, UTC).isoformat(timespec="milliseconds")
            table.writerow((each.line, created, each.prompt_tokens, each.output_tokens, each.client))


def write_log(path: Path, live: LoadedPolicy, requests: Trace) -> None:
    """The access log of a gateway with that policy, whose backends are simulated, in virtual time. Raises: OSError."""
    result = simulate(live, None, requests, StudyOptions(seed=1, model="help"), lambda *_: None)
    lines = []
    for number, outcome in enumerate(result.outcomes):
        if outcome.fate is not RequestFate.ANSWERED or outcome.first_token_s is None:
            continue
        ended_at = _MONDAY + outcome.arrived_at + outcome.total_s
        line = LogLine(
            round(ended_at, 3), f"req_{number:08x}", "support", Operation.CHAT, 200, round(outcome.total_s * 1e3, 3)
        )
        line.model, line.backend, line.attempts, line.key = "help", outcome.backend, 1, outcome.request.client
        line.usage = Usage(outcome.request.prompt_tokens, outcome.request.output_tokens, outcome.cached_tokens)
        line.first_token_ms = round(outcome.first_token_s * 1e3, 3)
        lines.append((ended_at, msgspec.json.encode(line)))
    path.write_bytes(b"".join(line + b"\n" for _, line in sorted(lines)))
