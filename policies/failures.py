"""What goes wrong in work that has to go on: counted, and told in the log now and then."""

from __future__ import annotations

import logging

from backends.clock import Clock

_TELL_EVERY_S = 60.0
_MAX_KINDS = 100

_logger = logging.getLogger(__name__)


class Failures:
    """Those of one piece of work. The log gets the first of each kind, with where it came from, then one a minute.

    Where they are `expected`, as those of a service that may be away, it gets the kind at debug level only: the text
    could repeat an address with its password.
    """

    def __init__(self, work: str, clock: Clock, *, expected: bool = False) -> None:
        self.work = work
        """What the log and the metric call it."""
        self.total = 0
        """How many there ever were."""
        self._clock = clock
        self._expected = expected
        self._num_new = 0
        self._told_at: dict[tuple[type[BaseException], int], float] = {}
        self._num_untold = 0

    def note(self, error: BaseException) -> None:
        """Count it, and tell it unless the same was told just now."""
        self.total += 1
        self._num_new += 1
        if self._expected:
            _logger.debug("%s failed and goes on: %s", self.work, type(error).__name__)
            return
        kind = (type(error), _line(error))
        now = self._clock.now()
        if now < self._told_at.get(kind, -_TELL_EVERY_S) + _TELL_EVERY_S:
            self._num_untold += 1
            return
        if len(self._told_at) >= _MAX_KINDS:
            self._told_at.clear()
        self._told_at[kind] = now
        others = f" ({self._num_untold} more since the last line)" if self._num_untold else ""
        self._num_untold = 0
        _logger.error("%s failed and goes on%s", self.work, others, exc_info=error)

    def take(self) -> int:
        """How many there were since the last time."""
        taken, self._num_new = self._num_new, 0
        return taken


def _line(error: BaseException) -> int:
    """The line that raised it, which with its type is what makes two failures the same."""
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    return 0 if place is None else place.tb_lineno
