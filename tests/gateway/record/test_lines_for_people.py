"""The log on a terminal: lines for people, which no client can write into; JSON for everybody else."""

from __future__ import annotations

import asyncio
import os
import pty
import re
import time

import httpx
import pytest

from backends.charges.usage import Usage
from backends.operations import Operation
from backends.protocol import CacheOutcome
from backends.stream import StreamEnd
from gateway.record.access_log import LogLine
from gateway.record.lines_for_people import LinesForPeople
from tests.support.gateway import start_gateway

POLICY = """
version: 1
backends: {words: {type: scripted}}
routes: [{name: all, match: {models: ["*"]}, backends: [{ref: words}]}]
"""


def line(**fields: object) -> LogLine:
    """One of a call that went well, but for these fields."""
    made = LogLine(1.5, "req_1", "all", Operation.CHAT, 200, 812.4, "gpt", backend="cloud", attempts=1)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def said(made: LogLine, *, color: bool = False) -> str:
    """What it looks like, without the time of day."""
    return re.sub(r"^\d\d:\d\d:\d\d  ", "", LinesForPeople(color=color).encode(made).decode())


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (line(), "200  chat gpt  -> cloud  812 ms  req_1"),
        (
            line(usage=Usage(prompt_tokens=19, completion_tokens=42), first_token_ms=204.1, total_ms=2345.0),
            "200  chat gpt  -> cloud  2.35 s (first 204 ms)  19 + 42 tokens  req_1",
        ),
        (line(cache=CacheOutcome.HIT, attempts=0, total_ms=0.4), "200  chat gpt  -> cache (hit)  0 ms  req_1"),
        (line(cache=CacheOutcome.MISS), "200  chat gpt  -> cloud  812 ms  req_1"),
        (
            line(status=502, error="upstream_unreachable", attempts=3, slo="failed"),
            "502  chat gpt  -> cloud  812 ms  3 attempts  failed  upstream_unreachable  req_1",
        ),
        (
            line(stream_end=StreamEnd.UPSTREAM_CUT, fallback="plan-b", waited_ms=1500.0, slo="ttft"),
            "200  chat gpt  -> cloud  812 ms  by route plan-b  waited 1.50 s  late: ttft  stream ended: upstream_cut"
            "  req_1",
        ),
        (line(status=401, model="", backend=None, operation=Operation.CHAT), "401  chat  -> nobody  812 ms  req_1"),
    ],
)
def test_line_says_what_came_of_a_request(made: LogLine, expected: str) -> None:
    """What is as usual is not said."""
    assert said(made) == expected


@pytest.mark.parametrize("name", ["\x1b[2Jgone", "a\nb", "\x9b31m", "‮txt", "\ud800", "x" * 5000])
def test_names_of_clients_cannot_command_the_terminal(name: str) -> None:
    """Escapes, line ends, marks of direction and lone surrogates are shown, and what is long is cut."""
    shown = said(line(model=name, request_id=name, backend=name))

    assert shown.isprintable()
    assert len(shown) < 600


def test_colors_stand_for_how_it_ended() -> None:
    """Green for what went well, yellow for the caller's mistakes and broken streams, red for failures."""
    colors = {
        status: re.findall(r"\x1b\[(3\dm)", said(made, color=True))
        for status, made in {
            "well": line(),
            "broken": line(stream_end=StreamEnd.STALL),
            "refused": line(status=404),
            "failed": line(status=502),
        }.items()
    }

    assert colors == {"well": ["32m"], "broken": ["33m"], "refused": ["33m"], "failed": ["31m"]}


async def _on_a_terminal(environ: dict[str, str]) -> str:
    """What a gateway writes to a terminal about one call."""
    terminal, its_end = pty.openpty()
    os.set_blocking(terminal, False)
    try:
        with os.fdopen(its_end, "wb", buffering=0) as stdout:
            async with start_gateway(POLICY, environ=environ, stdout=stdout) as gateway:
                async with httpx.AsyncClient(verify=False, base_url=gateway.url) as client:
                    body = {"model": "red", "messages": [{"role": "user", "content": "hello"}]}
                    answer = await client.post("/v1/chat/completions", json=body)
                assert answer.status_code == 200, answer.text
                give_up_at = time.monotonic() + 10
                written = b""
                while not written.endswith(b"\n") and time.monotonic() < give_up_at:
                    try:
                        written += os.read(terminal, 4096)
                    except BlockingIOError:
                        await asyncio.sleep(0.02)
        return written.decode()
    finally:
        os.close(terminal)


async def test_terminal_gets_lines_for_people_in_color() -> None:
    """Without being asked."""
    written = await _on_a_terminal({})

    assert re.search(r"\x1b\[32m200\x1b\[0m  chat red  -> words", written), written


async def test_color_can_be_left_out_and_json_asked_for() -> None:
    """NO_COLOR as everywhere; `json` for a collector that looks like a terminal."""
    plain = await _on_a_terminal({"NO_COLOR": "1"})
    json_line = await _on_a_terminal({"SLIPSTREAM_ACCESS_LOG": "json"})

    assert "200  chat" in plain
    assert "\x1b" not in plain
    assert json_line.startswith("{")
