"""The access log loses lines to a slow reader only, and never a request."""

from __future__ import annotations

import io
import json
import os
import time

import pytest
from prometheus_client import CollectorRegistry, Counter

from backends.charges.usage import Usage
from backends.operations import Operation
from gateway.record.access_log import AccessLog, LogLine


def _line(request_id: str) -> LogLine:
    return LogLine(1.5, request_id, "all", Operation.CHAT, 200, 2.25, usage=Usage(prompt_tokens=1, completion_tokens=2))


def _counter() -> Counter:
    return Counter("dropped", "Lines.", registry=CollectorRegistry())


def _ids(output: io.BytesIO) -> list[str]:
    return [json.loads(line)["request_id"] for line in output.getvalue().splitlines()]


async def test_lines_are_written_in_order_as_json() -> None:
    """One line each; fields that say nothing are left out."""
    output = io.BytesIO()
    log = AccessLog(output, _counter())
    for number in range(3):
        log.add(_line(f"r-{number}"))
    log.flush()
    log.add(_line("r-3"))
    log.close()

    assert _ids(output) == ["r-0", "r-1", "r-2", "r-3"]
    assert json.loads(output.getvalue().splitlines()[0]) == {
        "time": 1.5,
        "request_id": "r-0",
        "route": "all",
        "operation": "chat",
        "status": 200,
        "total_ms": 2.25,
        "usage": {"prompt_tokens": 1, "completion_tokens": 2, "cached_tokens": 0},
    }


async def test_end_right_after_a_flush_loses_no_line_and_writes_none_twice() -> None:
    """The gateway may stop at the very moment at which a batch is handed to its thread."""
    for _ in range(50):
        output = io.BytesIO()
        log = AccessLog(output, _counter())
        log.add(_line("r-0"))
        log.flush()
        log.add(_line("r-1"))
        log.close()

        assert _ids(output) == ["r-0", "r-1"]


def test_output_that_is_full_costs_lines_which_are_counted() -> None:
    """A full disk takes nothing, and the count says so."""
    counter = _counter()
    with open("/dev/full", "wb", buffering=0) as output:
        log = AccessLog(output, counter)
        log.add(_line("r-0"))
        log.flush()
        log.add(_line("r-1"))
        log.close()

    assert counter._value.get() == 2


@pytest.mark.timed
def test_reader_that_has_stopped_does_not_hold_the_end_up() -> None:
    """A pipe that nobody empties keeps the thread that writes, and nobody else for long."""
    reader, writer = os.pipe()
    with os.fdopen(writer, "wb", buffering=0) as output:
        log = AccessLog(output, _counter())
        for number in range(10_000):
            log.add(_line(str(number)))
        log.flush()
        began = time.monotonic()
        log.close()
        took_s = time.monotonic() - began
        os.close(reader)

    assert took_s < 6


async def test_reader_that_is_too_slow_costs_lines_and_is_counted() -> None:
    """The queue is bounded."""
    counter = _counter()
    log = AccessLog(io.BytesIO(), counter)
    for number in range(10_100):
        log.add(_line(str(number)))

    assert counter._value.get() == 100


async def test_output_that_is_gone_raises_nothing() -> None:
    """A closed pipe or file is no reason to fail."""
    reader, writer = os.pipe()
    os.close(reader)
    pipe = os.fdopen(writer, "wb", buffering=0)
    closed = io.BytesIO()
    closed.close()
    for output in (pipe, closed):
        log = AccessLog(output, _counter())
        log.add(_line("r-0"))
        log.flush()
        log.add(_line("r-1"))
        log.close()
    pipe.close()


@pytest.mark.parametrize("text", ["\n", '"', "\u2028", "\x00", "é😀", "\\"])
async def test_line_stays_one_line_whatever_is_in_it(text: str) -> None:
    """A model name cannot forge a line."""
    output = io.BytesIO()
    log = AccessLog(output, _counter())
    log.add(LogLine(1.0, "r", "all", Operation.CHAT, 404, 1.0, model=f'a{text}b","status":200'))
    log.close()

    lines = output.getvalue().split(b"\n")
    assert (len(lines), lines[1]) == (2, b"")
    assert json.loads(lines[0])["status"] == 404
