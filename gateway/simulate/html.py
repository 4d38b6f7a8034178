"""A simulation as one page that needs nothing else: the figures, and plots drawn as SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from gateway.simulate.replayed import compared_rows
from gateway.simulate.report import figure_rows, is_in_time
from gateway.simulate.run import RequestFate
from gateway.simulate.slo import slo_text
from gateway.simulate.study import StudyResult

_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
"""Told apart by the colour-blind too (Okabe and Ito)."""

_MAX_LINES = len(_COLOURS)
_WIDTH, _HEIGHT = 720, 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 20, 28, 44
_POINTS = 200
_BUCKETS = 60

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; background: #fff; max-width: 60rem; margin: 2rem auto;
  padding: 0 1rem; }
table { border-collapse: collapse; }
td { padding: .2rem 1rem .2rem 0; text-align: right; border-bottom: 1px solid #ddd; white-space: nowrap; }
td:first-child { text-align: left; }
svg { width: 100%; min-width: 36rem; height: auto; } svg text { font: 12px system-ui, sans-serif; fill: #444; }
.scroll { overflow-x: auto; } .keys { display: flex; flex-wrap: wrap; gap: 0 1rem; }
.key { display: inline-block; width: .8rem; height: .8rem; margin-right: .4rem; }
"""


@dataclass(frozen=True, slots=True)
class PlotLine:
    """One line of a plot: points from left to right."""

    name: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Axis:
    """What one direction of a plot means."""

    title: str
    low: float
    high: float
    ticks: Sequence[tuple[float, str]]
    is_log: bool = False

    def share(self, value: float) -> float:
        """How far along the axis a value is, 0..1."""
        low, high, value = (math.log10(each) if self.is_log else each for each in (self.low, self.high, value))
        return min(1.0, max(0.0, (value - low) / (high - low)))


def html_page(results: Sequence[StudyResult]) -> str:
    """The whole page."""
    first = results[0].report
    # The same sizes of every policy, where there is not room for all.
    shown = sorted(zip(results, _names(results), strict=True), key=lambda each: each[0].report.replicas)[:_MAX_LINES]
    limits = slo_text(results[0].slo).replace(",", ", ")
    parts = [f"<p>{escape(first.trace)}: {first.requests:,} requests, seed {first.seed}. SLO: {limits}</p>"]
    curves = _curves(results)
    if curves:
        sizes = [result.report.replicas for result in results]
        parts.append(_plot("Share in SLO by fleet", _linear("replicas", sizes), _shares("in SLO"), curves))
    waits = [wait_s for result, _ in shown for wait_s in _first_tokens_s(result)]
    if waits:
        lines = [PlotLine(name, _distribution(result)) for result, name in shown]
        parts.append(_plot("Time to the first token", _logarithmic("seconds", waits), _shares("of answers"), lines))
    span_s = max(first.span_s, 1e-3)
    lines = [PlotLine(name, _over_time(result)) for result, name in shown]
    parts.append(_plot("Share in SLO over time", _linear("seconds", [0.0, span_s]), _shares("in SLO"), lines))
    if len(results) > len(shown):
        parts.append(f"<p>The last two plots show {len(shown)} simulations of {len(results)}: the smallest fleets.</p>")
    compared = [result.compared for result in results if result.compared]
    parts += [_table(compared_rows(each), "Replayed beside logged") for each in compared]
    parts.append(_table(figure_rows([result.report for result in results])))
    body = "\n".join(parts)
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>slipstream simulate</title>\n'
        f'<meta name="viewport" content="width=device-width">\n<style>{_STYLE}</style>\n</head>\n<body>\n'
        f"<h1>slipstream simulate</h1>\n{body}\n</body>\n</html>\n"
    )


def _names(results: Sequence[StudyResult]) -> list[str]:
    """What sets each simulation apart from the others, and no more than that."""
    names = [[""] for _ in results]
    for field in ("policy", "fleet", "balance"):
        longer = [[*name, getattr(result.report, field)] for name, result in zip(names, results, strict=True)]
        if len(set(map(tuple, longer))) > len(set(map(tuple, names))):
            names = longer
    return [", ".join(name[1:]) or result.report.balance for name, result in zip(names, results, strict=True)]


def _curves(results: Sequence[StudyResult]) -> list[PlotLine]:
    """A line for each policy that was tried on fleets of several sizes."""
    by_policy: dict[str, list[tuple[float, float]]] = {}
    for result in results:
        by_policy.setdefault(result.report.policy, []).append((result.report.replicas, result.report.slo_share))
    return [
        PlotLine(policy, sorted(points))
        for policy, points in by_policy.items()
        if len({size for size, _ in points}) > 1
    ][:_MAX_LINES]


def _first_tokens_s(result: StudyResult) -> list[float]:
    return [outcome.first_token_s for outcome in result.outcomes if outcome.fate is RequestFate.ANSWERED]


def _distribution(result: StudyResult) -> list[tuple[float, float]]:
    """Which share of the answers had begun by which time."""
    ordered = sorted(_first_tokens_s(result))
    places = sorted({round(step * (len(ordered) - 1) / _POINTS) for step in range(_POINTS + 1)}) if ordered else []
    return [(ordered[place], (place + 1) / len(ordered)) for place in places]


def _over_time(result: StudyResult) -> list[tuple[float, float]]:
    """The share in SLO of those that came in each part of the time."""
    width_s = max(result.report.span_s, 1e-3) / _BUCKETS
    buckets: list[list[bool]] = [[] for _ in range(_BUCKETS)]
    for outcome in result.outcomes:
        place = min(_BUCKETS - 1, int(outcome.arrived_at / width_s))
        buckets[place].append(is_in_time(outcome))
    return [((place + 0.5) * width_s, sum(hits) / len(hits)) for place, hits in enumerate(buckets) if hits]


def _shares(title: str) -> Axis:
    return Axis(title, 0.0, 1.0, [(tenth / 10, f"{tenth * 10}%") for tenth in range(0, 11, 2)])


def _linear(title: str, values: Sequence[float]) -> Axis:
    low, high = min(values), max(values)
    high = high if high > low else low + 1
    step = 10 ** math.floor(math.log10(high - low))
    step *= next(factor for factor in (0.2, 0.5, 1, 2) if (high - low) / (factor * step) <= 8)
    if all(isinstance(value, int) for value in values):
        step = max(1, round(step))
    first = math.ceil(low / step)
    ticks = [(number * step, f"{number * step:g}") for number in range(first, math.floor(high / step + 1e-9) + 1)]
    return Axis(title, low, high, ticks)


def _logarithmic(title: str, values: Sequence[float]) -> Axis:
    low = math.floor(math.log10(max(1e-3, min(values))))
    high = max(low + 1, math.ceil(math.log10(max(1e-3, *values))))
    ticks = [(10.0**power, f"{10.0**power:g}") for power in range(low, high + 1)]
    return Axis(title, 10.0**low, 10.0**high, ticks, is_log=True)


def _plot(title: str, across: Axis, up: Axis, lines: Sequence[PlotLine]) -> str:
    """A figure with axes, a line for each series, and a key where there are several."""

    def x(value: float) -> float:
        return _LEFT + across.share(value) * (_WIDTH - _LEFT - _RIGHT)

    def y(value: float) -> float:
        return _HEIGHT - _BOTTOM - up.share(value) * (_HEIGHT - _TOP - _BOTTOM)

    bottom = _HEIGHT - _BOTTOM
    marks = [f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title)}">']
    for value, label in up.ticks:
        marks.append(f'<path d="M{_LEFT} {y(value):.1f}H{_WIDTH - _RIGHT}" stroke="#ddd"/>')
        marks.append(f'<text x="{_LEFT - 8}" y="{y(value) + 4:.1f}" text-anchor="end">{escape(label)}</text>')
    for value, label in across.ticks:
        marks.append(f'<path d="M{x(value):.1f} {bottom}v5" stroke="#888"/>')
        marks.append(f'<text x="{x(value):.1f}" y="{bottom + 18}" text-anchor="middle">{escape(label)}</text>')
    marks.append(f'<text x="{_LEFT}" y="{_TOP - 12}">{escape(up.title)}</text>')
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    marks.append(f'<text x="{middle}" y="{_HEIGHT - 8}" text-anchor="middle">{escape(across.title)}</text>')
    for line, colour in zip(lines, _COLOURS, strict=False):
        path = " ".join(f"{x(at):.1f},{y(value):.1f}" for at, value in line.points)
        marks.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
    marks.append("</svg>")
    key = "".join(
        f'<span><span class="key" style="background:{colour}"></span>{escape(line.name)}</span>'
        for line, colour in zip(lines, _COLOURS, strict=False)
    )
    return f'<h2>{escape(title)}</h2>\n<div class="keys">{key}</div>\n<div class="scroll">{"".join(marks)}</div>'


def _table(rows: Sequence[Sequence[str]], title: str = "Figures") -> str:
    lines = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>\n" for row in rows)
    return f'<h2>{escape(title)}</h2>\n<div class="scroll"><table>\n{lines}</table></div>'
