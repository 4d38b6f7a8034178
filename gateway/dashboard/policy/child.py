"""What is looked at in a process of its own: policies are read, compared, and tried on calls that have been.

Its input is one `PolicyJob`, its output one message a line. It has no secrets: variables of the environment are names
to it, each with a stand-in for its value. Files that a policy includes are those that came with the job, no others.
"""

from __future__ import annotations

import difflib
import os
import resource
import sys
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import yaml

from backends.config import Config
from backends.errors import ConfigurationError
from backends.registry import Registry
from gateway.cli.config.config import effective_policy, written_policy
from gateway.dashboard.policy.job import PolicyJob
from gateway.dashboard.policy.trial import try_loads, try_on
from policies.policy_file.load import LoadedPolicy, load_policy

MEMORY_BYTES = 2 * 1024**3
CPU_S = 120
_NICENESS = 10
_MAX_PROBLEM_CHARS = 500
_MOST_FILLED_IN = 48 * 1024
"""Characters of a policy that is shown and compared with every default filled in; a longer one is as it is written."""
_MOST_LINES = 5000
"""Of a difference."""


def main() -> None:
    """Do the job on standard input, and say what comes of it on standard output."""
    _bind()
    try:
        _work()
    except MemoryError:
        say(problem="It needs more memory than it may have.")
    except Exception as error:  # a named border: whatever is wrong with a policy is to be told
        say(problem=f"It has failed: {type(error).__name__}: {error}"[:_MAX_PROBLEM_CHARS])


def _bind() -> None:
    """It must not take from those who serve."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
    os.nice(_NICENESS)


def _work() -> None:
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=PolicyJob)
    with TemporaryDirectory(prefix="slipstream-policy-") as folder:
        _Work(job, Path(folder)).do()


def say(**message: object) -> None:
    """Tell whoever has started this."""
    sys.stdout.buffer.write(msgspec.json.encode(message) + b"\n")
    sys.stdout.buffer.flush()


class _Work:
    def __init__(self, job: PolicyJob, folder: Path) -> None:
        self._job = job
        self._folder = folder
        self._environ = {name: f"(value of {name})" for name in job.variables}

    def do(self) -> None:
        job = self._job
        old = None if job.old is None else self._tried("old", job.old)
        new, errors = self._read("new", job.new)
        if new is None:
            say(errors=errors)
            return
        if job.loads:
            say(revision=new.revision)
            try_loads(job.calls, new, job.loads, say)
            return
        # Every default filled in, one is fifty times as long, and takes seconds for each hundred kilobytes.
        is_long = sum(map(len, job.new.values())) > _MOST_FILLED_IN
        compared = written_policy if is_long else effective_policy
        told = _text(compared(new))
        say(
            revision=new.revision,
            written=_text(written_policy(new)),
            effective=None if is_long else told,
            warnings=list(new.warnings),
            diff=None if old is None else _diff(_text(compared(old)), told),
        )
        if job.calls and old is not None:
            try_on(job.calls, old, new, say)

    def _tried(self, name: str, texts: Mapping[str, str]) -> LoadedPolicy | None:
        """One that was in force: what it needed may be gone, and then nothing is compared with it."""
        return self._read(name, texts)[0]

    def _read(self, name: str, texts: Mapping[str, str]) -> tuple[LoadedPolicy | None, list[str]]:
        folder = self._folder / name
        paths = [folder / path for path in texts]
        for path, text in zip(paths, texts.values(), strict=True):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8", newline="")
        registry = Registry()

        def settings_of(kind: str) -> type[Config]:
            return registry.kind(kind).config

        try:
            return load_policy(paths[0], self._environ, settings_of), []
        except ConfigurationError as error:
            return None, [line.replace(f"{folder}/", "") for line in error.message.splitlines()]


def _text(policy: dict[str, Any]) -> str:
    # The one in C is ten times as fast, where PyYAML has it.
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    text: str = yaml.dump(policy, Dumper=dumper, sort_keys=False, allow_unicode=True, width=120)
    return text


def _diff(old: str, new: str) -> list[str]:
    """Lines that begin with `+`, `-`, a space, or `@`."""
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), n=3, lineterm="")
    return list(islice(lines, 2, _MOST_LINES))
