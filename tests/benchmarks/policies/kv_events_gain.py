"""What engines' own word of their caches is worth, on a real trace: prefix hits and share in SLO, one gateway or more.

    python -m tests.benchmarks.policies.kv_events_gain --trace mooncake_conversation.jsonl.gz --load 0.95

The replicas and the trace are those of `routing_trace`, balanced by `predicted_cost`. Each request comes to any one of
the gateways, which know of each other's only what the replicas tell, where they do: at once, of each block.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from policies.pool.prompts.prefix_index import PrefixIndex
from tests.benchmarks.policies.routing_trace import (
    BLOCK,
    ROOM,
    Asked,
    Gateway,
    Server,
    afresh,
    drive,
    first_tokens_s,
    read_trace,
    share_hit,
    share_in_slo,
    shared_hit,
    stretched,
)


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
                index.hold(slot, block, BLOCK)
            for block in before.keys() - self.cache.keys():
                index.drop(slot, block)


def main() -> None:
    """Prints one line a case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path, required=True)
    parser.add_argument("--load", type=float, default=0.95)
    parser.add_argument("--servers", type=int, default=8)
    parser.add_argument("--gateways", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--cache-tokens", type=int, default=ROOM, help="What the gateways are told of the caches.")
    parser.add_argument("--limit", type=int, default=0, help="Only so many requests.")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    trace = read_trace(options.trace, options.limit, options.seed)
    trace, _ = stretched(trace, options.load, options.servers)
    print(f"{len(trace)} requests, one shared cache would hit {shared_hit(trace, options.servers):.3f}")
    print("gateways  feed   in SLO    hit  TTFT p99 s")
    for num_gateways in options.gateways:
        for has_feed in (False, True):
            servers = [Telling() for _ in range(options.servers)]
            seeds = range(options.seed, options.seed + num_gateways)
            gateways = [Gateway("predicted_cost", options.servers, options.cache_tokens, seed) for seed in seeds]
            if has_feed:
                for place, server in enumerate(servers):
                    server.listeners = [(gateway.index, gateway.replicas[place].slot) for gateway in gateways]
            asked = afresh(trace)
            drive(asked, servers, gateways, Random(options.seed))
            first_s = first_tokens_s(asked)
            print(
                f"{num_gateways:8}  {'yes' if has_feed else 'no':>4}  {share_in_slo(asked):7.4f}  "
                f"{share_hit(asked):5.3f}  {first_s[len(first_s) * 99 // 100]:10.2f}"
            )


if __name__ == "__main__":
    main()
