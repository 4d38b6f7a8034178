"""What all stacks of one policy are made of; `assemble.py` puts it together, stages and pools take from it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from backends.clock import Clock
from backends.protocol import Backend
from gateway.assembly.price_book import PriceBook
from policies.admission.admission import Admission
from policies.cache.store import Store
from policies.policy_file.load import LoadedPolicy
from policies.pool.load.fleet import Fleet

if TYPE_CHECKING:
    from policies.cache.semantic.build import Semantics
    from policies.mirror.stage import Mirror
    from policies.speculation.cascade.calibration import Calibration


@dataclass(frozen=True, slots=True)
class Parts:
    """The backends of a policy, and what its routes share."""

    loaded: LoadedPolicy
    leaves: Mapping[str, Backend]
    newcomers: Collection[str]
    """Names of leaves that the policy before did not have: they start slowly."""
    fleet: Fleet | None
    """None where nothing depends on what backends have in hand."""
    admission: Admission | None
    semantics: Semantics | None
    """None where no route has a semantic cache, nor needs its encoder."""
    calibrations: Mapping[str, Calibration]
    """What cascades go by, by the names of their routes."""
    mirrors: Mapping[str, Mirror]
    """Those of the policy before, by the names of their routes."""
    store: Store
    prices: PriceBook
    clock: Clock
    seed: int | None
    """Random choices are the same each time where there is one."""
