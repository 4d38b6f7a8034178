"""Follows the events of one engine's prompt cache over ZeroMQ, from `open` to `aclose`; `kv_mirror.py` takes them in.

Imported only where a backend is configured so, since it needs pyzmq. Nothing waits for it: while it is down, what it
had told is a guess like any other.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence

import zmq
import zmq.asyncio
from zmq.utils.monitor import recv_monitor_message

from backends.clock import Clock
from backends.kv_events import KvEventsConfig
from policies.loop import Loop
from policies.pool.prompts.engine_text import EngineText
from policies.pool.prompts.kv_events import decode_batch
from policies.pool.prompts.kv_mirror import Happening, KvMirror
from policies.pool.prompts.prefix_index import PrefixIndex

_END = (-1).to_bytes(8, "big", signed=True)
_REPLAY_SILENCE_S = 2.0
_MAX_REPLAYED = 100_000
_MAX_MESSAGE_BYTES = 16 * 1024**2
_MAX_WAITING = 1000
"""Messages that wait to be read; further ones are lost, which is a gap like any other."""
_RECONNECT_MS, _RECONNECT_MAX_MS = 100, 5000
_KEEPALIVE_S = 15
_PAUSE_S = 5.0
_ABSENT_S = 10.0
"""How often is looked whether an engine is there at all."""

_logger = logging.getLogger(__name__)


class KvFeed:
    """One backend's engine. `slots` are those of its replicas in the index."""

    def __init__(
        self,
        name: str,
        config: KvEventsConfig,
        slots: Sequence[int],
        text: EngineText,
        *,
        index: PrefixIndex,
        clock: Clock,
    ) -> None:
        self.slots = tuple(slots)
        self.text = text
        self._name = name
        self._config = config
        self._clock = clock
        self.is_live = False
        """Whether the engine's socket is there; an engine with nothing to say is silent."""
        self._counts: Counter[Happening] = Counter()
        self._mirror = KvMirror(index, slots, text, self._counts)
        self.loop = Loop("kv_feed", clock)
        """What follows."""
        self._watch = Loop("kv_feed", clock)
        self._context: zmq.asyncio.Context | None = None
        self._last: int | None = None
        self._replayed = -1

    async def open(self) -> None:
        """Begin to listen, whether anybody speaks or not."""
        self._context = zmq.asyncio.Context()
        self.loop.start(self._run)
        self._watch.start(self._tell_absence)

    async def aclose(self) -> None:
        """Stop. Safe to call twice."""
        await self._watch.aclose()
        await self.loop.aclose()
        if self._context is not None:
            self._context.destroy(linger=0)

    @property
    def num_blocks(self) -> int:
        """The engine's blocks that are known."""
        return self._mirror.num_blocks

    def take_counts(self) -> Counter[Happening]:
        """What has happened since the last time."""
        taken = Counter(self._counts)
        self._counts.clear()
        return taken

    async def _run(self) -> None:
        assert self._context is not None, "opened first"
        while True:
            try:
                await self._follow(self._context)
            except zmq.ZMQError as error:
                _logger.warning("the KV events of backend %s cannot be followed: %s", self._name, error)
            await self._clock.sleep(_PAUSE_S)

    async def _tell_absence(self) -> None:
        """Say so once where nobody is there: it looks like an engine that has nothing to say."""
        is_told = False
        while True:
            await self._clock.sleep(_ABSENT_S)
            if not self.is_live and not is_told:
                _logger.warning(
                    "the KV events of backend %s: nobody is at %s; what it holds is guessed until somebody is",
                    self._name,
                    self._config.endpoint,
                )
            is_told = not self.is_live

    async def _follow(self, context: zmq.asyncio.Context) -> None:
        with context.socket(zmq.SUB) as socket:
            monitor = socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
            try:
                self._prepare(socket)
                socket.setsockopt(zmq.RCVHWM, _MAX_WAITING)
                socket.subscribe(self._config.topic)
                socket.connect(self._config.endpoint)
                await self._listen(socket, monitor)
            finally:
                self._let_go()
                socket.disable_monitor()
                monitor.close(linger=0)

    async def _listen(self, socket: zmq.asyncio.Socket, monitor: zmq.asyncio.Socket) -> None:
        poller = zmq.asyncio.Poller()
        poller.register(monitor, zmq.POLLIN)
        poller.register(socket, zmq.POLLIN)
        while True:
            ready = dict(await poller.poll())
            if monitor in ready:
                event = await recv_monitor_message(monitor)
                if event["event"] == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                    await self._note_up()
                elif self.is_live:
                    _logger.warning("the KV events of backend %s have broken off", self._name)
                    # It may be another engine that comes back.
                    self._let_go()
            elif socket in ready:
                await self._receive(await socket.recv_multipart())
            # What is ready at once never lets anybody else run.
            await asyncio.sleep(0)

    async def _note_up(self) -> None:
        self.is_live = True
        self._last, self._replayed = None, -1
        _logger.info("the KV events of backend %s are followed", self._name)
        await self._replay(0)
        self._replayed = -1 if self._last is None else self._last

    def _let_go(self) -> None:
        self.is_live = False
        self._mirror.doubt()

    async def _receive(self, frames: Sequence[bytes]) -> None:
        """A message: topic, number, batch. What is missing before it is asked for."""
        if len(frames) != 3 or len(frames[1]) != 8:
            self._counts["nonsense"] += 1
            return
        number = int.from_bytes(frames[1], "big")
        if self._last is not None and number <= self._last:
            if number <= self._replayed:
                return
            # It counts anew, so it is another engine.
            self._last, self._replayed = None, -1
        expected = 0 if self._last is None else self._last + 1
        if number > expected:
            await self._replay(expected, number)
            if self._last == number - 1:
                self._counts["gap_filled"] += 1
            elif self._last is not None:
                self._note_lost()
        self._take(number, frames[2])

    def _note_lost(self) -> None:
        self._counts["gap_lost"] += 1
        self._mirror.doubt()

    def _take(self, number: int, payload: bytes) -> None:
        """The next batch."""
        if self._last is None:
            if number == 0:
                # From its beginning on, so nothing else is there.
                self._mirror.clear()
            else:
                self._mirror.doubt()
        self._last = number
        self._counts["batch"] += 1
        try:
            events, failed = decode_batch(payload)
        except ValueError:
            events, failed = [], 1
        if failed:
            self._counts["nonsense"] += failed
            # Whatever it was, it may have said that something is gone.
            self._mirror.doubt()
        for event in events:
            self._mirror.apply(event)

    async def _replay(self, first: int, before: int | None = None) -> None:
        """Ask for the batches from `first` on, and take those that come in order, up to `before`."""
        if self._config.replay is None or self._context is None:
            return
        with self._context.socket(zmq.DEALER) as socket:
            self._prepare(socket)
            socket.connect(self._config.replay)
            await socket.send_multipart([b"", first.to_bytes(8, "big")])
            for _ in range(_MAX_REPLAYED):
                if not await socket.poll(_REPLAY_SILENCE_S * 1000):
                    _logger.warning("the KV events of backend %s: no answer to a request for replay", self._name)
                    return
                # An empty frame, from newer engines the topic, then number and batch.
                *_, number_bytes, payload = [b"", *await socket.recv_multipart()]
                if not payload or number_bytes == _END or len(number_bytes) != 8:
                    return
                number = int.from_bytes(number_bytes, "big")
                if before is not None and number >= before:
                    return
                if self._last is None or number > self._last:
                    if self._last is not None and number > self._last + 1:
                        self._note_lost()
                    self._take(number, payload)
                await asyncio.sleep(0)

    @staticmethod
    def _prepare(socket: zmq.asyncio.Socket) -> None:
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.MAXMSGSIZE, _MAX_MESSAGE_BYTES)
        socket.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MS)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, _RECONNECT_MAX_MS)
        # A host that has died says nothing, and an engine may have nothing to say: the connection tells them apart.
        socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
        socket.setsockopt(zmq.TCP_KEEPALIVE_IDLE, _KEEPALIVE_S)
        socket.setsockopt(zmq.TCP_KEEPALIVE_INTVL, _KEEPALIVE_S)
        socket.setsockopt(zmq.TCP_KEEPALIVE_CNT, 2)
