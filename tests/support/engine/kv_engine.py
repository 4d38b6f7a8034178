"""An engine's prompt cache as far as a gateway can see it: pages that are stored, found again and evicted, and what is
told of them over ZeroMQ, in every form in which engines have told it. Written from vLLM's documented format."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any, Literal, Self

import msgspec
import zmq
import zmq.asyncio

Form = Literal["array", "map"]
_STORED = (
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
    "lora_name",
    "extra_keys",
)
_FIELDS = {"BlockStored": _STORED, "BlockRemoved": ("block_hashes", "medium"), "AllBlocksCleared": ()}
_END = (-1).to_bytes(8, "big", signed=True)


def encode_event(kind: str, fields: Mapping[str, Any], form: Form = "map") -> Any:
    """One event: a map with its type, or an array that begins with it."""
    if form == "map":
        return {"type": kind, **fields}
    return [kind, *(fields.get(name) for name in _FIELDS[kind])]


def encode_batch(*events: Any, form: Form = "array") -> bytes:
    """A batch of encoded events."""
    whole = {"ts": 1.5, "events": list(events)} if form == "map" else [1.5, list(events), 0]
    return msgspec.msgpack.encode(whole)


class PagedCache:
    """Full pages of prompts, named by a chained hash; the least recently used go first, a prompt's end before its
    beginning. What happens is appended to `events`."""

    def __init__(self, num_pages: int, page_size: int = 4, form: Form = "map") -> None:
        self.page_size = page_size
        self.events: list[Any] = []
        self._num_pages = num_pages
        self._form: Form = form
        self._pages: OrderedDict[bytes, None] = OrderedDict()

    @property
    def num_pages(self) -> int:
        """Pages that are held."""
        return len(self._pages)

    def resize(self, num_pages: int) -> None:
        """There is less room."""
        self._num_pages = num_pages
        self._evict(0, keep=())

    def serve(self, tokens: Sequence[int], salt: str = "", adapter: str = "") -> int:
        """Compute a prompt; how many of its tokens were there."""
        names = self._names(tokens, salt, adapter)
        found = next((place for place, name in enumerate(names) if name not in self._pages), len(names))
        self._evict(len(names) - found, keep=names[:found])
        for name in reversed(names):
            self._pages[name] = None
            self._pages.move_to_end(name)
        if new := names[found:]:
            extra = [adapter] if adapter else []
            keys = [[*extra, salt] if salt and place == 0 else extra or None for place in range(found, len(names))]
            self._tell(
                "BlockStored",
                block_hashes=new,
                parent_block_hash=names[found - 1] if found else None,
                token_ids=list(tokens[found * self.page_size : len(names) * self.page_size]),
                block_size=self.page_size,
                lora_id=1 if adapter else None,
                medium="GPU",
                lora_name=adapter or None,
                extra_keys=keys,
            )
        return found * self.page_size

    def clear(self) -> None:
        """As when the prefix cache is reset."""
        self._pages.clear()
        self._tell("AllBlocksCleared")

    def depth(self, tokens: Sequence[int], salt: str = "", adapter: str = "") -> int:
        """How many of a prompt's first tokens are there."""
        names = self._names(tokens, salt, adapter)
        return self.page_size * next((at for at, name in enumerate(names) if name not in self._pages), len(names))

    def take_events(self) -> list[Any]:
        """What has happened since the last time."""
        taken, self.events = self.events, []
        return taken

    def _evict(self, num_needed: int, keep: Sequence[bytes]) -> None:
        gone = []
        for name in list(self._pages):
            if len(self._pages) + num_needed <= self._num_pages:
                break
            if name not in keep:
                del self._pages[name]
                gone.append(name)
        if gone:
            self._tell("BlockRemoved", block_hashes=gone, medium="GPU")

    def _names(self, tokens: Sequence[int], salt: str, adapter: str) -> list[bytes]:
        names: list[bytes] = []
        before = f"{salt} {adapter}".encode()
        for begin in range(0, len(tokens) - self.page_size + 1, self.page_size):
            page = repr(tokens[begin : begin + self.page_size]).encode()
            before = blake2b(before + page, digest_size=16).digest()
            names.append(before)
        return names

    def _tell(self, kind: str, **fields: Any) -> None:
        self.events.append(encode_event(kind, fields, self._form))


class Publisher:
    """The engine's two sockets, on ports of their own: PUB for batches, ROUTER for those that somebody has missed."""

    def __init__(self, *, keeps: int = 1000, topic: bytes = b"kv", tells_topic: bool = True) -> None:
        self.endpoint = self.replay = ""
        self.asked: list[int] = []
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=keeps)
        self._topic = topic
        self._tells_topic = tells_topic
        self._next = 0
        self._ports = (0, 0)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Bind: at first to any ports, later to the same ones again."""
        self._context = zmq.asyncio.Context()
        self._pub, self._router = self._context.socket(zmq.XPUB), self._context.socket(zmq.ROUTER)
        self._pub.setsockopt(zmq.XPUB_VERBOSE, 1)
        self._ports = (_bind(self._pub, self._ports[0]), _bind(self._router, self._ports[1]))
        self.endpoint, self.replay = (f"tcp://127.0.0.1:{port}" for port in self._ports)
        self._serving = asyncio.get_running_loop().create_task(self._serve())

    async def stop(self) -> None:
        """Close both, as when the engine dies."""
        self._serving.cancel()
        await asyncio.wait([self._serving])
        self._context.destroy(linger=0)

    async def restart(self) -> None:
        """Another engine in its place: it has told nothing yet."""
        await self.stop()
        self._kept.clear()
        self._next = 0
        await self.start()

    async def wait_subscribed(self) -> None:
        """Until somebody listens."""
        async with asyncio.timeout(5):
            while not (await self._pub.recv()).startswith(b"\1"):
                pass

    async def publish(self, *events: Any, form: Form = "array") -> None:
        """Tell a batch."""
        await self.publish_raw(encode_batch(*events, form=form))

    async def publish_raw(self, payload: bytes) -> None:
        """Tell whatever it is."""
        self._kept.append((self._next, payload))
        await self._pub.send_multipart([self._topic, self._next.to_bytes(8, "big"), payload])
        self._next += 1

    def lose(self, *events: Any) -> None:
        """A batch that nobody gets; it can be asked for as long as it is kept."""
        self._kept.append((self._next, encode_batch(*events)))
        self._next += 1

    async def _serve(self) -> None:
        while True:
            peer, *delimiter, asked = await self._router.recv_multipart()
            first = int.from_bytes(asked, "big")
            self.asked.append(first)
            topic = [self._topic] if self._tells_topic else []
            for number, payload in list(self._kept):
                if number >= first:
                    await self._router.send_multipart([peer, *delimiter, *topic, number.to_bytes(8, "big"), payload])
            await self._router.send_multipart([peer, *delimiter, *([b""] if topic else []), _END, b""])


def _bind(socket: zmq.asyncio.Socket, port: int) -> int:
    if not port:
        return int(socket.bind_to_random_port("tcp://127.0.0.1"))
    socket.bind(f"tcp://127.0.0.1:{port}")
    return port
