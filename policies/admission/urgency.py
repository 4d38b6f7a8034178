"""The headers by which a caller states its own urgency: `x-slo-ttft-ms`, `x-slo-tpot-ms`, `x-priority`."""

from __future__ import annotations

from collections.abc import Iterable

from backends.errors import InvalidRequest
from backends.protocol import Priority, Slo

_TTFT, _TPOT, _PRIORITY = b"x-slo-ttft-ms", b"x-slo-tpot-ms", b"x-priority"
URGENCY_HEADERS = frozenset({_TTFT, _TPOT, _PRIORITY})
"""These are meant for this gateway, so a route with limits does not pass them on to its backends."""
_MAX_MS = 3_600_000.0
_PRIORITIES = {each.name.lower(): each for each in Priority}


def read_urgency(slo: Slo, priority: Priority, headers: Iterable[tuple[bytes, bytes]]) -> tuple[Slo, Priority]:
    """The route's limits and the key's priority, changed by the caller's headers, which can only lower the priority.

    Raises: InvalidRequest.
    """
    for name, value in headers:
        if name not in URGENCY_HEADERS:
            continue
        text = value.decode("latin-1").strip()
        if name == _PRIORITY:
            if text.lower() not in _PRIORITIES:
                raise InvalidRequest(f'x-priority: "{text}" is not one of {", ".join(_PRIORITIES)}', param="x-priority")
            priority = max(priority, _PRIORITIES[text.lower()])
        elif name == _TTFT:
            slo = Slo(_seconds(name, text), 0.0, slo.token_gap_s, slo.total_s)
        else:
            slo = Slo(slo.first_token_s, slo.per_1k_prompt_s, _seconds(name, text), slo.total_s)
    return slo, priority


def _seconds(name: bytes, text: str) -> float:
    field = name.decode()
    try:
        milliseconds = float(text)
    except ValueError:
        milliseconds = -1.0
    if not 0 < milliseconds <= _MAX_MS:
        raise InvalidRequest(f'{field}: "{text}" is not a number of milliseconds up to {_MAX_MS:.0f}', param=field)
    return milliseconds / 1e3
