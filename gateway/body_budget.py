"""How many bytes of request bodies are held at once: of each key, of each tenant, and of all together.

What is held costs two or three times its size: the bytes, what was decoded from them, and what a changed field makes
of them for the upstream.
"""

from __future__ import annotations

from backends.errors import BodyTooLarge, KeyHoldsTooMuch, TooMuchHeld

UNCOUNTED_BYTES = 16 * 1024
"""Bodies up to this size are not counted: connections bound them, and most are."""
_RETRY_AFTER_S = 1.0

Callers = tuple[tuple[str, str], ...]
"""Whose share a body counts against, and its name: ("key", "ann"), ("tenant", "red")."""


class BodyBudget:
    """One per process. What was taken is given back when its request is over."""

    def __init__(self, max_bytes: int, max_bytes_of_key: int, max_bytes_of_tenant: int) -> None:
        self.num_bytes = 0
        self._max_bytes = max_bytes
        self._shares = {
            "key": min(max_bytes_of_key, max_bytes_of_tenant, max_bytes),
            "tenant": min(max_bytes_of_tenant, max_bytes),
        }
        self._held: dict[tuple[str, str], int] = {}

    def hold(self, key: str, tenant: str) -> HeldBody:
        """Room for the body of one request; `key` is the caller's name, empty where there are no keys."""
        return HeldBody(self, (("key", key), ("tenant", tenant)) if key else ())

    def take(self, callers: Callers, num_bytes: int) -> None:
        """Raises: as `check`."""
        self.check(callers, num_bytes)
        self.num_bytes += num_bytes
        for caller in callers:
            self._held[caller] = self._held.get(caller, 0) + num_bytes

    def check(self, callers: Callers, num_bytes: int) -> None:
        """Whether there is room now; nothing is taken.

        Raises: BodyTooLarge, KeyHoldsTooMuch, TooMuchHeld.
        """
        limit = self._shares["key"] if callers else self._max_bytes
        if num_bytes > limit:
            raise BodyTooLarge(f"the body has {num_bytes} bytes; one key may have {limit} held at once")
        if self.num_bytes + num_bytes > self._max_bytes:
            raise TooMuchHeld(
                f"the gateway holds request bodies of {self.num_bytes} bytes already; try again in a moment",
                retry_after_s=_RETRY_AFTER_S,
            )
        for caller in callers:
            what = caller[0]
            share = self._shares[what]
            if self._held.get(caller, 0) + num_bytes > share:
                raise KeyHoldsTooMuch(
                    f"the bodies of this {what}'s requests in flight come to more than {share} bytes; wait for their"
                    " answers",
                    retry_after_s=_RETRY_AFTER_S,
                )

    def give(self, callers: Callers, num_bytes: int) -> None:
        """What was taken is free again."""
        self.num_bytes -= num_bytes
        for caller in callers:
            left = self._held.pop(caller, 0) - num_bytes
            if left:
                self._held[caller] = left


class HeldBody:
    """What one request's body takes of the budget."""

    __slots__ = ("_budget", "_callers", "num_bytes")

    def __init__(self, budget: BodyBudget, callers: Callers) -> None:
        self.num_bytes = 0
        self._budget = budget
        self._callers = callers

    def announce(self, num_bytes: int) -> None:
        """So many are to come: nothing is held for what was only announced. Raises: as `BodyBudget.check`."""
        if num_bytes > UNCOUNTED_BYTES:
            self._budget.check(self._callers, num_bytes)

    def grow(self, num_bytes: int) -> None:
        """Hold that many bytes in all, if it holds fewer. Raises: as `BodyBudget.take`."""
        more = num_bytes - self.num_bytes
        if more > 0 and num_bytes > UNCOUNTED_BYTES:
            self._budget.take(self._callers, more)
            self.num_bytes = num_bytes

    def release(self) -> None:
        """Give everything back. Safe to call twice."""
        if self.num_bytes:
            self._budget.give(self._callers, self.num_bytes)
            self.num_bytes = 0
