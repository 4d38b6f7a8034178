"""Which places of a pool have nothing left of what their backends may be asked, and what is said where all are so."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from backends.errors import NoBackendAvailable, UpstreamError, UpstreamExhausted
from backends.protocol import Backend, Call
from backends.quotas.upstream_keys import Keyed, UpstreamKeys
from policies.pool.admission_port import Chooser
from policies.pool.place import Place


def quota_of(backend: Backend) -> UpstreamKeys | None:
    """What a backend may be asked; None where nobody keeps to that."""
    return backend.keys if isinstance(backend, Keyed) and backend.keys.is_kept else None


class QuotaRoom:
    """Those of one pool."""

    def __init__(self, route: str, places: Sequence[Place]) -> None:
        self._route = route
        self.limited = tuple(place for place in places if place.quota is not None)
        """Those of which anybody keeps to a quota."""

    def used_up(self, call: Call) -> Collection[Place]:
        """Places that may not be asked that now."""
        return [place for place in self.limited if place.quota_wait_s(call) > 0]

    def refusal(self, call: Call, used_up: Collection[Place], chooser: Chooser) -> UpstreamError:
        """The error where the chooser has nobody but those that are used up, if any."""
        waiting = [place for place in used_up if place in chooser.places and place.breaker.is_available()]
        if not waiting:
            return NoBackendAvailable(
                f'every backend of the route "{self._route}" is out of rotation', retry_after_s=chooser.retry_in_s()
            )
        for place in waiting:
            if place.quota is not None:
                place.quota.hold_back()
        wait_s = min(place.quota_wait_s(call) for place in waiting)
        return UpstreamExhausted(
            f'the quotas of the backends of the route "{self._route}" are used up; retry in {wait_s:.1f} s',
            retry_after_s=wait_s,
        )
