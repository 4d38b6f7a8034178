"""Prometheus' text format of a registry, one series after the other, so that whoever writes it can stop in between.

prometheus_client makes all samples of a metric before the first line is written, and takes five times as long. What is
read here is its own inside; a test compares every byte with what it writes itself.
"""

# ruff: noqa: SLF001  # the library has no public way to one series

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.utils import floatToGoString


def exposition(registry: CollectorRegistry) -> Iterator[str]:
    """The lines of each metric's head, and of each of its series: a few at a time, every line whole."""
    for metric in list(registry._collector_to_names):
        assert isinstance(metric, MetricWrapperBase), "the gateway registers nothing else"
        name = metric._name
        shown = f"{name}_total" if metric._type == "counter" else name
        documentation = metric._documentation.replace("\\", r"\\").replace("\n", r"\n")
        yield f"# HELP {shown} {documentation}\n# TYPE {shown} {metric._type}\n"
        if not metric._labelnames:
            yield _lines(name, (), (), metric)
            continue
        order = sorted((label, index) for index, label in enumerate(metric._labelnames))
        for values, series in list(metric._metrics.items()):
            pairs = [(label, f'{label}="{_escaped(values[index])}"') for label, index in order]
            before = [pair for label, pair in pairs if label < "le"]
            yield _lines(name, before, [pair for label, pair in pairs if label > "le"], series)


def _lines(name: str, before: Sequence[str], after: Sequence[str], series: MetricWrapperBase) -> str:
    """Of one series; `before` and `after` are its labels, of which a histogram's `le` stands in the middle."""
    plain = ",".join((*before, *after))
    plain = f"{{{plain}}}" if plain else ""
    begin = "{" + "".join(f"{pair}," for pair in before) + 'le="'
    end = '"' + "".join(f",{pair}" for pair in after) + "}"
    return "".join(
        f"{name}{suffix}{begin + more['le'] + end if more else plain} {_number(value)}\n"
        for suffix, more, value, *_ in series._child_samples()
    )


def _number(value: float) -> str:
    written: str = floatToGoString(value)
    return written


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
