"""What decisions learn, shared by replicas through Redis, so that all learn together and a restart forgets nothing.

Each scope has a stream: whatever one replica's decision counts or learns, it takes in at once and writes there, and
the others take it in when they read it. A dump says how far into the stream its replica had read, and how many events
of which replica it holds beyond that: whoever starts from it leaves those out. So each event is counted once in each
replica, in whatever order they come, and no clock is asked.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Sequence
from typing import Any

import msgspec

from backends.clock import Clock
from policies.cache.redis_link import Command, RedisLink, Write
from policies.cache.sealed import seal, unseal
from policies.cache.semantic.contracts import Decider, Decision, KnownNeighbour, PolicyState, Proposal
from policies.loop import Loop

_MAGIC = b"slipstream decision 1\n"
_FIELD = b"event"
_BEGINNING = "0-0"
_MAX_EVENTS = 5000
_MAX_READ_AT_ONCE = 64
_MAX_LOOKUPS_AN_EVENT = 10_000
_MAX_AHEAD = 64
_BLOCK_MS = 250
_TELL_EVERY_S = 0.5
_LOAD_TIMEOUT_S = 0.25
_TTL_MS = 30 * 24 * 3600 * 1000

# KEYS: the dump. ARGV: position, packed, milliseconds to live. One that has read less than what is there is not kept.
_SAVE = """
local function parts(position)
  local left, right = string.match(position or '', '^(%d+)-(%d+)$')
  return tonumber(left or 0), tonumber(right or 0)
end
local old_left, old_right = parts(redis.call('HGET', KEYS[1], 'position'))
local left, right = parts(ARGV[1])
if old_left > left or (old_left == left and old_right > right) then return 0 end
redis.call('HSET', KEYS[1], 'position', ARGV[1], 'packed', ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return 1
"""


class Label(msgspec.Struct, frozen=True, array_like=True):
    """One call of `Decider.label`. The question's text stays behind: what is learned from is in the features."""

    proposal: Proposal
    rightness: float
    weight: float
    served_at: float | None
    is_explained: bool = False


class LearningEvent(msgspec.Struct, frozen=True, array_like=True):
    """What one replica counted and learned since its event before; `sequence` counts its events of that scope."""

    origin: str
    sequence: int
    lookups: int
    label: Label | None


class _Saved(msgspec.Struct, frozen=True, array_like=True):
    """A dump: all events up to `position` are in it, and of each origin in `ahead` all up to that sequence number."""

    position: str
    ahead: dict[str, int]
    dumped: bytes


_EVENTS = msgspec.msgpack.Decoder(LearningEvent)
_DUMPS = msgspec.msgpack.Decoder(_Saved)


class StateStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """An immutable snapshot: scopes that are followed, events of others taken in, failures."""

    scopes: int
    received: int
    errors: int


class SharedDecider:
    """A `Decider` that counts and learns its own events at once, and those of others when `take` brings them. Pure.

    `origin` names this process. `position`, `ahead`: where the dump it started from had read to.
    """

    def __init__(self, decider: Decider, *, origin: str, position: str, ahead: dict[str, int]) -> None:
        self._decider = decider
        self._origin = origin
        self._sequence = 0
        self._num_lookups = 0
        self._unpublished: list[LearningEvent] = []
        self.position = position
        self._ahead = dict(ahead)

    def propose(self, text: str, candidates: Sequence[KnownNeighbour]) -> Proposal | None:
        """The best candidate, by what all replicas have learned."""
        return self._decider.propose(text, candidates)

    def decide(self, proposal: Proposal | None) -> Decision:
        """Decide one look-up; the others will count it too."""
        self._num_lookups += 1
        return self._decider.decide(proposal)

    def label(
        self, proposal: Proposal, *, rightness: float, weight: float, served_at: float | None, is_explained: bool
    ) -> None:
        """Learn, here and in the others."""
        self._decider.label(
            proposal, rightness=rightness, weight=weight, served_at=served_at, is_explained=is_explained
        )
        candidate = msgspec.structs.replace(proposal.candidate, text="")
        shared = msgspec.structs.replace(proposal, candidate=candidate)
        self._add_event(Label(shared, rightness, weight, served_at, is_explained))

    def gives_up(self, answer_id: str) -> bool:
        """Whether labels of all replicas say that an answer no longer holds."""
        return self._decider.gives_up(answer_id)

    def state(self) -> PolicyState:
        """What has been learned."""
        return self._decider.state()

    def dump(self) -> bytes:
        """Everything that the decision itself knows."""
        return self._decider.dump()

    def load(self, dumped: bytes) -> None:
        """Take over what was dumped. Raises: ValueError where it is of another version or damaged."""
        self._decider.load(dumped)

    def succeed(self, decider: Decider) -> None:
        """Go on with another decision, which has taken over what this one knew."""
        self._decider = decider

    def events(self) -> list[LearningEvent]:
        """What the others have not been told yet; tell them in this order."""
        if self._num_lookups:
            self._add_event(None)
        told, self._unpublished = self._unpublished, []
        return told

    def take(self, position: str, event: LearningEvent) -> bool:
        """Take in what stands at that position of the stream. False: it was in already."""
        self.position = position
        if event.origin == self._origin:
            return False
        ahead = self._ahead.get(event.origin, 0)
        if event.sequence >= ahead:
            # Its events come in order: no later one can be among those that were in the dump.
            self._ahead.pop(event.origin, None)
        if event.sequence <= ahead:
            return False
        for _ in range(min(event.lookups, _MAX_LOOKUPS_AN_EVENT)):
            self._decider.decide(None)
        if event.label is not None:
            label = event.label
            self._decider.label(
                label.proposal,
                rightness=label.rightness,
                weight=label.weight,
                served_at=label.served_at,
                is_explained=label.is_explained,
            )
        return True

    def saved(self, dumped: bytes) -> bytes:
        """That dump, made of it just now, with all that `unpack_saved` needs to go on from it; `events` were told."""
        ahead = [*self._ahead.items(), (self._origin, self._sequence)]
        return msgspec.msgpack.encode(_Saved(self.position, dict(ahead[-_MAX_AHEAD:]), dumped))

    def _add_event(self, label: Label | None) -> None:
        self._sequence += 1
        self._unpublished.append(LearningEvent(self._origin, self._sequence, self._num_lookups, label))
        self._num_lookups = 0


class RedisState:
    """A `StateStore` whose replicas learn together. `link` is opened and closed by whoever made it.

    `origin`: a name that no other process has, nor this one at its next start. `version`: what labels and dumps are
    made of; decisions of different versions learn nothing from each other.
    """

    def __init__(self, link: RedisLink, clock: Clock, *, origin: str, version: str) -> None:
        self._link = link
        self._version = version
        self._clock = clock
        self._origin = origin
        self._starts: dict[bytes, tuple[str, dict[str, int]]] = {}
        self._shared: dict[bytes, SharedDecider] = {}
        self._has_scopes = asyncio.Event()
        self._numbers = itertools.count()
        self._told_at = float("-inf")
        self._loop = Loop("shared learning", clock, of_service=True)
        self._received = 0
        self._errors = 0

    async def open(self) -> None:
        """Begin to follow what other replicas learn."""
        self._loop.start(self._follow)

    async def aclose(self) -> None:
        """Hand what was learned to the link, stop following. Safe to call twice."""
        if await self._loop.aclose():
            for scope in self._shared:
                self._tell(scope)

    async def load(self, scope: bytes) -> bytes | None:
        """The latest dump of any replica; None where there is none, it is damaged, or Redis does not say in time."""
        results = await self._link.read(("HGET", self._key(scope, "state"), "packed"), timeout_s=_LOAD_TIMEOUT_S)
        self._starts[scope] = (_BEGINNING, {})
        packed = results[0] if results else None
        if packed is None:
            return None
        content = unseal(_MAGIC, scope, packed) if isinstance(packed, bytes) else None
        try:
            saved = _DUMPS.decode(content or b"")
        except ValueError:
            self._errors += 1
            return None
        self._starts[scope] = (saved.position, saved.ahead)
        return saved.dumped

    def share(self, scope: bytes, decider: Decider) -> Decider:
        """The decider to use instead, after `load`: what it learns goes to other replicas, and theirs comes to it."""
        known = self._shared.get(scope)
        if known is not None:
            known.succeed(decider)
            return known
        position, ahead = self._starts.pop(scope, (_BEGINNING, {}))
        shared = SharedDecider(decider, origin=self._origin, position=position, ahead=ahead)
        self._shared[scope] = shared
        self._has_scopes.set()
        return shared

    def save(self, scope: bytes, dumped: bytes) -> None:
        """Keep a dump that was made of the shared decider just now, for who starts next. Never waits."""
        shared = self._shared.get(scope)
        if shared is None:
            return
        self._tell(scope)
        packed = seal(_MAGIC, scope, shared.saved(dumped))
        command: Command = ("EVAL", _SAVE, 1, self._key(scope, "state"), shared.position, packed, _TTL_MS)
        self._link.write(("state", scope), Write((command,)), len(packed))

    def statistics(self) -> StateStatistics:
        """A snapshot of the counters."""
        errors = self._errors + self._loop.failures.total
        return StateStatistics(scopes=len(self._shared), received=self._received, errors=errors)

    def _key(self, scope: bytes, kind: str) -> str:
        return f"{self._link.prefix}:{scope.hex()}:{kind}:{self._version}"

    def _tell(self, scope: bytes) -> None:
        key = self._key(scope, "learned")
        for event in self._shared[scope].events():
            told = msgspec.msgpack.encode(event)
            commands: tuple[Command, ...] = (
                ("XADD", key, "MAXLEN", "~", _MAX_EVENTS, "*", _FIELD, told),
                ("PEXPIRE", key, _TTL_MS),
            )
            self._link.write(("learned", str(next(self._numbers))), Write(commands), len(told))

    async def _follow(self) -> None:
        """Tell what is new here and take in what is new there. Raises what the client raises."""
        while True:
            await self._tell_and_take()

    async def _tell_and_take(self) -> None:
        await self._has_scopes.wait()
        if self._clock.now() - self._told_at >= _TELL_EVERY_S:
            self._told_at = self._clock.now()
            for scope in self._shared:
                self._tell(scope)
        by_key = {self._key(scope, "learned").encode(): shared for scope, shared in self._shared.items()}
        positions = [shared.position for shared in by_key.values()]
        command: list[str | bytes | int] = ["XREAD", "COUNT", _MAX_READ_AT_ONCE, "BLOCK", _BLOCK_MS, "STREAMS"]
        reply: Any = await self._link.call(*command, *by_key, *positions)
        for key, entries in reply or ():
            shared = by_key[key]
            for position, fields in entries:
                self._take(shared, position.decode(), fields or ())
            # A long stream must not keep the event loop from its calls.
            await asyncio.sleep(0)

    def _take(self, shared: SharedDecider, position: str, fields: Sequence[bytes]) -> None:
        values = dict(zip(fields[::2], fields[1::2], strict=False))
        try:
            event = _EVENTS.decode(values.get(_FIELD, b""))
            if event.label is not None and not _is_sound(event.label):
                raise ValueError
        except ValueError:
            self._errors += 1
            shared.position = position
            return
        self._received += shared.take(position, event)


def _is_sound(label: Label) -> bool:
    numbers = (label.weight, label.served_at or 0.0, *label.proposal.features)
    return 0.0 <= label.rightness <= 1.0 and all(map(math.isfinite, numbers))
