"""What is asked of the kernels on an H200, as data, and whether a run has it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from kernels.benchmark.figures import Measurement


class BarKind(Enum):
    """What is compared. Each is a factor, but for `MICROSECONDS`."""

    COPY = "of copy bandwidth"
    SPEED = "as fast as"
    TIME = "the time of"
    BYTE_TIME = "the time a byte of"
    MICROSECONDS = "us"


_AT_LEAST = (BarKind.COPY, BarKind.SPEED)


@dataclass(frozen=True, slots=True)
class Bar:
    """One thing asked of one case; `other`: a peer, or another case of the same operation."""

    op: str
    case: str
    kind: BarKind
    limit: float
    other: str = ""

    @property
    def text(self) -> str:
        """As in ">= 0.8 x of copy bandwidth"."""
        sign = ">=" if self.kind in _AT_LEAST else "<="
        unit = "us" if self.kind is BarKind.MICROSECONDS else f"x {self.kind.value}"
        return f"{sign} {self.limit:g} {unit} {self.other}".rstrip()

    def is_met(self, value: float) -> bool:
        """Whether this is enough."""
        return value >= self.limit if self.kind in _AT_LEAST else value <= self.limit


@dataclass(frozen=True, slots=True)
class BarVerdict:
    """A bar, and the number that was measured for it; None where it could not be."""

    bar: Bar
    value: float | None

    @property
    def is_met(self) -> bool | None:
        """None where nothing was measured."""
        return None if self.value is None else self.bar.is_met(self.value)


def judge(bars: Sequence[Bar], measurements: Sequence[Measurement], copy_gb_per_s: float) -> list[BarVerdict]:
    """A verdict for each bar whose case is among the measurements, in the order of the bars."""
    by_name = {(measurement.op, measurement.case): measurement for measurement in measurements}
    return [
        BarVerdict(bar, _value(bar, by_name[bar.op, bar.case], by_name.get((bar.op, bar.other)), copy_gb_per_s))
        for bar in bars
        if (bar.op, bar.case) in by_name
    ]


def _value(bar: Bar, measured: Measurement, other: Measurement | None, copy_gb_per_s: float) -> float | None:
    own, rate = measured.us, measured.gb_per_s
    if own is None or rate is None:
        return None
    if bar.kind is BarKind.MICROSECONDS:
        return own
    if bar.kind is BarKind.COPY:
        return rate / copy_gb_per_s
    if bar.kind is BarKind.BYTE_TIME:
        return None if other is None or other.gb_per_s is None else other.gb_per_s / rate
    others = measured.peers_us.get(bar.other, None if other is None else other.us)
    if others is None:
        return None
    return others / own if bar.kind is BarKind.SPEED else own / others


def _products() -> list[Bar]:
    """Of matrix products with quantized weights, at the four layers' sizes of Llama-3.1-8B."""
    bars = []
    for size in ("4096x4096", "6144x4096", "28672x4096", "4096x14336"):
        bars += [
            Bar("w4a16", f"symmetric-{size}-{rows}", BarKind.SPEED, factor, "cuBLAS")
            for rows, factor in ((1, 2.8), (16, 2.3), (64, 1.3), (256, 0.7))
        ]
        bars.append(Bar("w4a16", f"symmetric-{size}-1", BarKind.COPY, 0.65))
        bars += [Bar("w8", f"{kind}-{size}-1", BarKind.SPEED, 1.6, "cuBLAS") for kind in ("int8", "fp8")]
        bars.append(Bar("w8a8", f"fp8-{size}-2048", BarKind.SPEED, 1.3, "cuBLAS"))
    return bars


def _rows() -> list[Bar]:
    """Of what goes through memory once: 4096 tokens at the speed of a copy, one in the time of a launch."""
    bars = []
    for op, many, one in (
        ("norm", "4096x4096", "1x4096"),
        ("act", "4096x14336", "1x14336"),
        ("rope_store", "8b-4096", "8b-1"),
    ):
        bars += [
            Bar(op, many, BarKind.COPY, 0.85),
            Bar(op, many, BarKind.SPEED, 1.0, "torch.compile"),
            Bar(op, one, BarKind.MICROSECONDS, 3.0),
        ]
    return bars


BARS: tuple[Bar, ...] = (
    Bar("paged_decode", "8b-64x4096", BarKind.COPY, 0.8),
    Bar("paged_decode", "8b-64x4096", BarKind.SPEED, 1.0, "SDPA"),
    Bar("paged_decode", "8b-1x32768", BarKind.COPY, 0.6),
    Bar("paged_decode", "8b-ragged", BarKind.BYTE_TIME, 1.15, "8b-64x4096"),
    Bar("paged_decode", "8b-64x4096-fp8", BarKind.TIME, 0.62, "8b-64x4096"),
    Bar("paged_decode", "8b-64x4096-int8", BarKind.TIME, 0.62, "8b-64x4096"),
    Bar("paged_prefill", "8b-8192", BarKind.SPEED, 0.65, "SDPA"),
    Bar("cascade", "8b-64x4096+256", BarKind.TIME, 0.35, "paged_decode"),
    *_rows(),
    *_products(),
    # At most twice, and with top-p four times, the time of one read of the logits.
    Bar("sample", "256x128k", BarKind.COPY, 0.5),
    Bar("sample", "256x128k-top-p", BarKind.COPY, 0.25),
)
"""All of them."""
