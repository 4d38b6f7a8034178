"""How many connections clients may have open, and how many requests wait on all of them for their turn."""

from __future__ import annotations

_MAX_AHEAD = 4096
"""Some 20 MiB. Where so many wait, each connection may have few."""
_MAX_KEPT_AHEAD = 256
_MAX_KEPT_IN_A_CROWD = 32


class ConnectionCount:
    """One per process; connections count themselves."""

    def __init__(self, max_connections: int) -> None:
        self.num_ahead = 0
        self._max_connections = max_connections

    def has_room_for(self, num_connections: int) -> bool:
        """Whether there may be so many connections."""
        return num_connections <= self._max_connections

    @property
    def max_kept_ahead(self) -> int:
        """How many requests may wait on one connection that came in one read: with more, it is closed."""
        return _MAX_KEPT_AHEAD if self.num_ahead < _MAX_AHEAD else _MAX_KEPT_IN_A_CROWD
