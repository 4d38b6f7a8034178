"""What a semantic cache that only observes would have done, in a sentence."""

from __future__ import annotations

from collections.abc import Mapping

from policies.shares import limits_of_share

LOOKED_UP = "looked_up_"
"""Before a look-up's result, in `Live`'s fields."""

_WOULD_HIT = "would_hit"
_DECIDED = (_WOULD_HIT, "no_candidate", "below_threshold", "guarded", "suspect", "budget", "unconfirmed")
"""Results of look-ups that were decided: by none of them the decision says that it knows too little yet."""
_MIN_DECIDED = 100


def observed(figures: Mapping[str, float]) -> str | None:
    """Of one route, from what `Live` tells of it. None where it serves, or where too little is known."""
    counts = {result: int(figures.get(f"{LOOKED_UP}{result}", 0)) for result in _DECIDED}
    decided, would_hit = sum(counts.values()), counts[_WOULD_HIT]
    if figures.get(f"{LOOKED_UP}hit") or not would_hit or decided < _MIN_DECIDED:
        return None
    low, high = limits_of_share(would_hit, decided)
    wrong = ""
    if "likely" in figures and "at_most" in figures:
        wrong = (
            f", likely {_percent(figures['likely'])} of all look-ups wrongly, at most {_percent(figures['at_most'])}"
        )
    return (
        f"It only observes. In mode verified it would have answered {_percent(would_hit / decided)} of the "
        f"{decided:,} calls looked up since it had learned enough ({_percent(low)} to {_percent(high)}){wrong}."
    )


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %" if share >= 0.1 else f"{100 * share:.2f} %"
