"""What a fleet can do at most with a trace, whatever the policy: the measure of load, of SLOs and of prefix hits."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

from backends.errors import ConfigurationError
from backends.simulation.blocks import BlockCache
from backends.simulation.simulated import SimulatedConfig
from backends.simulation.simulated_replica import ReplicaRequest, SimulatedReplica
from gateway.simulate.traces import BLOCK_TOKENS, Trace, TraceRequest

_MAX_WARM_REQUESTS = 20_000


def backlog_rps(fleet: Sequence[SimulatedConfig], trace: Trace) -> float:
    """Requests a second while there is always one waiting: load 1.

    One line for all, first come, first served: a replica takes the next one when it has taken up what it had. The trace
    gets in line over and over, each time with prompts of its own: first until the replicas are surely full, then as
    often again, which is counted. So neither filling the replicas nor their end has a part in it.

    Raises: ConfigurationError where no request fits into any replica.
    """
    replicas = [SimulatedReplica(settings.model()) for settings in fleet]
    num_warm = min(_MAX_WARM_REQUESTS, 2 * sum(settings.max_sequences for settings in fleet))
    line = _Line(trace, max(settings.kv_tokens for settings in fleet), num_warm)
    steps: list[tuple[float, int]] = []

    def feed(index: int, now: float) -> None:
        replica = replicas[index]
        line.feed(replica, now)
        if replica.step_ends_at < math.inf:
            heapq.heappush(steps, (replica.step_ends_at, index))

    for index in range(len(replicas)):
        feed(index, 0.0)
    while steps and not line.is_over:
        at, index = heapq.heappop(steps)
        replicas[index].advance(at)
        feed(index, at)
    return line.rate()


def shared_prefix_hit(fleet: Sequence[SimulatedConfig], trace: Trace) -> float | None:
    """The share of prompt tokens that one cache as large as all replicas' together would have had.

    None where the trace does not say which prompts begin alike.
    """
    if not any(request.blocks for request in trace.requests):
        return None
    cache = BlockCache(
        sum(settings.kv_tokens for settings in fleet), BLOCK_TOKENS, sum(settings.host_kv_tokens for settings in fleet)
    )
    hits = total = 0
    for request in trace.requests:
        blocks = whole_blocks(request, BLOCK_TOKENS)
        lease = cache.acquire(blocks, request.prompt_tokens)
        total += request.prompt_tokens
        if lease is None:
            continue
        hits += min(lease.cached_tokens, request.prompt_tokens - 1)
        cache.publish(lease, blocks[lease.cached_tokens // BLOCK_TOKENS :])
        cache.release(lease)
    return hits / total


def whole_blocks(request: TraceRequest, block_tokens: int) -> Sequence[int]:
    """Ids of a prompt's whole blocks of that size; none where the trace's blocks do not make such."""
    per_block, rest = divmod(block_tokens, BLOCK_TOKENS)
    if rest:
        return ()
    num_whole = min(len(request.blocks) * BLOCK_TOKENS, request.prompt_tokens) // block_tokens
    return request.blocks[per_block - 1 : num_whole * per_block : per_block]


class _Line:
    """The trace's requests, over and over, `num_warm` of them at least before it counts."""

    def __init__(self, trace: Trace, max_tokens: int, num_warm: int) -> None:
        self._requests = [
            request for request in trace.requests if request.prompt_tokens + request.output_tokens <= max_tokens
        ]
        if not self._requests:
            raise ConfigurationError(f"{trace.name}: no replica has room for even one of the requests")
        self._place = 0
        self._warm_passes = max(1, -(-num_warm // len(self._requests)))
        self._passes_at: list[float] = []

    @property
    def is_over(self) -> bool:
        """Everything has been taken."""
        return len(self._passes_at) == 2 * self._warm_passes

    def rate(self) -> float:
        """Requests taken a second, after the first ones; when it is over."""
        passed_s = self._passes_at[-1] - self._passes_at[self._warm_passes - 1]
        return self._warm_passes * len(self._requests) / passed_s

    def feed(self, replica: SimulatedReplica, now: float) -> None:
        """Hand out requests until the replica has one that it cannot take up at once."""
        while not replica.num_waiting and not self.is_over:
            request = self._requests[self._place]
            blocks = whole_blocks(request, replica.cache.block_tokens)
            if self._passes_at:
                blocks = [block + (len(self._passes_at) << 64) for block in blocks]
            work = ReplicaRequest(request.prompt_tokens, request.output_tokens, blocks, request.cached_tokens)
            if replica.fits(work):
                replica.submit(work, now)
            self._place += 1
            if self._place == len(self._requests):
                self._place = 0
                self._passes_at.append(now)
