"""`slipstream samples`: the command."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from random import Random

import click

from gateway.cli.loading import FileProblem, read_policy
from gateway.demo.samples.questions import NUM_EXCHANGES, write_questions
from gateway.demo.samples.traffic import trace, write_log, write_table, write_trace

_LIVE = """\
version: 1
backends:
  gpu-a: {type: simulated}
  gpu-b: {type: simulated, speed: 0.6}
routes: [{name: support, match: {models: ["*"]}, backends: [{ref: gpu-a}, {ref: gpu-b}], routing: {policy: weighted}}]
"""
_SERVERS = """\
version: 1
backends:
  gpu-a: {type: openai, base_url: "http://10.0.0.1:8000/v1"}
  gpu-b: {type: openai, base_url: "http://10.0.0.2:8000/v1"}
"""
_OLD = (
    f"# What is in force: two servers take turns.\n{_SERVERS}"
    + """\
routes:
  - name: support
    match: {models: ["*"]}
    backends: [{ref: gpu-a}, {ref: gpu-b}]
    routing: {policy: weighted}
"""
)
_NEW = (
    f"""\
# What could be: each call goes where its first token is expected soonest, and questions that came before are answered
# from the caches.
{_SERVERS}"""
    + """\
routes:
  - name: urgent
    match: {models: ["*"], headers: {x-team: support}}
    backends: [{ref: gpu-a}]
    fallbacks: {routes: [support]}
  - name: support
    match: {models: ["*"]}
    backends: [{ref: gpu-a}, {ref: gpu-b}]
    routing: {policy: predicted_cost}
    cache:
      exact: {ttl: 1h}
      semantic: {mode: verified, max_wrong_hit_rate: 0.01, ttl: 1d}
"""
)
_REQUEST = {
    "model": "help",
    "messages": [{"role": "user", "content": "How long does delivery take?"}],
    "temperature": 0,
}
COMMANDS = (
    "slipstream check policy.yaml",
    "slipstream explain policy.yaml request.json --header 'x-team: support'",
    "slipstream simulate --trace trace.jsonl.gz --policy policy.yaml --fleet h200-8b:8 --load 0.95",
    "slipstream simulate --trace access.log --policy old.yaml --policy policy.yaml --fleet h200-8b:8 --load 0.95"
    " --html page.html",
    "slipstream simulate --trace access.log --policy old.yaml --replay",
    "slipstream simulate --trace calls.csv --columns at=time,prompt=input,output=output,client=app"
    " --policy policy.yaml --fleet 2..4 --rate 80",
    "slipstream cache replay log.jsonl.gz --policy policy.yaml --plot curve.svg",
)
"""What can be tried on them, in their folder."""


@click.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path), default="samples")
def samples(folder: Path) -> None:
    """Write made-up files into FOLDER, on which the examples of `check`, `explain`, `simulate` and `cache` run.

    Two policies, a trace, the access log and the table of the same calls, a log of questions and answers, a request.
    Nothing is overwritten.

    \b
    Example:
      slipstream samples
    """
    names = ("old.yaml", "policy.yaml", "request.json", "trace.jsonl.gz", "calls.csv", "access.log", "log.jsonl.gz")
    for name in names:
        if (folder / name).exists():
            raise FileProblem(f"{folder / name} is there already; nothing is written")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _write(folder)
    except OSError as error:
        raise FileProblem(f"{folder}: {error.strerror}") from error
    click.echo(f"{folder} has {len(names)} files now, with {NUM_EXCHANGES} made-up questions. Try there:", err=True)
    for command in COMMANDS:
        click.echo(f"  {command}", err=True)


def _write(folder: Path) -> None:
    """Raises: OSError."""
    for name, text in (("old.yaml", _OLD), ("policy.yaml", _NEW), ("request.json", json.dumps(_REQUEST, indent=2))):
        (folder / name).write_text(text, encoding="utf-8")
    requests = trace(Random(1))
    write_trace(folder / "trace.jsonl.gz", requests.requests)
    write_table(folder / "calls.csv", requests.requests)
    with tempfile.TemporaryDirectory() as own:
        live = Path(own, "live.yaml")
        live.write_text(_LIVE, encoding="utf-8")
        write_log(folder / "access.log", read_policy(live, no_env=True), requests)
    write_questions(folder / "log.jsonl.gz", Random(1))
