"""How many bytes of request bodies are held at once: of each key, of each tenant, and of all together.

What is held costs two or three times its size: the bytes, what was decoded from them, and what a changed field makes
of them for the upstream.
"""

from __future__ import annotations

from backends.errors import BodyTooLarge, KeyHoldsTooMuch, TooMuchHeld

UNCOUNTED_BYTES = 16 * 1024
"""Bodies up to this size are not counted: connections bound them, and most are."""
_RETRY_AFTER_S = 1.0


class BodyBudget:
    """One per process. What was taken is given back when its request is over."""

    def __init__(self, max_bytes: int, max_bytes_of_key: int, max_bytes_of_tenant: int) -> None:
        self.num_bytes = 0
        self._max_bytes = max_bytes
        self._max_of_tenant = min(max_bytes_of_tenant, max_bytes)
        self._max_of_key = min(max_bytes_of_key, self._max_of_tenant)
        self._of_keys: dict[str, int] = {}
        self._of_tenants: dict[str, int] = {}

    def hold(self, key: str, tenant: str) -> HeldBody:
        """Room for the body of one request; `key` is the caller's name, empty where there are no keys."""
        return HeldBody(self, key, tenant)

    def take(self, key: str, tenant: str, num_bytes: int) -> None:
        """Raises: as `check`."""
        self.check(key, tenant, num_bytes)
        self.num_bytes += num_bytes
        if key:
            self._of_keys[key] = self._of_keys.get(key, 0) + num_bytes
            self._of_tenants[tenant] = self._of_tenants.get(tenant, 0) + num_bytes

    def check(self, key: str, tenant: str, num_bytes: int) -> None:
        """Whether there is room now; nothing is taken.

        Raises: BodyTooLarge, KeyHoldsTooMuch, TooMuchHeld.
        """
        limit = self._max_of_key if key else self._max_bytes
        if num_bytes > limit:
            raise BodyTooLarge(f"the body has {num_bytes} bytes; one key may have {limit} held at once")
        if self.num_bytes + num_bytes > self._max_bytes:
            raise TooMuchHeld(
                f"the gateway holds request bodies of {self.num_bytes} bytes already; try again in a moment",
                retry_after_s=_RETRY_AFTER_S,
            )
        if not key:
            return
        if self._of_keys.get(key, 0) + num_bytes > limit:
            raise _too_much_of("key", limit)
        if self._of_tenants.get(tenant, 0) + num_bytes > self._max_of_tenant:
            raise _too_much_of("tenant", self._max_of_tenant)

    def give(self, key: str, tenant: str, num_bytes: int) -> None:
        """What was taken is free again."""
        self.num_bytes -= num_bytes
        if key:
            _lower(self._of_keys, key, num_bytes)
            _lower(self._of_tenants, tenant, num_bytes)


class HeldBody:
    """What one request's body takes of the budget."""

    __slots__ = ("_budget", "_key", "_tenant", "num_bytes")

    def __init__(self, budget: BodyBudget, key: str, tenant: str) -> None:
        self.num_bytes = 0
        self._budget = budget
        self._key = key
        self._tenant = tenant

    def announce(self, num_bytes: int) -> None:
        """Check a body's announced length against the budget, without reserving it. Raises: as `BodyBudget.check`."""
        if num_bytes > UNCOUNTED_BYTES:
            self._budget.check(self._key, self._tenant, num_bytes)

    def grow(self, num_bytes: int) -> None:
        """Hold that many bytes in all, if it holds fewer. Raises: as `BodyBudget.take`."""
        more = num_bytes - self.num_bytes
        if more > 0 and num_bytes > UNCOUNTED_BYTES:
            self._budget.take(self._key, self._tenant, more)
            self.num_bytes = num_bytes

    def release(self) -> None:
        """Give everything back. Safe to call twice."""
        if self.num_bytes:
            self._budget.give(self._key, self._tenant, self.num_bytes)
            self.num_bytes = 0


def _too_much_of(what: str, limit: int) -> KeyHoldsTooMuch:
    return KeyHoldsTooMuch(
        f"the bodies of this {what}'s requests in flight come to more than {limit} bytes; wait for their answers",
        retry_after_s=_RETRY_AFTER_S,
    )


def _lower(counts: dict[str, int], name: str, number: int) -> None:
    left = counts[name] - number
    if left:
        counts[name] = left
    else:
        del counts[name]
