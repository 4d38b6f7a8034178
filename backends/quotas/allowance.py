"""What one key has left for one model: as its answers told, less what was sent since, plus what has come back since."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from backends.protocol import Headers
from backends.quotas.told import QuotaKind, ToldQuota, told_quotas

_REMEMBERED_S = 60.0
"""Where an answer does not say when its quota is whole again, what it told counts for so long."""


class Taken(msgspec.Struct, frozen=True, gc=False):
    """An attempt that has gone out with a key: the requests and tokens up to and with it."""

    requests: int
    tokens: int


class QuotaLeft(msgspec.Struct, frozen=True, gc=False):
    """Of one kind, at one moment. Without a `limit` that was told it is the most that was ever left."""

    left: float
    limit: float


class _Unread(msgspec.Struct, frozen=True, gc=False):
    """An answer's fields that nobody has read yet, and when it came."""

    headers: Headers
    wall_s: float
    taken: Taken
    at: float


class _Window(msgspec.Struct, gc=False):
    """What was told last of one kind, at `at`, when so much had been taken."""

    left: float
    limit: float
    at: float
    whole_at: float
    refills: bool
    taken: int

    def left_at(self, now: float, taken: int) -> float:
        """What is left, by a refill that is even; all of it where that is over."""
        if now >= self.whole_at:
            return self.limit
        came_back = 0.0
        if self.refills:
            came_back = (self.limit - self.left) * (now - self.at) / (self.whole_at - self.at)
        return max(0.0, self.left + came_back - (taken - self.taken))


class Allowance:
    """Counts what is taken, and believes the newest answer.

    An attempt's answer tells what was left when it came to the upstream: attempts that went out later are counted
    here until their own answers tell.
    """

    __slots__ = ("_requests", "_tokens", "_told_requests", "_unread", "_windows", "out_until")

    def __init__(self) -> None:
        self._requests = 0
        self._tokens = 0
        self._told_requests = 0
        self._windows: dict[QuotaKind, _Window] = {}
        self._unread: _Unread | None = None
        self.out_until = 0.0
        """The key is not asked for this model before, in monotonic seconds."""

    def take(self, tokens: int) -> Taken:
        """An attempt with a prompt of about so many tokens goes out."""
        self._requests += 1
        self._tokens += tokens
        return Taken(self._requests, self._tokens)

    def hear(self, headers: Headers, wall_s: float, taken: Taken, now: float) -> None:
        """The answer to what was taken has these fields. They are read when somebody asks: the next answer may come
        first, and reading takes longer than anything else here.
        """
        if self._unread is None or taken.requests >= self._unread.taken.requests:
            self._unread = _Unread(headers, wall_s, taken, now)

    def note(self, told: Iterable[ToldQuota], taken: Taken, now: float) -> None:
        """The answer to what was taken has told so. An answer that was overtaken by that of a later one is old."""
        if taken.requests < self._told_requests:
            return
        self._told_requests = taken.requests
        for each in told:
            before = self._windows.get(each.kind)
            limit = max(each.left, each.limit or 0.0)
            if not each.limit and before is not None:
                limit = max(limit, before.limit)
            refills = bool(each.whole_in_s)
            whole_at = now + (_REMEMBERED_S if each.whole_in_s is None else each.whole_in_s)
            self._windows[each.kind] = _Window(each.left, limit, now, whole_at, refills, _of(each.kind, taken))

    def left(self, now: float) -> dict[QuotaKind, QuotaLeft]:
        """What is left of each kind that was told of."""
        if self._unread is not None:
            heard, self._unread = self._unread, None
            self.note(told_quotas(heard.headers, heard.wall_s), heard.taken, heard.at)
        taken = Taken(self._requests, self._tokens)
        return {
            kind: QuotaLeft(window.left_at(now, _of(kind, taken)), window.limit)
            for kind, window in self._windows.items()
        }

    def room(self, tokens: int, now: float) -> tuple[bool, float]:
        """Whether a prompt of so many tokens fits into what is left, and the least share that is left of any kind."""
        fits, share = True, 1.0
        for kind, quota in self.left(now).items():
            wanted = 1 if kind == "requests" else 0 if kind == "output_tokens" else tokens
            fits = fits and quota.left >= wanted
            share = min(share, quota.left / quota.limit if quota.limit else 0.0)
        return fits, share


def _of(kind: QuotaKind, taken: Taken) -> int:
    """What of an attempt counts against a kind. Nobody knows beforehand what is answered."""
    return taken.requests if kind == "requests" else 0 if kind == "output_tokens" else taken.tokens
