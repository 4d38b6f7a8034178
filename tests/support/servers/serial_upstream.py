"""An embedding server that computes one batch after the other, in real time and in a process of its own.

with serial_upstream() as port:
    ...  # POST /v1/embeddings takes 6 ms and 0.35 ms an input

Run as a module it is that process: it prints its port and serves until its standard input ends. Its argument are the
seconds that it answers early: what the machine takes to carry a call there and back, if that is to be part of its time.
"""

from __future__ import annotations

import base64
import json
import socketserver
import subprocess
import sys
import threading
import time
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

FIXED_S = 0.006
EACH_S = 0.00035
_VECTOR = base64.b64encode(array("f", range(384)).tobytes()).decode()
"""384 numbers, in the form that OpenAI's libraries ask for by themselves."""
_SPIN_S = 0.0002
"""What a sleep may be late; the rest of a wait is spent looking at the clock."""


@contextmanager
def serial_upstream(early_s: float = 0.0) -> Iterator[int]:
    """Its port, while it runs."""
    command = [sys.executable, "-m", "tests.support.servers.serial_upstream", str(early_s)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.communicate()


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    request_queue_size = 1024

    def __init__(self, address: tuple[str, int], connection: type[socketserver.BaseRequestHandler]) -> None:
        super().__init__(address, connection)
        self.turn = threading.Lock()
        self.free_at = 0.0
        self._fixed_s = FIXED_S - float(sys.argv[1])

    def compute(self, num_inputs: int, came_at: float) -> None:
        """Wait for the batches before it, then as long as this one takes. Reading and writing are part of that."""
        with self.turn:
            self.free_at = max(came_at, self.free_at) + self._fixed_s + EACH_S * num_inputs
            time.sleep(max(0.0, self.free_at - time.monotonic() - _SPIN_S))
            while time.monotonic() < self.free_at:
                pass


class _Connection(socketserver.StreamRequestHandler):
    disable_nagle_algorithm = True

    def handle(self) -> None:
        assert isinstance(self.server, _Server)
        while self.rfile.readline():
            came_at = time.monotonic()
            length = 0
            while line := self.rfile.readline().strip():
                name, _, value = line.partition(b":")
                if name.lower() == b"content-length":
                    length = int(value)
            asked = json.loads(self.rfile.read(length))
            texts = asked["input"] if isinstance(asked["input"], list) else [asked["input"]]
            body = _answer(asked["model"], len(texts))
            head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
            self.server.compute(len(texts), came_at)
            self.wfile.write(head.encode() + body)


@cache
def _answer(model: str, num_inputs: int) -> bytes:
    data = ",".join(f'{{"object":"embedding","index":{at},"embedding":"{_VECTOR}"}}' for at in range(num_inputs))
    usage = f'{{"prompt_tokens":{5 * num_inputs},"total_tokens":{5 * num_inputs}}}'
    return f'{{"object":"list","data":[{data}],"model":{json.dumps(model)},"usage":{usage}}}'.encode()


def main() -> None:
    """Serve."""
    with _Server(("127.0.0.1", 0), _Connection) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        sys.stdout.write(f"{server.socket.getsockname()[1]}\n")
        sys.stdout.flush()
        sys.stdin.read()


if __name__ == "__main__":
    main()
