"""Traces made from others: one that is long enough to be steady, one with a client that sends half of everything."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from gateway.simulate.traces import Trace

HOG = "hog"


def repeated(trace: Trace, times: int) -> Trace:
    """The trace, end to end so many times. Blocks keep their ids, so later passes find what earlier ones cached."""
    requests = trace.requests
    # From the last arrival to the first of the next pass as long as between two others.
    period_s = trace.span_s * len(requests) / max(1, len(requests) - 1)
    moved = [
        msgspec.structs.replace(request, at_s=request.at_s + number * period_s)
        for number in range(times)
        for request in requests
    ]
    return replace(trace, name=f"{trace.name} x {times}", requests=tuple(moved))


def with_hog(trace: Trace) -> Trace:
    """One client more, who sends a copy of every request at the moment of the original: half of all that comes."""
    copies = [(request, msgspec.structs.replace(request, client=HOG)) for request in trace.requests]
    return replace(trace, name=f"{trace.name} with a hog", requests=tuple(each for pair in copies for each in pair))
