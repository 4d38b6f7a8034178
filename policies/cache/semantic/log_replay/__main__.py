"""`python -m policies.cache.semantic.log_replay`: a log through the cache of a route; prints and writes figures.

The route is read from standard input, as JSON: its name, the size of the store, and its section `cache`.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from backends.clock import SystemClock
from backends.errors import ConfigurationError
from policies.cache.semantic.encoder.batched import BatchingEncoder
from policies.cache.semantic.encoder.child import Load
from policies.cache.semantic.encoder.process import ProcessModel
from policies.cache.semantic.log_replay.exchanges import BadLogLine, LoggedExchange, read_log
from policies.cache.semantic.log_replay.figures import as_json, as_text, report
from policies.cache.semantic.log_replay.plot import as_svg
from policies.cache.semantic.log_replay.replay import LogReplay, LogReplayResult
from policies.cache.semantic.settings import EncoderPolicy
from policies.cache.settings import CachePolicy
from policies.schema import StoresPolicy

_TOLD_EVERY = 1000
"""Exchanges between two lines where standard error is no terminal."""


class _Asked(msgspec.Struct):
    route: str
    max_size: str
    cache: dict[str, object]


def main(arguments: list[str]) -> int:
    """Replays. 0 where there are figures, 1 where the log or the policy cannot be used."""
    asked = _parser().parse_args(arguments)
    given = msgspec.json.decode(sys.stdin.buffer.read(), type=_Asked)
    policy = CachePolicy.model_validate(given.cache)
    max_bytes = StoresPolicy.model_validate({"semantic": {"max_size": given.max_size}}).semantic.max_size
    semantic = policy.semantic
    assert semantic is not None, "whoever calls this has looked"
    try:
        total, skipped = _check(asked.log, skip_bad=asked.skip_bad)
        encoder = BatchingEncoder(_model(semantic.encoder), SystemClock(), max_waiting=semantic.encoder.max_waiting)
        replay = LogReplay(policy, encoder, route=given.route, max_bytes=max_bytes)
        replayed = asyncio.run(_run(replay, asked.log, total))
    except (BadLogLine, ConfigurationError, OSError) as error:
        sys.stderr.write(f"Error: {error}\n")
        return 1
    except KeyboardInterrupt:
        return 130
    made = report(replayed, given.route, policy, skipped=skipped)
    sys.stdout.write(as_text(made) + "\n")
    if asked.json is not None:
        asked.json.write_text(as_json(made) + "\n", encoding="utf-8")
    if asked.plot is not None:
        asked.plot.write_text(as_svg(made), encoding="utf-8")
    return 0


def _check(log: Path, *, skip_bad: bool) -> tuple[int, int]:
    """How many exchanges there are, and how many lines are none: told before an hour is spent. Raises: BadLogLine."""
    num_good = num_bad = 0
    for read in read_log(log):
        if isinstance(read, LoggedExchange):
            num_good += 1
        elif skip_bad:
            num_bad += 1
        else:
            raise BadLogLine(f"{log}, {read}; --skip-bad leaves such lines out")
    if not num_good:
        raise BadLogLine(f"{log} holds no exchange")
    return num_good, num_bad


async def _run(replay: LogReplay, log: Path, total: int) -> LogReplayResult:
    return await replay.run(_good(log), lambda done: _note(done, total))


def _good(log: Path) -> Iterator[LoggedExchange]:
    return (read for read in read_log(log) if isinstance(read, LoggedExchange))


def _note(done: int, total: int) -> None:
    """A bar on a terminal, else a line now and then."""
    if sys.stderr.isatty():
        end = "\r\x1b[K" if done == total else ""
        sys.stderr.write(f"\rreplaying [{'#' * (30 * done // total):<30}] {done:,}/{total:,}\x1b[K{end}")
        sys.stderr.flush()
    elif done % _TOLD_EVERY == 0:
        sys.stderr.write(f"replayed {done:,} of {total:,}\n")


def _model(policy: EncoderPolicy) -> ProcessModel:
    """Raises: ConfigurationError for an encoder that would have to be asked over the network."""
    if policy.type == "openai":
        raise ConfigurationError(
            "the route's encoder asks a backend for vectors, and a replay sends nothing: name a local encoder "
            "(minilm, onnx, sentence_transformers) in a copy of the policy"
        )
    load = Load(model=policy.model, kind="onnx" if policy.type == "onnx" else "torch", threads=policy.threads)
    return ProcessModel(load, SystemClock())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m policies.cache.semantic.log_replay", description=__doc__)
    parser.add_argument("log", type=Path, help="JSON lines of request and response, plain or gzipped")
    parser.add_argument("--skip-bad", action="store_true", help="count lines that are no exchange, and go on")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there as well")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="write the curve there, as SVG")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
