"""What engines' own word of their caches is worth, on a real trace: prefix hits and share in SLO, one gateway or more.

    python -m tests.benchmarks.kv_events_gain --trace mooncake_conversation.jsonl.gz --load 0.95

The replicas and the trace are those of `routing_trace`, balanced by `predicted_cost`. Each request comes to any one of
the gateways, which know of each other's only what the replicas tell, where they do: at once, of each block.
"""

from __future__ import annotations

import argparse
import heapq
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from policies.pool.demand import Demand
from policies.pool.load_balance import LoadBalancer
from policies.pool.prefix_index import PrefixIndex
from policies.pool.replica import Replica
from tests.benchmarks.routing_trace import (
    _BLOCK,
    _ROOM,
    Asked,
    Server,
    _balancer,
    capacity,
    read_trace,
    shared_hit,
)
from tests.support.pool import StoppedClock


@dataclass(slots=True)
class Telling(Server):
    """A replica that tells what it keeps; `listeners` are indices with its slot in them."""

    listeners: list[tuple[PrefixIndex, int]] = field(default_factory=list)

    def _keep(self, asked: Asked) -> None:
        before = dict.fromkeys(self.cache) if self.listeners else {}
        # The base class has slots, so that `super()` without arguments is not its.
        Server._keep(self, asked)
        for index, slot in self.listeners:
            for block in self.cache.keys() - before.keys():
                index.hold(slot, block, _BLOCK)
            for block in before.keys() - self.cache.keys():
                index.drop(slot, block)


class Gateway:
    """One gateway's view of the replicas."""

    def __init__(self, num_servers: int, cache_tokens: int, seed: int) -> None:
        self.index = PrefixIndex()
        self.replicas = [Replica(f"r{place}", cache_tokens, self.index, StoppedClock()) for place in range(num_servers)]
        self.balancer: LoadBalancer = _balancer("predicted_cost", self.replicas, self.index, Random(seed))


def play(trace: list[Asked], servers: list[Telling], gateways: list[Gateway], seed: int) -> tuple[float, float, float]:
    """The trace through the gateways: share in SLO, hits as a share of the prompts' tokens, p99 of the first token."""
    random = Random(seed)
    asked = [Asked(each.at, each.tokens, each.output, each.blocks) for each in trace]
    came_to: dict[int, Gateway] = {}
    events: list[tuple[float, int, int, int]] = [(each.at, -1, place, 0) for place, each in enumerate(asked)]
    heapq.heapify(events)
    while events:
        now, place, which, version = heapq.heappop(events)
        if place >= 0 and version != servers[place].version:
            continue
        if place < 0:
            each = asked[which]
            gateway = came_to[id(each)] = random.choice(gateways)
            whole = each.tokens // _BLOCK
            ends = range(_BLOCK, _BLOCK * whole + 1, _BLOCK)
            demand = Demand(each.tokens, is_stream=True, blocks=each.blocks[:whole], ends=ends)
            chosen = gateway.balancer.choose((), demand)
            assert chosen is not None
            place = chosen
            each.trip = gateway.replicas[place].begin(demand, now)
            server = servers[place]
            server.waiting.append(each)
            ends_at = server.interrupt(now) if server.planned else server.start(now)
        else:
            server = servers[place]
            begun, ended = server.finish(now)
            for each in begun:
                assert each.trip is not None
                came_to[id(each)].replicas[place].first_token(each.trip, now)
            for each in ended:
                assert each.trip is not None
                came_to[id(each)].replicas[place].finish(each.trip, each.output, now)
            ends_at = server.start(now)
        if ends_at is not None:
            heapq.heappush(events, (ends_at, place, 0, servers[place].version))
    firsts = sorted(each.first_at - each.at for each in asked)
    return (
        sum(each.is_in_slo for each in asked) / len(asked),
        sum(each.matched for each in asked) / sum(each.tokens for each in asked),
        firsts[len(firsts) * 99 // 100],
    )


def main() -> None:
    """Prints one line a case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path, required=True)
    parser.add_argument("--load", type=float, default=0.95)
    parser.add_argument("--servers", type=int, default=8)
    parser.add_argument("--gateways", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--cache-tokens", type=int, default=_ROOM, help="What the gateways are told of the caches.")
    parser.add_argument("--limit", type=int, default=0, help="Only so many requests.")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    trace = read_trace(options.trace, options.limit, options.seed)
    stretch = len(trace) / max(each.at for each in trace) / (options.load * capacity(trace, options.servers))
    trace = [Asked(each.at * stretch, each.tokens, each.output, each.blocks) for each in trace]
    print(f"{len(trace)} requests, one shared cache would hit {shared_hit(trace, options.servers):.3f}")
    print("gateways  feed   in SLO    hit  TTFT p99 s")
    for num_gateways in options.gateways:
        for has_feed in (False, True):
            servers = [Telling() for _ in range(options.servers)]
            seeds = range(options.seed, options.seed + num_gateways)
            gateways = [Gateway(options.servers, options.cache_tokens, seed) for seed in seeds]
            if has_feed:
                for place, server in enumerate(servers):
                    server.listeners = [(gateway.index, gateway.replicas[place].slot) for gateway in gateways]
            in_slo, hit, p99_s = play(trace, servers, gateways, options.seed)
            print(f"{num_gateways:8}  {'yes' if has_feed else 'no':>4}  {in_slo:7.4f}  {hit:5.3f}  {p99_s:10.2f}")


if __name__ == "__main__":
    main()
