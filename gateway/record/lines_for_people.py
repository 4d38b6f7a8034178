"""A request's log line as people read it on a terminal; `access_log.py` writes them where nobody parses them.

Names that clients choose may hold anything, a terminal's control sequences too: what cannot be printed is shown as an
escape.
"""

from __future__ import annotations

import time

from gateway.record.access_log import LogLine

_RESET = "\x1b[0m"
_DIM = "\x1b[2m"
_GREEN, _YELLOW, _RED = "\x1b[32m", "\x1b[33m", "\x1b[31m"
_MAX_NAME_CHARS = 60


class LinesForPeople:
    """Encodes log lines, one a request: when, what came of it, who answered, how fast, and what it took."""

    def __init__(self, *, color: bool) -> None:
        self._color = color

    def encode(self, line: LogLine) -> bytes:
        """The line, without its end."""
        parts = [self._painted(_DIM, time.strftime("%H:%M:%S", time.localtime(line.time))), self._status(line)]
        parts.append(f"{line.operation.value} {_printable(line.model)}".rstrip())
        parts.append(f"-> {_who_answered(line)}")
        parts.append(_how_fast(line))
        if line.usage is not None:
            parts.append(f"{line.usage.prompt_tokens} + {line.usage.completion_tokens} tokens")
        parts += _remarks(line)
        parts.append(self._painted(_DIM, _printable(line.request_id)))
        return "  ".join(parts).encode("utf-8", "backslashreplace")

    def _status(self, line: LogLine) -> str:
        ended_well = line.error is None and line.stream_end in (None, "clean")
        color = _RED if line.status >= 500 else _GREEN if line.status < 400 and ended_well else _YELLOW
        return self._painted(color, str(line.status))

    def _painted(self, color: str, text: str) -> str:
        return f"{color}{text}{_RESET}" if self._color else text


def _who_answered(line: LogLine) -> str:
    if line.cache in ("hit", "semantic", "joined"):
        return f"cache ({line.cache.value})"
    return _printable(line.backend) if line.backend is not None else "nobody"


def _how_fast(line: LogLine) -> str:
    if line.first_token_ms is None:
        return _duration(line.total_ms)
    return f"{_duration(line.total_ms)} (first {_duration(line.first_token_ms)})"


def _remarks(line: LogLine) -> list[str]:
    """What is not as usual."""
    remarks = []
    if line.attempts > 1:
        remarks.append(f"{line.attempts} attempts")
    if line.fallback is not None:
        remarks.append(f"by route {_printable(line.fallback)}")
    if line.waited_ms is not None:
        remarks.append(f"waited {_duration(line.waited_ms)}")
    if line.slo not in (None, "met"):
        remarks.append(f"late: {line.slo}" if line.slo in ("ttft", "tpot", "total") else str(line.slo))
    if line.stream_end not in (None, "clean"):
        remarks.append(f"stream ended: {line.stream_end.value}")
    if line.error is not None:
        remarks.append(line.error)
    return remarks


def _duration(milliseconds: float) -> str:
    return f"{milliseconds:.0f} ms" if milliseconds < 1000 else f"{milliseconds / 1000:.2f} s"


def _printable(text: str) -> str:
    cut = text if len(text) <= _MAX_NAME_CHARS else text[: _MAX_NAME_CHARS - 1] + "…"
    return cut if cut.isprintable() else "".join(each if each.isprintable() else ascii(each)[1:-1] for each in cut)
