"""Reading small files that somebody names, such as policies and secrets, without ever waiting for what never comes.

A regular file is read, also through links, as Kubernetes mounts them. A pipe with a writer is too, once, as a shell
gives one for `<(command)`. Directories, devices, sockets and pipes that stay silent are refused.
"""

from __future__ import annotations

import errno
import os
import select
import stat
import time
from pathlib import Path

_MAX_PIPE_S = 10.0
_READ_BYTES = 64 * 1024


def read_plain_file(path: Path, max_bytes: int) -> bytes:
    """What is in it, up to `max_bytes` and one more, by which the caller sees that there is more.

    Raises: OSError; its `strerror` says what is wrong with the file.
    """
    # Without O_NONBLOCK opening a pipe waits for its writer.
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise OSError(errno.ENXIO, "it is a socket, not a file") from error
        raise
    try:
        kind = os.fstat(descriptor).st_mode
        if stat.S_ISFIFO(kind):
            return _read_pipe(descriptor, max_bytes)
        if not stat.S_ISREG(kind):
            raise OSError(errno.EINVAL, f"it is a {'directory' if stat.S_ISDIR(kind) else 'device'}, not a file")
        return _read(descriptor, max_bytes)
    finally:
        os.close(descriptor)


def _read(descriptor: int, max_bytes: int) -> bytes:
    pieces = []
    num_left = max_bytes + 1
    while num_left and (piece := os.read(descriptor, min(num_left, _READ_BYTES))):
        pieces.append(piece)
        num_left -= len(piece)
    return b"".join(pieces)


def _read_pipe(descriptor: int, max_bytes: int) -> bytes:
    give_up_at = time.monotonic() + _MAX_PIPE_S
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    content = b""
    while len(content) <= max_bytes:
        try:
            piece = os.read(descriptor, min(max_bytes + 1 - len(content), _READ_BYTES))
        except BlockingIOError:
            if not poll.poll(max(0.0, give_up_at - time.monotonic()) * 1000):
                raise OSError(errno.EINVAL, f"it is a pipe whose writer is silent for {_MAX_PIPE_S:g} s") from None
            continue
        if not piece:
            break
        content += piece
    if not content:
        raise OSError(
            errno.EINVAL, "it is a pipe with nothing in it; a pipe can be read once only, so save it in a file"
        )
    return content
