"""A rank above 0 of a divided model, in a process of its own: takes every step that rank 0 tells of, and nothing else.

    rank 0    FollowerSetup               CacheSetup           BatchSizes | Transfers ...    (hangs up)
    follower                True, error?              error?

Started as `python -m backends.engine.step.follower FD`, where FD is its end of a pipe. It ends with the pipe.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from backends.engine.errors import EngineError
from backends.engine.kv.memory import KVCache
from backends.engine.model.decoder import Decoder, load_decoder
from backends.engine.model.rank_group import BatchSizes, RankGroup, receive_batch
from backends.engine.model.shard import Shard, kv_shape
from backends.engine.step.plan import Transfers
from kernels.dispatch import select_ops

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowerSetup:
    """Which rank a follower is, and what it loads: the same as rank 0."""

    rank: int
    count: int
    store: Path
    device: str
    model: Path
    adapter: Path | None
    dtype: torch.dtype | None
    quantization: str | None
    max_positions: int | None
    threads: int | None
    reference_kernels: bool


@dataclass(frozen=True, slots=True)
class CacheSetup:
    """The pages that rank 0 has; a follower has as many, of its own heads."""

    num_pages: int
    host_pages: int
    dtype: torch.dtype


def main(connection: Connection[Any, Any]) -> None:
    """Serves rank 0 until it hangs up."""
    setup: FollowerSetup = connection.recv()
    if setup.threads is not None:
        torch.set_num_threads(setup.threads)
    device = torch.device(setup.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    connection.send(True)
    group = RankGroup(setup.store, setup.rank, setup.count, device)
    shard = Shard(setup.rank, setup.count, group.add_up)
    try:
        decoder = _decoder(setup, shard, device)
        connection.send(None)
        made: CacheSetup = connection.recv()
        cache = KVCache(
            kv_shape(decoder.config, shard), made.num_pages, dtype=made.dtype, device=device, host_pages=made.host_pages
        )
        connection.send(None)
    except (EngineError, torch.OutOfMemoryError, MemoryError) as error:
        connection.send(str(error))
        # Rank 0 may be about to meet this one in the group, and would not learn why if it had left.
        connection.recv()
        return
    with torch.inference_mode():
        while True:
            message: BatchSizes | Transfers = connection.recv()
            if isinstance(message, Transfers):
                cache.transfer(message)
            else:
                decoder.forward(receive_batch(group, message, device), cache.layers)


def _decoder(setup: FollowerSetup, shard: Shard, device: torch.device) -> Decoder:
    return load_decoder(
        setup.model,
        dtype=setup.dtype,
        device=device,
        ops=select_ops(device.type, reference=setup.reference_kernels),
        quantization=setup.quantization,
        adapter=setup.adapter,
        max_positions=setup.max_positions,
        shard=shard,
    )


if __name__ == "__main__":
    # A terminal's ^C and a supervisor's stop reach all processes; rank 0 finishes what is running, then hangs up.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    try:
        main(Connection(int(sys.argv[1])))
    except (EOFError, ConnectionError):
        pass
    except Exception:  # the process's border: rank 0 learns of it by the end of the pipe
        logger.exception("a rank of a divided model stops")
        os._exit(1)
    # Not by the interpreter's way, on which a GPU that still waits for another rank would hold it up.
    os._exit(0)
