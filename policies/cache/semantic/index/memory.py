"""The index in the memory of this process, on FAISS: a table for each group, a graph for a large one, kept on disk."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import msgspec
import numpy as np

from backends.clock import Clock
from backends.errors import ConfigurationError
from policies.background import Background
from policies.cache.semantic.contracts import Neighbour, Question, Vector
from policies.cache.semantic.index.group import FlatGroup, GraphGroup
from policies.cache.semantic.index.rows import Codec, Precision
from policies.cache.semantic.index.snapshot import Header, Record, Snapshot, SnapshotInUse, pack_record
from policies.finished import finished
from policies.loop import Loop
from policies.passing import is_passing

_LOGGER = logging.getLogger(__name__)
_MAX_FLAT: dict[Precision, int] = {"fp16": 1_000, "sq8": 20_000}
"""Entries of a group that are looked at one by one; beyond, a graph takes less time and more memory, which
is why sq8 puts it off (docs/decisions/016)."""
_BUILD_BATCH = 64
_LOAD_BATCH = 20_000
_MIN_STALE_RECORDS = 4096
_MAX_UNWRITTEN_BYTES = 256 * 1024 * 1024

Group = FlatGroup | GraphGroup


class IndexStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Now: entries, groups, graphs among them. Since the start: entries that had to go for others, failed writes."""

    entries: int
    groups: int
    graphs: int
    evicted: int
    write_errors: int


class _Build:
    """A graph in the making, and what has happened to its group meanwhile."""

    def __init__(self, source: Group, graph: GraphGroup) -> None:
        self.source = source
        self.graph = graph
        self.todo = deque(source)
        self.gone: list[str] = []


class MemoryIndex:
    """An `Index` of at most `max_entries`; beyond them the group least lately used gives up old ones.

    With a `snapshot` file it comes back after a restart, less the last `save_interval_s` seconds after a kill. Its
    state belongs to the event loop; graphs are built and files written by one thread of its own.
    """

    def __init__(
        self,
        dimension: int,
        fingerprint: str,
        clock: Clock,
        *,
        max_entries: int = 1_000_000,
        precision: Precision = "fp16",
        snapshot: Path | None = None,
        save_interval_s: float = 2.0,
        max_flat: int | None = None,
    ) -> None:
        """Raises: ConfigurationError where FAISS is not installed."""
        try:
            import faiss
        except ImportError as error:
            raise ConfigurationError(
                "the semantic cache's index needs FAISS: pip install 'slipstream-gateway[semantic]'"
            ) from error
        self._faiss = faiss
        self._dimension = dimension
        self._clock = clock
        self._max_entries = max_entries
        self._precision: Precision = precision
        self._max_flat = max_flat if max_flat is not None else _MAX_FLAT[precision]
        self._save_interval_s = save_interval_s
        self._path = snapshot
        self._fingerprint = fingerprint
        self._snapshot: Snapshot | None = None
        self._codec: Codec | None = None
        self._groups: OrderedDict[bytes, Group] = OrderedDict()
        self._num_entries = 0
        self._builds: dict[bytes, _Build] = {}
        self._building = Background(max_entries)
        self._saving = Loop("semantic_index", clock)
        self._thread: ThreadPoolExecutor | None = None
        self._unwritten: list[bytes] = []
        self._num_unwritten_bytes = 0
        self._can_write = True
        self._evicted = self._write_errors = 0

    async def open(self) -> None:
        """Load the snapshot. One that another process uses, or that is damaged, is left alone: the index is empty.

        Where its folder cannot be written for now it is read all the same, and nothing is saved.
        Raises: ConfigurationError where there is and can be no such folder.
        """
        # Of this thread and of the index's own; a search or an insertion is far too small for several.
        self._faiss.omp_set_num_threads(1)
        # Room for one of each group: none is empty.
        self._building = Background(self._max_entries)
        self._thread = ThreadPoolExecutor(1, "semantic-index", self._faiss.omp_set_num_threads, (1,))
        if self._path is not None:
            snapshot = Snapshot(
                self._path, fingerprint=self._fingerprint, dimension=self._dimension, precision=self._precision
            )
            try:
                await self._in_thread(lambda: self._load(snapshot, snapshot.open()))
                self._snapshot = snapshot
            except SnapshotInUse as error:
                self._path = None
                _LOGGER.warning("%s: this index begins empty and is not saved", error)
            except OSError as error:
                snapshot.close()
                if not is_passing(error):
                    raise ConfigurationError(f"the index's snapshot {self._path} cannot be used: {error}") from error
                problem = error
                await self._in_thread(lambda: self._read_only(snapshot, problem))
        if self._snapshot is not None:
            self._saving.start(self._save_until_cancelled)
        for key in list(self._groups):
            self._mend(key)

    async def aclose(self) -> None:
        """Write what is unwritten, release everything. Safe to call twice."""
        await self._building.aclose()
        await self._saving.aclose()
        if self._snapshot is not None:
            await self._save()
            await self._in_thread(self._snapshot.close)
            self._snapshot = None
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None
        self._groups.clear()
        self._num_entries = 0

    async def search(self, question: Question, vector: Vector, count: int) -> Sequence[Neighbour]:
        """Up to `count` nearest entries of the question's group, nearest first. A millisecond at a time."""
        group = self._groups.get(question.group)
        if group is None:
            return ()
        self._groups.move_to_end(question.group)
        nearest, start = group.search(vector, count, 0)
        if start is None:
            return nearest
        found = {neighbour.id: neighbour for neighbour in nearest}
        while start is not None:
            await asyncio.sleep(0)
            group = self._groups.get(question.group)
            if group is None:
                return ()
            nearest, start = group.search(vector, count, start)
            found.update((neighbour.id, neighbour) for neighbour in nearest)
        return sorted(found.values(), key=lambda neighbour: -neighbour.similarity)[:count]

    def add(self, question: Question, id: str, vector: Vector) -> None:
        """Found by `search` from now on; in the place of an entry of the same id."""
        if self._codec is None:
            self._codec = self._make_codec(Codec.span_for(vector))
        code = self._codec.encode(vector[None])
        self._forget(question.group, id)
        group = self._groups.get(question.group)
        if group is None:
            group = self._groups[question.group] = FlatGroup(self._codec)
        group.add([id], code)
        self._groups.move_to_end(question.group)
        self._num_entries += 1
        build = self._builds.get(question.group)
        if build is not None:
            build.todo.append(id)
        self._note(Record(question.group, id, code.tobytes()))
        if self._num_entries > self._max_entries:
            self._evict()
        self._mend(question.group)

    def remove(self, question: Question, ids: Sequence[str]) -> None:
        """No longer found. Unknown ids are nothing."""
        for known in ids:
            if self._forget(question.group, known):
                self._note(Record(question.group, known, None))
        self._mend(question.group)

    def statistics(self) -> IndexStatistics:
        """A snapshot of the counters."""
        return IndexStatistics(
            entries=self._num_entries,
            groups=len(self._groups),
            graphs=sum(isinstance(group, GraphGroup) for group in self._groups.values()),
            evicted=self._evicted,
            write_errors=self._write_errors,
        )

    async def wait_built(self) -> None:
        """Until no graph is being built: for tests and measurements."""
        while self._builds:
            await asyncio.sleep(0.01)

    def _forget(self, key: bytes, id: str) -> bool:
        group = self._groups.get(key)
        if group is None or not group.remove(id):
            return False
        self._num_entries -= 1
        build = self._builds.get(key)
        if build is not None:
            build.gone.append(id)
        if not len(group):
            del self._groups[key]
            self._builds.pop(key, None)
        return True

    def _evict(self) -> None:
        key, group = next(iter(self._groups.items()))
        oldest = next(iter(group))
        self._forget(key, oldest)
        self._note(Record(key, oldest, None))
        self._evicted += 1

    # Graphs

    def _mend(self, key: bytes) -> None:
        """Have a graph built for a group that has grown too large for a table, or whose graph is worn."""
        group = self._groups.get(key)
        if group is None or key in self._builds or self._thread is None or self._codec is None:
            return
        if group.is_worn or (isinstance(group, FlatGroup) and len(group) > self._max_flat):
            build = self._builds[key] = _Build(group, GraphGroup(self._codec))
            self._building.start(self._build(key, build))

    async def _build(self, key: bytes, build: _Build) -> None:
        """Entries go into the graph a few at a time, so that other work of the thread comes in between."""
        source, graph = build.source, build.graph
        while self._builds.get(key) is build:
            for gone in build.gone:
                graph.remove(gone)
            build.gone.clear()
            ids = [build.todo.popleft() for _ in range(min(_BUILD_BATCH, len(build.todo)))]
            ids = [new for new in dict.fromkeys(ids) if new in source and new not in graph]
            if ids:
                await self._in_thread(partial(graph.add, ids, source.codes(ids)))
            elif not build.todo:
                self._groups[key] = graph
                del self._builds[key]

    # The file

    def _read_only(self, snapshot: Snapshot, problem: OSError) -> None:
        _LOGGER.error("the index is not saved, %s cannot be written: %s", self._path, problem)
        self._write_errors += 1
        try:
            self._load(snapshot, snapshot.open_to_read())
        except OSError as error:
            _LOGGER.error("the index begins empty: %s", error)
        self._path = None

    def _load(self, snapshot: Snapshot, header: Header | None) -> None:
        if header is None:
            return
        self._codec = codec = self._make_codec(header.span)
        waiting: dict[bytes, dict[str, bytes]] = {}
        num_waiting = 0
        for record in snapshot.records():
            group = waiting.setdefault(record.group, {})
            # An entry that comes again counts as new, in its order too.
            group.pop(record.id, None)
            self._forget(record.group, record.id)
            if record.code is not None:
                group[record.id] = record.code
                num_waiting += 1
            if num_waiting >= _LOAD_BATCH:
                self._take(codec, waiting)
                waiting, num_waiting = {}, 0
        self._take(codec, waiting)
        while self._num_entries > self._max_entries:
            self._evict()
        _LOGGER.info("the index has %d entries from %s", self._num_entries, self._path)

    def _take(self, codec: Codec, waiting: dict[bytes, dict[str, bytes]]) -> None:
        for key, entries in waiting.items():
            if entries:
                codes = np.frombuffer(b"".join(entries.values()), np.uint8).reshape(len(entries), -1)
                self._groups.setdefault(key, FlatGroup(codec)).add(list(entries), codes)
                self._num_entries += len(entries)

    def _note(self, record: Record) -> None:
        if self._path is None:
            return
        packed = pack_record(record)
        if self._num_unwritten_bytes + len(packed) > _MAX_UNWRITTEN_BYTES:
            self._write_errors += 1
            return
        self._unwritten.append(packed)
        self._num_unwritten_bytes += len(packed)

    async def _save_until_cancelled(self) -> None:
        while True:
            await self._clock.sleep(self._save_interval_s)
            await self._save()

    async def _save(self) -> None:
        """Append what is new; rewrite the file when most of it is of entries that are gone."""
        snapshot, codec = self._snapshot, self._codec
        if snapshot is None or codec is None or not self._unwritten:
            return
        span = codec.span
        records, self._unwritten = self._unwritten, []
        num_bytes, self._num_unwritten_bytes = self._num_unwritten_bytes, 0
        try:
            await self._in_thread(lambda: snapshot.append(span, records))
        except OSError as error:
            self._unwritten[:0] = records
            self._num_unwritten_bytes += num_bytes
            self._fail(error)
            return
        try:
            if snapshot.num_records > 2 * self._num_entries + _MIN_STALE_RECORDS:
                await self._in_thread(lambda: snapshot.rewrite(span, self._has))
        except OSError as error:
            self._fail(error)
            return
        self._can_write = True

    def _fail(self, error: OSError) -> None:
        self._write_errors += 1
        if self._can_write:
            _LOGGER.error("the index cannot be saved to %s for now: %s", self._path, error)
        self._can_write = False

    def _has(self, key: bytes, id: str) -> bool:
        group = self._groups.get(key)
        return group is not None and id in group

    def _make_codec(self, span: float) -> Codec:
        return Codec(self._faiss, self._dimension, self._precision, span)

    async def _in_thread(self, work: Callable[[], None]) -> None:
        """Where the caller is cancelled, the work is still waited for: it may be half of a write."""
        assert self._thread is not None, "an index is opened before it is used"
        await finished(asyncio.get_running_loop().run_in_executor(self._thread, work))
