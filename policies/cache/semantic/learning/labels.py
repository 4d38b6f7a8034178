"""What one tenant's decision on a route learns: comparisons become labels, and too few of them become doubt.

A label costs nothing after a miss, and a call after a served answer. It is as sure as the comparison was. What cannot
be compared counts as wrong: without it every model would be too sure of itself. Where of the comparisons that count
too many end so, the stage stops serving until they do not.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

from policies.cache.semantic.contracts import Decider, Decision, PolicyState, Proposal

FEEDBACK_WEIGHT = 3.0
"""Of what people say, in an entry's history. For the decision it is one answer, right or wrong as any other."""

_MIN_COMPARED = 50
_MAX_COMPARED = 400
_MAX_UNKNOWN_SHARE = 0.3


class LabelSource(StrEnum):
    """Where a label comes from."""

    MISS = "miss"
    SHADOW = "shadow"
    FEEDBACK = "feedback"


class Learning:
    """A decision, with what it may rely on. `name` is the tenant's, for people."""

    def __init__(self, name: str, decider: Decider, fresh: Callable[[], Decider]) -> None:
        self.name = name
        self.is_changed = False
        self._decider = decider
        self._fresh = fresh
        self._num_known = 0
        self._num_unknown = 0

    @property
    def decider(self) -> Decider:
        """What proposes and decides."""
        return self._decider

    @property
    def is_in_doubt(self) -> bool:
        """Whether of the comparisons that count too many could not be made for the bound to mean anything."""
        num_compared = self._num_known + self._num_unknown
        return num_compared >= _MIN_COMPARED and self._num_unknown > _MAX_UNKNOWN_SHARE * num_compared

    def decide(self, proposal: Proposal | None) -> Decision:
        """Decide one look-up, and count it."""
        self.is_changed = True
        return self._decider.decide(proposal)

    def rehearse(self, proposal: Proposal | None) -> Decision:
        """What `decide` would say, without counting anything."""
        copy = self._fresh()
        copy.load(self._decider.dump())
        return copy.decide(proposal)

    def settle(
        self,
        proposal: Proposal,
        sameness: float | None,
        *,
        is_label: bool,
        matters: bool,
        weight: float,
        served_at: float | None,
        is_explained: bool = False,
    ) -> None:
        """Take a comparison in: the probability that both answers say the same, None where they could not be compared.

        `matters`: the proposal was served, or scored well enough to be. `is_label`: whether the decision learns from
        it; a judge that rests leaves only what needs none, which would be too good. The rest is as in `Decider.label`.
        """
        if matters:
            is_known = is_label and sameness is not None
            self._num_known += is_known
            self._num_unknown += not is_known
            if self._num_known + self._num_unknown >= _MAX_COMPARED:
                self._num_known //= 2
                self._num_unknown //= 2
        if is_label:
            self.is_changed = True
            self._decider.label(
                proposal, rightness=sameness or 0.0, weight=weight, served_at=served_at, is_explained=is_explained
            )

    def state(self) -> PolicyState:
        """What has been learned."""
        return self._decider.state()

    def dump(self) -> bytes:
        """Everything that `Decider.load` takes back."""
        return self._decider.dump()
