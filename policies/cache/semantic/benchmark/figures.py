"""What is measured of each set, what is asked of it, and how both are told."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from policies.cache.semantic.benchmark.replay import ReplayCounts, upper_limit

OURS = "verified"
NOISY = "verified, noise"
"""Ours, where comparing answers errs."""
EXACT = "exact only"


@dataclass(frozen=True, slots=True)
class FigureRow:
    """One cache on one set: an outcome for each seed."""

    set: str
    policy: str
    outcomes: tuple[ReplayCounts, ...]

    @property
    def hits(self) -> list[float]:
        """Percent of look-ups, by seed."""
        return [100 * outcome.hit_rate for outcome in self.outcomes]

    @property
    def wrong(self) -> list[float]:
        """Percent of look-ups, by seed."""
        return [100 * outcome.wrong_rate for outcome in self.outcomes]

    @property
    def saved(self) -> list[float]:
        """Percent of look-ups, by seed."""
        return [100 * outcome.saved_rate for outcome in self.outcomes]

    @property
    def wrong_upper(self) -> float:
        """Percent: the 95 % upper limit for all seeds together."""
        return 100 * upper_limit(sum(one.wrong for one in self.outcomes), sum(one.asked for one in self.outcomes))


@dataclass(frozen=True, slots=True)
class Claim:
    """Something that is asked: `measured` must not be under `least`, or over `most`. Percent, or as the name says."""

    name: str
    measured: float
    least: float | None = None
    most: float | None = None

    @property
    def holds(self) -> bool:
        """Whether it is as it should be."""
        return not (self.least is not None and self.measured < self.least) and not (
            self.most is not None and self.measured > self.most
        )


def claims(rows: Sequence[FigureRow]) -> list[Claim]:
    """What the rows that are there are held to."""
    by_set = {name: {row.policy: row for row in rows if row.set == name} for name in {row.set: None for row in rows}}
    made: list[Claim] = []
    for name, of_set in by_set.items():
        ours = of_set[OURS]
        if name in _LEAST_HITS:
            made.append(Claim(f"{name}: hits, mean", _mean(ours.hits), least=_LEAST_HITS[name]))
            made.append(Claim(f"{name}: spread of hits over seeds, points", max(ours.hits) - min(ours.hits), most=10.0))
            rivals = [row for row in of_set.values() if row.policy not in (OURS, NOISY) and max(row.wrong) <= 1.0]
            best = max((_mean(row.hits) for row in rivals), default=0.0)
            made.append(
                Claim(f"{name}: hits above the best of the others within 1 % wrong", _mean(ours.hits) - best, least=0.0)
            )
        made.append(Claim(f"{name}: wrong, worst seed", max(ours.wrong), most=0.5 if name == "templates" else 1.0))
        if name == "templates":
            gains = [mine - exact for mine, exact in zip(ours.hits, of_set[EXACT].hits, strict=True)]
            made.append(Claim(f"{name}: hits above the exact tier alone, worst seed", min(gains), least=0.0))
        cpu_us = _mean([one.cpu_us for one in ours.outcomes if one.cpu_us is not None])
        made.append(Claim(f"{name}: CPU of a decision, us", cpu_us, most=100.0))
    return made


def as_text(rows: Sequence[FigureRow], made: Sequence[Claim]) -> str:
    """Two tables: what each cache did, and what is asked of ours."""
    lines = [f"{'':<12} {'':<16} {'hits':>6} {'min':>6} {'max':>6} {'wrong':>6} {'worst':>6} {'upper':>6} {'saved':>6}"]
    for row in rows:
        hits, wrong = row.hits, row.wrong
        lines.append(
            f"{row.set:<12} {row.policy:<16} {_mean(hits):6.1f} {min(hits):6.1f} {max(hits):6.1f} "
            f"{_mean(wrong):6.2f} {max(wrong):6.2f} {row.wrong_upper:6.2f} {_mean(row.saved):6.1f}"
        )
    lines += ["Percent of look-ups; upper: 95 % limit of wrong over all seeds; saved: hits less checks of hits.", ""]
    width = max(len(claim.name) for claim in made)
    lines.append(f"{'':<{width}}  {'asked':>8}  {'measured':>8}")
    for claim in made:
        asked = f">= {claim.least:g}" if claim.least is not None else f"<= {claim.most:g}"
        lines.append(
            f"{claim.name:<{width}}  {asked:>8}  {claim.measured:8.2f}  {'holds' if claim.holds else 'missed'}"
        )
    return "\n".join(lines)


def as_json(rows: Sequence[FigureRow], made: Sequence[Claim], settings: dict[str, object]) -> str:
    """The same for programs."""
    figures = [asdict(claim) | {"holds": claim.holds} for claim in made]
    measured = [
        {
            "set": row.set,
            "policy": row.policy,
            "hits": row.hits,
            "wrong": row.wrong,
            "wrong_upper_95": row.wrong_upper,
            "saved": row.saved,
        }
        for row in rows
    ]
    return json.dumps({"settings": settings, "rows": measured, "figures": figures}, indent=2)


_LEAST_HITS = {"banking77": 50.0, "clinc150": 52.0}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / max(1, len(values))
