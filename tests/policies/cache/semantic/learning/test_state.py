"""What decisions learn, shared and over restarts: every event once in every replica, whatever happens in between."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from redis.asyncio import Redis

from backends.clock import SystemClock
from backends.errors import ConfigurationError
from policies.atomic_file import DamagedFile, read_checked, write_atomically
from policies.cache.redis_link import RedisLink
from policies.cache.sealed import seal
from policies.cache.semantic.contracts import Decider, Decision, History, KnownNeighbour, PolicyState, Proposal
from policies.cache.semantic.decision.bound import Bound
from policies.cache.semantic.decision.features import FEATURES
from policies.cache.semantic.decision.verified import Verified
from policies.cache.semantic.learning.state_file import StateFile
from policies.cache.semantic.learning.state_redis import _MAGIC, LearningEvent, RedisState, SharedDecider, _Saved
from tests.support.policy.semantic import FixedDecider
from tests.support.policy.vectors import OTHER_SCOPE, SCOPE, until
from tests.support.servers.redis_server import RedisServer, redis_policy, semantic_link
from tests.support.small_disk import make_read_only, small_disk

PREFIX = "test:semantic"
STATE_KEY = f"{PREFIX}:{SCOPE.hex()}:state:1"
STREAM_KEY = f"{PREFIX}:{SCOPE.hex()}:learned:1"
MAGIC = b"magic 1\n"


class Ledger:
    """A `Decider` that decides nothing and remembers everything: which labels it was given, and how many look-ups."""

    def __init__(self) -> None:
        self.labels: Counter[str] = Counter()
        self.lookups = 0

    def propose(self, text: str, candidates: Sequence[KnownNeighbour]) -> Proposal | None:
        """Nothing."""
        return None

    def decide(self, proposal: Proposal | None) -> Decision:
        """Count it."""
        self.lookups += 1
        return Decision(False, False, 1.0, 0.0, 0.0, "learning")

    def label(
        self, proposal: Proposal, *, rightness: float, weight: float, served_at: float | None, is_explained: bool
    ) -> None:
        """Remember it."""
        self.labels[proposal.candidate.id] += 1

    def gives_up(self, answer_id: str) -> bool:
        """Never."""
        return False

    def state(self) -> PolicyState:
        """The counts."""
        return PolicyState("observe", self.labels.total(), self.lookups, 0, 0.0, 0.0, 0.0, 0.0)

    def dump(self) -> bytes:
        """Everything."""
        return msgspec.msgpack.encode((dict(self.labels), self.lookups))

    def load(self, dumped: bytes) -> None:
        """Take over what was dumped. Raises: ValueError."""
        labels, self.lookups = msgspec.msgpack.decode(dumped, type=tuple[dict[str, int], int])
        self.labels = Counter(labels)


def _proposal(name: str, *features: float) -> Proposal:
    return Proposal(KnownNeighbour(name, 0.9, "my canary question", "says", History()), features or (0.5,), False)


def _label(decider: Decider, name: str) -> None:
    decider.label(_proposal(name), rightness=1.0, weight=1.0, served_at=None, is_explained=False)


class _Stream:
    """What Redis does, in memory: one stream, one dump, replicas that come and go."""

    def __init__(self, count: int) -> None:
        self.events: list[LearningEvent] = []
        self.dump: tuple[int, bytes] | None = None
        self.num_origins = 0
        self.ledgers = [Ledger() for _ in range(count)]
        self.replicas = [self._started(ledger) for ledger in self.ledgers]

    def _started(self, ledger: Ledger) -> SharedDecider:
        self.num_origins += 1
        origin = f"origin {self.num_origins}"
        if self.dump is None:
            return SharedDecider(ledger, origin=origin, position="0", ahead={})
        saved = msgspec.msgpack.decode(self.dump[1], type=_Saved)
        ledger.load(saved.dumped)
        return SharedDecider(ledger, origin=origin, position=saved.position, ahead=saved.ahead)

    def restart(self, number: int) -> None:
        """Kill one; another starts from the dump."""
        self.ledgers[number] = Ledger()
        self.replicas[number] = self._started(self.ledgers[number])

    def tell(self, number: int, is_lost: bool = False) -> None:
        """One writes what it has to tell."""
        told = self.replicas[number].events()
        self.events += [] if is_lost else told

    def read(self, number: int, count: int) -> None:
        """One reads so many of what it has not read."""
        replica = self.replicas[number]
        start = int(replica.position)
        for place, event in enumerate(self.events[start : start + count], start + 1):
            replica.take(str(place), event)

    def save(self, number: int, is_lost: bool = False) -> None:
        """One saves a dump; it is kept if none has read more."""
        replica = self.replicas[number]
        dumped = replica.dump()
        self.tell(number, is_lost)
        if self.dump is None or self.dump[0] <= int(replica.position):
            self.dump = (int(replica.position), replica.saved(dumped))

    def settle(self) -> None:
        """All tell and read everything."""
        for number in range(len(self.replicas)):
            self.tell(number)
        for number in range(len(self.replicas)):
            self.read(number, len(self.events))


_ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["lookup", "lookup", "label", "label", "tell", "read", "save", "restart"]),
        st.integers(0, 2),
        st.integers(0, 4),
    ),
    max_size=80,
)


def _carry_out(actions: list[tuple[str, int, int]], *, loses: bool) -> _Stream:
    stream = _Stream(3)
    for turn, (action, number, count) in enumerate(actions):
        is_lost = loses and count == 0
        if action == "lookup":
            stream.replicas[number].decide(None)
        elif action == "label":
            _label(stream.replicas[number], f"label {turn}")
        elif action == "tell":
            stream.tell(number, is_lost)
        elif action == "read":
            stream.read(number, count)
        elif action == "save":
            stream.save(number, is_lost)
        else:
            stream.restart(number)
    stream.settle()
    return stream


@settings(max_examples=120)
@given(actions=_ACTIONS)
def test_share_counts_every_event_once_in_every_replica(actions: list[tuple[str, int, int]]) -> None:
    """Whoever tells, reads, saves or restarts when: in the end all know the same, and that is what was told."""
    stream = _carry_out(actions, loses=False)
    told = Counter(event.label.proposal.candidate.id for event in stream.events if event.label is not None)
    lookups = sum(event.lookups for event in stream.events)

    assert all(ledger.labels == told for ledger in stream.ledgers)
    assert all(ledger.lookups == lookups for ledger in stream.ledgers)
    assert all(count == 1 for count in told.values())


@settings(max_examples=120)
@given(actions=_ACTIONS)
def test_share_with_events_that_get_lost_counts_none_twice(actions: list[tuple[str, int, int]]) -> None:
    """What Redis did not take may be missing in some, and is double in none; what it took is in all."""
    stream = _carry_out(actions, loses=True)
    told = {event.label.proposal.candidate.id for event in stream.events if event.label is not None}

    for ledger in stream.ledgers:
        assert set(ledger.labels.values()) <= {1}
        assert told <= ledger.labels.keys()


def test_share_leaves_the_question_behind() -> None:
    """What others learn from holds no text."""
    shared = SharedDecider(Ledger(), origin="o", position="0", ahead={})
    _label(shared, "one")

    assert b"canary" not in msgspec.msgpack.encode(shared.events())


def test_share_says_what_was_expected_of_a_served_answer() -> None:
    """A replica that has learned otherwise does not expect it anew."""
    here, there = FixedDecider(), FixedDecider()
    one, other = (
        SharedDecider(decider, origin=origin, position="0", ahead={})
        for decider, origin in ((here, "here"), (there, "there"))
    )
    for served_at in (2.5, None):
        one.label(_proposal("x"), rightness=0.0, weight=2.0, served_at=served_at, is_explained=False)
    for event in msgspec.msgpack.decode(msgspec.msgpack.encode(one.events()), type=list[LearningEvent]):
        other.take("1", event)

    assert there.given == here.given == [("x", 0.0, 2.0, 2.5), ("x", 0.0, 2.0, None)]


def test_saved_remembers_a_bounded_number_of_origins() -> None:
    """Replicas that came and went do not pile up in the dump; the latest are kept."""
    packed = b""
    for number in range(200):
        saved = msgspec.msgpack.decode(packed, type=_Saved) if packed else _Saved("0", {}, b"")
        shared = SharedDecider(Ledger(), origin=f"o{number}", position="0", ahead=saved.ahead)
        _label(shared, "one")
        shared.events()
        packed = shared.saved(b"")
    ahead = msgspec.msgpack.decode(packed, type=_Saved).ahead

    assert list(ahead) == [f"o{number}" for number in range(136, 200)]


class Replica:
    """One gateway's share in what is learned."""

    def __init__(self, state: RedisState, link: RedisLink) -> None:
        self.state = state
        self.link = link
        self.ledger = Ledger()
        self.decider: Decider = self.ledger

    async def start(self, scope: bytes = SCOPE) -> None:
        """As a gateway does when a tenant first asks."""
        dumped = await self.state.load(scope)
        if dumped is not None:
            self.ledger.load(dumped)
        self.decider = self.state.share(scope, self.ledger)

    async def save(self) -> None:
        """As a gateway does now and then."""
        self.state.save(SCOPE, self.decider.dump())
        await self.link.flush(2.0)

    def knows(self, *names: str) -> bool:
        """Whether these labels are all it has, each once."""
        return self.ledger.labels == Counter(names)


@asynccontextmanager
async def opened(server: RedisServer, origin: str, *, timeout: str = "2s") -> AsyncIterator[Replica]:
    """A replica that has not started yet."""
    clock = SystemClock()
    link = semantic_link(redis_policy(server.url, timeout), clock)
    state = RedisState(link, clock, origin=origin, version="1")
    await link.open()
    await state.open()
    try:
        yield Replica(state, link)
    finally:
        await state.aclose()
        await state.aclose()
        await link.aclose()


@pytest.fixture
async def server() -> AsyncIterator[RedisServer]:
    """A Redis of the test's own."""
    async with RedisServer() as server:
        yield server


async def test_label_reaches_the_other_replica_soon_and_a_later_one_too(server: RedisServer) -> None:
    """Replicas learn together; one that starts later knows what they know, with or without a dump."""
    async with opened(server, "a") as left, opened(server, "b") as right, opened(server, "c") as later:
        await left.start()
        await right.start()
        left.decider.decide(None)
        left.decider.decide(None)
        _label(left.decider, "one")
        _label(right.decider, "two")
        await until(lambda: left.knows("one", "two") and right.knows("one", "two"))
        assert left.ledger.lookups == right.ledger.lookups == 2
        await later.start()
        await until(lambda: later.knows("one", "two"))
        await left.save()
        async with opened(server, "d") as last:
            await last.start()
            assert last.knows("one", "two")
            _label(right.decider, "three")
            await until(lambda: last.knows("one", "two", "three") and later.knows("one", "two", "three"))


async def test_lookups_alone_reach_the_other_replica(server: RedisServer) -> None:
    """Counts travel without a label to carry them."""
    async with opened(server, "a") as left, opened(server, "b") as right:
        await left.start()
        await right.start()
        for _ in range(7):
            left.decider.decide(None)
        await until(lambda: right.ledger.lookups == 7)

        assert left.ledger.lookups == 7


async def test_restart_goes_on_where_it_was(server: RedisServer) -> None:
    """What was told is not forgotten, what was saved is not counted again, and closing tells the rest."""
    for number, name in enumerate(["one", "two", "three"]):
        async with opened(server, f"start {number}") as replica:
            await replica.start()
            await until(lambda: replica.ledger.labels.total() == number)  # noqa: B023  # waited for within the turn
            _label(replica.decider, name)
            replica.decider.decide(None)
            if number != 1:
                await replica.save()
    async with opened(server, "last") as replica:
        await replica.start()
        await until(lambda: replica.knows("one", "two", "three"))

        assert replica.ledger.lookups == 3


async def test_share_keeps_scopes_and_versions_apart(server: RedisServer) -> None:
    """What one tenant's labels say is nobody else's business."""
    async with opened(server, "a") as left, opened(server, "b") as right:
        await left.start(SCOPE)
        await right.start(OTHER_SCOPE)
        _label(left.decider, "one")
        _label(right.decider, "two")
        await asyncio.sleep(1.0)

        assert left.knows("one")
        assert right.knows("two")


async def test_share_again_goes_on_with_the_new_decider(server: RedisServer) -> None:
    """After a reload of the policy the successor learns on, from everybody, without a second look at the past."""
    async with opened(server, "a") as left, opened(server, "b") as right:
        await left.start()
        await right.start()
        _label(left.decider, "one")
        await until(lambda: right.knows("one"))
        successor = Ledger()
        successor.load(right.decider.dump())
        right.ledger, right.decider = successor, right.state.share(SCOPE, successor)
        _label(left.decider, "two")
        _label(right.decider, "three")

        await until(lambda: left.knows("one", "two", "three") and right.knows("one", "two", "three"))


async def test_save_of_one_that_has_read_less_does_not_replace_more(server: RedisServer) -> None:
    """The best starting point stays."""
    async with opened(server, "a") as left, Redis.from_url(server.url) as client:
        await left.start()
        _label(left.decider, "one")
        await until(lambda: left.state.statistics().scopes == 1)
        await asyncio.sleep(1.0)
        await left.save()
        kept = await client.hgetall(STATE_KEY)
        async with opened(server, "b") as right:
            slow = right.state.share(SCOPE, Ledger())
            right.state.save(SCOPE, slow.dump())
            await right.link.flush(2.0)

        assert kept[b"position"] != b"0-0"
        assert await client.hgetall(STATE_KEY) == kept
        assert await client.pttl(STATE_KEY) > 0
        assert await client.pttl(STREAM_KEY) > 0


@pytest.mark.timed
async def test_load_while_redis_is_away_begins_anew_and_shares_when_it_is_back(server: RedisServer) -> None:
    """No error, no waiting beyond a moment; what is learned in between stays here."""
    async with opened(server, "a", timeout="30ms") as left, opened(server, "b", timeout="30ms") as right:
        await server.kill()
        started = time.monotonic()
        await left.start()
        await right.start()
        assert time.monotonic() - started < 1.0
        _label(left.decider, "lost")
        await asyncio.sleep(0.1)
        await server.start()
        async with asyncio.timeout(20.0):
            number = 0
            while not right.ledger.labels:
                _label(left.decider, f"again {number}")
                number += 1
                await asyncio.sleep(0.2)

        assert left.ledger.labels["lost"] == 1
        assert set(right.ledger.labels.values()) == {1}


async def test_follow_through_a_stall_loses_and_doubles_nothing(server: RedisServer) -> None:
    """A Redis that stands still for a while and goes on: what could be written arrives once."""
    async with opened(server, "a") as left, opened(server, "b") as right:
        await left.start()
        await right.start()
        _label(left.decider, "before")
        await until(lambda: right.knows("before"))
        server.pause()
        await asyncio.sleep(0.4)
        server.resume()
        _label(left.decider, "after")

        await until(lambda: right.knows("before", "after"), 10.0)


async def test_follow_of_a_redis_restarted_empty_goes_on(server: RedisServer) -> None:
    """What was learned stays in every replica, and the next save brings it back for those to come."""
    async with opened(server, "a") as left, opened(server, "b") as right:
        await left.start()
        await right.start()
        _label(left.decider, "one")
        await until(lambda: right.knows("one"))
        await server.kill()
        await server.start()
        async with asyncio.timeout(20.0):
            number = 0
            while right.knows("one"):
                _label(left.decider, f"new {number}")
                number += 1
                await asyncio.sleep(0.1)
        await left.save()
        async with opened(server, "c") as later:
            await later.start()
            assert later.ledger.labels["one"] == 1
            assert set(later.ledger.labels.values()) == {1}


@pytest.mark.parametrize(
    "packed",
    [
        b"",
        b"garbage",
        seal(_MAGIC, OTHER_SCOPE, msgspec.msgpack.encode(_Saved("1-1", {}, b""))),
        seal(_MAGIC, SCOPE, b"\xff"),
        None,
    ],
    ids=["empty", "garbage", "another scope's", "not a dump", "another type"],
)
async def test_load_of_foreign_bytes_begins_anew(server: RedisServer, packed: bytes | None) -> None:
    """A dump that is not one is none, and the next save replaces it where it can."""
    async with Redis.from_url(server.url) as client, opened(server, "a") as replica:
        if packed is None:
            await client.set(STATE_KEY, b"foreign")
        else:
            await client.hset(STATE_KEY, mapping={"packed": packed, "position": b"garbage"})
        assert await replica.state.load(SCOPE) is None
        replica.state.share(SCOPE, replica.ledger)
        await replica.save()

        assert (await replica.state.load(SCOPE) is None) == (packed is None)


@pytest.mark.parametrize(
    "fields",
    [
        {"other": b"x"},
        {"event": b""},
        {"event": b"\xff\xffgarbage"},
        {"event": msgspec.msgpack.encode(("x", 1, 0, (_proposal("x", float("nan")), 1.0, 1.0, None)))},
        {"event": msgspec.msgpack.encode(("x", 1, 0, (_proposal("x"), 1.0, float("inf"), None)))},
        {"event": msgspec.msgpack.encode(("x", 1, 0, (_proposal("x"), 1.0, 1.0, float("nan"))))},
        {"event": msgspec.msgpack.encode(("x", 1, -5, None))},
    ],
    ids=["no event", "empty", "garbage", "not a number", "infinite weight", "served at no number", "negative count"],
)
async def test_follow_of_foreign_bytes_learns_nothing_from_them(server: RedisServer, fields: dict[str, bytes]) -> None:
    """What cannot be right is left out, and the next event is read."""
    async with opened(server, "a") as left, opened(server, "b") as right, Redis.from_url(server.url) as client:
        await client.xadd(STREAM_KEY, fields)  # type: ignore[arg-type]  # dict is invariant
        await left.start()
        await right.start()
        _label(right.decider, "one")
        await until(lambda: left.knows("one"))

        assert left.ledger.lookups == 0


async def test_verified_decisions_learn_from_each_others_labels(server: RedisServer) -> None:
    """The real thing: labels found by two replicas together let either of them leave the learning state."""
    random = Random(11)
    async with opened(server, "a") as left, opened(server, "b") as right:
        deciders = []
        for replica in (left, right):
            assert await replica.state.load(SCOPE) is None
            deciders.append(replica.state.share(SCOPE, Verified(Bound(), Random(1))))
        for number in range(120):
            proposal = _proposal(str(number), *(random.random() for _ in FEATURES))
            deciders[number % 2].decide(proposal)
            deciders[number % 2].label(proposal, rightness=1.0, weight=1.0, served_at=None, is_explained=False)
        await until(lambda: all(decider.state().labels == 120 for decider in deciders))
        await until(lambda: all(decider.state().lookups == 120 for decider in deciders))

        assert deciders[0].decide(_proposal("new", *([0.5] * len(FEATURES)))).reason != "learning"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file in a folder that is not there yet."""
    return tmp_path / "folder" / "decisions"


async def test_state_file_gives_back_what_was_saved(path: Path) -> None:
    """Over a restart, by scope; nothing for an unknown one. Nobody else can read it."""
    first = StateFile(path, SystemClock(), write_every_s=0.01)
    await first.open()
    assert await first.load(SCOPE) is None
    first.save(SCOPE, b"one")
    first.save(OTHER_SCOPE, b"two")
    first.save(SCOPE, b"three")
    await first.aclose()
    await first.aclose()
    second = StateFile(path, SystemClock())
    await second.open()

    assert await second.load(SCOPE) == b"three"
    assert await second.load(OTHER_SCOPE) == b"two"
    assert _mode(path) == 0o600
    ledger = Ledger()
    assert second.share(SCOPE, ledger) is ledger
    await second.aclose()


async def test_state_file_is_written_soon_after_a_change(path: Path) -> None:
    """A kill loses the last moments only."""
    state = StateFile(path, SystemClock(), write_every_s=0.01)
    await state.open()
    state.save(SCOPE, b"one")
    await until(path.exists)
    written = _content(path)
    state.save(SCOPE, b"two")
    await until(lambda: _content(path) != written)
    await state.aclose()


def _damage(path: Path, damage: str) -> bytes:
    """Write a file that is damaged in this way; what is in it then."""
    write_atomically(path, msgspec.msgpack.encode({SCOPE: b"x" * 1000}), b"slipstream decisions 1\n")
    whole = path.read_bytes()
    if damage == "not a table":
        write_atomically(path, b"\xff", b"slipstream decisions 1\n")
    elif damage == "cut":
        path.write_bytes(whole[:-100])
    elif damage == "flipped":
        path.write_bytes(whole[:500] + bytes([whole[500] ^ 1]) + whole[501:])
    else:
        path.write_bytes(damage.encode())
    return path.read_bytes()


@pytest.mark.parametrize("damage", ["cut", "flipped", "foreign bytes", "", "not a table"])
async def test_state_file_that_is_damaged_is_put_aside(
    path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Learning begins anew, says so, and nothing is overwritten."""
    damaged = _damage(path, damage)
    state = StateFile(path, SystemClock())
    await state.open()
    state.save(SCOPE, b"new")
    await state.aclose()

    assert _content(path.with_name("decisions.damaged")) == damaged
    assert "learns anew" in caplog.text
    again = StateFile(path, SystemClock())
    await again.open()
    assert await again.load(SCOPE) == b"new"
    await again.aclose()


def _content(path: Path) -> bytes:
    return path.read_bytes()


def _mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


async def test_state_file_in_an_impossible_folder_is_a_configuration_error(tmp_path: Path) -> None:
    """Found at the start, with the path."""
    (tmp_path / "file").write_text("x")

    with pytest.raises(ConfigurationError, match="file/decisions"):
        await StateFile(tmp_path / "file" / "decisions", SystemClock()).open()


async def test_state_file_on_a_read_only_disk_is_read_and_counted(tmp_path: Path) -> None:
    """What was learned is used, and nothing stops for what cannot be written."""
    with small_disk(tmp_path):
        path = tmp_path / "decisions"
        state = StateFile(path, SystemClock())
        await state.open()
        state.save(SCOPE, b"one")
        await state.aclose()
        make_read_only(tmp_path)
        again = StateFile(path, SystemClock())
        await again.open()
        learned = await again.load(SCOPE)
        again.save(SCOPE, b"two")
        await again.aclose()
        elsewhere = StateFile(tmp_path / "new" / "decisions", SystemClock())
        await elsewhere.open()

        assert learned == b"one"
        assert (again.num_errors, elsewhere.num_errors) == (1, 1)
        assert await elsewhere.load(SCOPE) is None
        await elsewhere.aclose()


async def test_state_file_that_cannot_be_written_is_counted_and_tried_again(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A full or lost disk costs persistence and nothing else."""
    state = StateFile(path, SystemClock(), write_every_s=0.01)
    await state.open()
    path.parent.rmdir()
    path.parent.write_text("in the way")
    state.save(SCOPE, b"one")
    await until(lambda: state.num_errors > 0)
    path.parent.unlink()
    await until(path.exists)
    await state.aclose()

    assert "is not written" in caplog.text


@given(content=st.binary(max_size=300), place=st.integers(0, 400), is_cut=st.booleans())
def test_read_checked_gives_the_whole_content_or_raises(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, place: int, is_cut: bool
) -> None:
    """Any cut and any flipped bit is found; a file left half-written beside it is no matter."""
    path = tmp_path_factory.mktemp("atomic") / "file"
    assert read_checked(path, MAGIC) is None
    write_atomically(path, content, MAGIC)
    path.with_name("file.new").write_bytes(b"half")
    assert read_checked(path, MAGIC) == content
    whole = path.read_bytes()
    place %= len(whole)
    path.write_bytes(whole[:place] if is_cut else whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])

    with pytest.raises(DamagedFile, match="file"):
        read_checked(path, MAGIC)


def test_write_atomically_replaces_the_file_and_keeps_it_where_it_fails(tmp_path: Path) -> None:
    """The old content or the new, at every moment."""
    path = tmp_path / "file"
    write_atomically(path, b"old", MAGIC)
    write_atomically(path, memoryview(b"new"), MAGIC)
    assert read_checked(path, MAGIC) == b"new"
    (tmp_path / "file.new").mkdir()
    with pytest.raises(OSError):
        write_atomically(path, b"newer", MAGIC)

    assert read_checked(path, MAGIC) == b"new"
