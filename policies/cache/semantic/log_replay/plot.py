"""The curve of hits against wrong ones as an SVG picture, drawn by hand: no library, no script, nothing fetched."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from html import escape

from policies.cache.semantic.log_replay.figures import AllowedErrors, LogReport

_WIDTH, _HEIGHT = 760, 480
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 24, 64, 108
_STEPS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2)
_MAX_TICKS = 6
_LABELLED = 5
"""Every so many thresholds one is named."""
_NAME_WIDTH, _NAME_HEIGHT = 32, 14
"""What such a name takes, with some room around it."""

_Place = Callable[[float, float], tuple[float, float]]
"""From wrong and hits, as shares, to where that is in the picture."""


def as_svg(made: LogReport) -> str:
    """Hits over wrong ones: a line for thresholds, one more that counts what nothing could tell as wrong, our point."""
    verified = made.verified
    rates = [point.rates for point in made.curve]
    wrong_end = _end(max([made.bound.share, verified.wrong + verified.unknown, *(r.wrong for r in rates)]) * 1.05)
    hits_end = _end(max([verified.hits, *(one.hits for one in rates)]) * 1.05)

    def place(wrong: float, hits: float) -> tuple[float, float]:
        return (
            _LEFT + (_WIDTH - _LEFT - _RIGHT) * wrong / wrong_end,
            _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * hits / hits_end,
        )

    least = [(one.wrong, one.hits) for one in rates]
    most = [(one.wrong + one.unknown, one.hits) for one in rates]
    x, y = place(verified.wrong, verified.hits)
    parts = [
        *_frame(place, wrong_end, hits_end),
        _line(_of_bound(made.bound, wrong_end, hits_end), place, 'stroke="#b3261e" stroke-dasharray="6 4"'),
        _line(_until(wrong_end, most[::-1]), place, 'stroke="#8a8f98" stroke-width="1.5" stroke-dasharray="2 3"'),
        _line(least, place, 'stroke="#1f5fbf" stroke-width="2"'),
        *_names(made, place),
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="6" fill="#1b7f3b" stroke="#fff" stroke-width="1.5"/>',
        *_legend(made),
    ]
    title = f"{made.exchanges:,} exchanges, {verified.lookups:,} look-ups, route {made.route}"
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" '
        f'height="{_HEIGHT}" font-family="sans-serif" font-size="12" fill="#222">'
        f'<title>{escape(title)}</title><rect width="100%" height="100%" fill="#fff"/>'
    )
    return "\n".join([head, _text(_LEFT, 28, title, 'font-size="16"'), *parts, "</svg>\n"])


def _frame(place: _Place, wrong_end: float, hits_end: float) -> Iterable[str]:
    """Grid, numbers, names of the axes."""
    left, bottom = place(0.0, 0.0)
    right, top = place(wrong_end, hits_end)
    for share in _ticks(wrong_end):
        x, _ = place(share, 0.0)
        yield f'<path d="M{x:.1f} {top:.1f}V{bottom:.1f}" stroke="#e4e6ea"/>'
        yield _text(x, bottom + 18, f"{100 * share:g} %", 'text-anchor="middle"')
    for share in _ticks(hits_end):
        _, y = place(0.0, share)
        yield f'<path d="M{left:.1f} {y:.1f}H{right:.1f}" stroke="#e4e6ea"/>'
        yield _text(left - 8, y + 4, f"{100 * share:g} %", 'text-anchor="end"')
    yield f'<path d="M{left:.1f} {top:.1f}V{bottom:.1f}H{right:.1f}" fill="none" stroke="#222"/>'
    yield _text((left + right) / 2, bottom + 38, "wrong answers served, of look-ups", 'text-anchor="middle"')
    yield _text(left, top - 12, "answers served, of look-ups", "")


def _of_bound(bound: AllowedErrors, wrong_end: float, hits_end: float) -> Sequence[tuple[float, float]]:
    """Where the bound is just kept: upright for a share of look-ups, through 0 for one of served answers."""
    if not bound.is_of_served:
        return [(bound.share, 0.0), (bound.share, hits_end)]
    hits = min(hits_end, wrong_end / bound.share)
    return [(0.0, 0.0), (bound.share * hits, hits)]


def _until(end: float, points: Sequence[tuple[float, float]]) -> Sequence[tuple[float, float]]:
    """The line as far as it stays left of the picture's edge; wrong answers only become more along it."""
    inside = [point for point in points if point[0] <= end]
    if inside and len(inside) < len(points):
        (wrong, hits), (wrong_next, hits_next) = inside[-1], points[len(inside)]
        inside.append((end, hits + (hits_next - hits) * (end - wrong) / (wrong_next - wrong)))
    return inside


def _names(made: LogReport, place: _Place) -> Iterable[str]:
    """Thresholds at their points, but not one on top of the other."""
    last = (-math.inf, -math.inf)
    # The white around the letters keeps lines that cross them from making them unreadable.
    style = 'fill="#1f5fbf" stroke="#fff" stroke-width="4" paint-order="stroke"'
    for number, point in enumerate(made.curve):
        if number % _LABELLED == 0:
            x, y = place(point.rates.wrong, point.rates.hits)
            yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="#1f5fbf"/>'
            at = (x + 7, min(y + 14, _HEIGHT - _BOTTOM - 6))
            if abs(at[0] - last[0]) >= _NAME_WIDTH or abs(at[1] - last[1]) >= _NAME_HEIGHT:
                yield _text(*at, f"{point.threshold:.2f}", style)
                last = at


def _legend(made: LogReport) -> Iterable[str]:
    entries = (
        ('stroke="#1f5fbf" stroke-width="2"', "static thresholds (cosine)"),
        (
            'stroke="#8a8f98" stroke-width="1.5" stroke-dasharray="2 3"',
            "the same, all that could not be compared wrong",
        ),
        ('stroke="#b3261e" stroke-dasharray="6 4"', made.bound.text),
    )
    y = _HEIGHT - 46
    places = ((_LEFT, y), (_LEFT + 220, y), (_LEFT, y + 22))
    for (x, row), (style, name) in zip(places, entries, strict=True):
        yield f'<path d="M{x} {row}h28" {style}/>'
        yield _text(x + 36, row + 4, name, "")
    x, row = _LEFT + 220, y + 22
    yield f'<circle cx="{x + 14}" cy="{row}" r="6" fill="#1b7f3b"/>'
    yield _text(x + 36, row + 4, "mode: verified, the whole log with its time of learning", "")


def _line(points: Sequence[tuple[float, float]], place: _Place, style: str) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in points))
    return f'<polyline points="{path}" fill="none" {style}/>'


def _text(x: float, y: float, text: str, style: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(text)}</text>'


def _step(end: float) -> float:
    return next((step for step in _STEPS if end / step <= _MAX_TICKS), _STEPS[-1])


def _end(largest: float) -> float:
    """The end of an axis: a whole number of steps, and not nothing."""
    largest = min(1.0, max(largest, 0.002))
    step = _step(largest)
    return math.ceil(largest / step - 1e-9) * step


def _ticks(end: float) -> list[float]:
    step = _step(end)
    return [number * step for number in range(round(end / step) + 1)]
