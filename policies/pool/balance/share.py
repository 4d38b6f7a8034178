"""How much of a pool's traffic is to go to a place, and after whom."""

from __future__ import annotations

import msgspec

from policies.pool.place import Place


class Share(msgspec.Struct, frozen=True, eq=False):
    """A place's part of the traffic. Lower priorities are asked first; weight 0 is never chosen."""

    place: Place
    weight: int
    priority: int
