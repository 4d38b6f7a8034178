"""A model divided among several devices of one machine, seen from rank 0, which owns scheduler and sampler.

The other ranks are followers (see `follower.py`): of each step they get the batch, compute their share of every layer,
and the results are added up twice a layer. Embedding, norms and output layer are whole on every rank.
"""

from __future__ import annotations

import logging
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from backends.engine.errors import EngineStopped, ModelError
from backends.engine.kv.memory import KVCache, KVShape
from backends.engine.model.config import ModelConfig, check_divisible
from backends.engine.model.decoder import Decoder
from backends.engine.model.rank_group import BatchSizes, RankGroup, send_batch
from backends.engine.model.shard import Shard
from backends.engine.options import EngineOptions
from backends.engine.step.batch import Batch
from backends.engine.step.follower import CacheSetup, FollowerSetup
from backends.engine.step.plan import Transfers
from kernels.paging import PagedKV

logger = logging.getLogger(__name__)

_ENDS_WITHIN_S = 10.0


class Followers:
    """The processes of ranks above 0: begun on construction, ended by `close`, and gone when this process is.

    To be used by one thread, as the decoder is. Raises ModelError where they cannot be started.
    """

    def __init__(self, options: EngineOptions, dtype: torch.dtype | None, device: torch.device) -> None:
        self._count = options.tensor_parallel
        check_divisible(ModelConfig.from_folder(options.model), self._count)
        if device.type == "cuda" and torch.cuda.device_count() < self._count:
            raise ModelError(
                f"tensor_parallel is {self._count}, but there are {torch.cuda.device_count()} GPUs; take as many"
            )
        self._closing = threading.Event()
        self._folder = tempfile.TemporaryDirectory(prefix="slipstream-ranks-")
        self._connections: list[Connection[Any, Any]] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        store = Path(self._folder.name) / "store"
        try:
            for rank in range(1, self._count):
                self._begin(_setup(options, rank, store, dtype, device))
            for rank in range(1, self._count):
                self._receive(rank)
            self.group = RankGroup(store, 0, self._count, device)
        except BaseException:
            self.close()
            raise
        self.shard = Shard(0, self._count, self.group.add_up)
        for process in self._processes:
            threading.Thread(target=self._watch, args=(process,), name="engine rank", daemon=True).start()

    def decoder(self, *arguments: Any, **options: Any) -> Decoder:
        """A decoder that takes the followers along, built as any other."""
        return _LeadingDecoder(*arguments, **options, followers=self)

    def cache(
        self, shape: KVShape, num_pages: int, *, dtype: torch.dtype, device: torch.device, host_pages: int
    ) -> KVCache:
        """The cache of rank 0, of its share (`kv_shape`), once all followers have loaded their weights and made theirs.

        Raises ModelError or OutOfMemory where one cannot.
        """
        self._check()
        self.tell(CacheSetup(num_pages, host_pages, dtype))
        make = partial(_LeadingCache, followers=self)
        cache = make(shape, num_pages, dtype=dtype, device=device, host_pages=host_pages)
        self._check()
        return cache

    def tell(self, message: CacheSetup | BatchSizes | Transfers) -> None:
        """Sends to all. Raises EngineStopped where one has ended."""
        for connection in self._connections:
            try:
                connection.send(message)
            except OSError as error:
                raise self.stopped() from error

    def stopped(self) -> EngineStopped:
        """What to say when a step cannot go on: which rank has ended, if one has."""
        for rank, process in enumerate(self._processes, start=1):
            try:
                code = process.wait(timeout=1.0)
            except subprocess.TimeoutExpired:
                continue
            return EngineStopped(
                f"rank {rank} of {self._count} has ended (exit code {code}), and without it no step can run: start the "
                "engine again"
            )
        return EngineStopped(f"the {self._count} ranks of the model lost touch with each other: start the engine again")

    def close(self) -> None:
        """Ends the followers and waits for them."""
        self._closing.set()
        for connection in self._connections:
            connection.close()
        for process in self._processes:
            try:
                process.wait(timeout=_ENDS_WITHIN_S)
            except subprocess.TimeoutExpired:
                logger.warning("a rank does not end, so it is killed")
                process.kill()
                process.wait()
        self._folder.cleanup()

    def _begin(self, setup: FollowerSetup) -> None:
        ours, theirs = Pipe()
        number = theirs.fileno()
        with theirs:
            self._processes.append(
                subprocess.Popen(
                    [sys.executable, "-m", "backends.engine.step.follower", str(number)],
                    pass_fds=[number],
                    stdin=subprocess.DEVNULL,
                )
            )
        self._connections.append(ours)
        ours.send(setup)

    def _receive(self, rank: int) -> Any:
        try:
            return self._connections[rank - 1].recv()
        except (EOFError, OSError) as error:
            raise self.stopped() from error

    def _check(self) -> None:
        for rank in range(1, self._count):
            problem = self._receive(rank)
            if problem is not None:
                raise ModelError(f"rank {rank} of {self._count}: {problem}")

    def _watch(self, process: subprocess.Popen[bytes]) -> None:
        """A GPU waits for ever for a rank that is gone; gloo notices by itself."""
        process.wait()
        if not self._closing.is_set():
            logger.error("a rank of the model has ended; the engine stops")
            self.group.abort()


class _LeadingDecoder(Decoder):
    """Tells the followers of each step before it takes it."""

    def __init__(self, *arguments: Any, followers: Followers, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._followers = followers

    def forward(self, batch: Batch, kv: Sequence[PagedKV]) -> Tensor:
        """See Decoder. Raises EngineStopped where a rank fails: the others cannot be brought back to this step."""
        self._followers.tell(BatchSizes.of(batch))
        try:
            with torch.inference_mode():
                send_batch(self._followers.group, batch)
            return super().forward(batch, kv)
        except Exception as error:
            raise self._followers.stopped() from error


class _LeadingCache(KVCache):
    """Moves the followers' pages with its own."""

    def __init__(self, *arguments: Any, followers: Followers, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._followers = followers

    def transfer(self, transfers: Transfers) -> None:
        """See KVCache."""
        self._followers.tell(transfers)
        super().transfer(transfers)


def _setup(
    options: EngineOptions, rank: int, store: Path, dtype: torch.dtype | None, device: torch.device
) -> FollowerSetup:
    return FollowerSetup(
        rank=rank,
        count=options.tensor_parallel,
        store=store,
        device=f"cuda:{rank}" if device.type == "cuda" else "cpu",
        model=options.model,
        adapter=options.adapter,
        dtype=dtype,
        quantization=options.quantization,
        max_positions=options.max_context,
        threads=options.threads,
        reference_kernels=options.reference_kernels,
    )
