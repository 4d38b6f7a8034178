"""What is asked beside a call, because of it: what that has cost is told to who bears it."""

from __future__ import annotations

from collections.abc import Callable

from backends.charges.charge import Charge
from backends.protocol import Facts


def tell_charges(facts: Facts, told: Callable[[Charge], None] | None) -> None:
    """Every attempt that these facts have; `told` is None where nobody keeps a ledger or a budget."""
    if told is not None:
        for charge in facts.charges or ():
            told(charge)
