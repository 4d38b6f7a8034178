"""How the ways of balancing compare on a real trace: share in SLO and prefix hits, eight simulated replicas, one run.

    python -m tests.benchmarks.policies.routing_trace --trace mooncake_conversation.jsonl.gz --load 0.95

A line of the trace is one request: `t` seconds, `i` and `o` tokens in and out, `h` names of its 512-token blocks. The
replicas are those of an 8B model with chunked prefill of 2,048 tokens, at most 256 answers and 800,000 tokens; step
times are a fit, so figures compare ways of balancing and predict no hardware. Requests of one tick of the trace are
spread over it. Load 1 is what the replicas do with the whole trace waiting. The gateway's own classes decide.
"""

from __future__ import annotations

import argparse
import gzip
import heapq
import json
import statistics
import time
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from policies.pool.balance.by_load import LoadBalancer
from policies.pool.balance.pick import (
    ConsistentHash,
    Latency,
    LeastRequest,
    LeastTokens,
    Picker,
    PickerCounters,
    PowerOfTwo,
    PredictedCost,
)
from policies.pool.balance.share import Share
from policies.pool.health.breaker import CircuitBreaker
from policies.pool.load.demand import Demand
from policies.pool.load.in_flight import InFlightAttempt
from policies.pool.load.match import Match, look_up
from policies.pool.load.replica import Replica
from policies.pool.prompts.prefix_index import PrefixIndex
from policies.pool.settings import CircuitBreakerPolicy
from tests.support.policy.places import Numbered, make_place
from tests.support.policy.pool import StoppedClock

BLOCK, _TICK_S = 512, 3.0
_CHUNK, _MAX_ANSWERS, ROOM = 2048, 256, 800_000
WAYS = ("random", "round_robin", "least_request", "p2c", "least_tokens", "consistent_hash", "latency", "predicted_cost")


@dataclass(slots=True)
class Asked:
    """One request of the trace and what became of it; times are seconds of the simulation."""

    at: float
    tokens: int
    output: int
    blocks: list[int]
    matched: int = 0
    left: int = 0
    first_at: float = 0.0
    ended_at: float = 0.0
    attempt: InFlightAttempt | None = None

    @property
    def is_in_slo(self) -> bool:
        """First token within 2 s and 1 s for each 8k of prompt; 100 ms a token."""
        gap_s = (self.ended_at - self.first_at) / max(1, self.output - 1)
        return self.first_at - self.at <= 2.0 + self.tokens / 8192 and gap_s <= 0.1


@dataclass(slots=True)
class Server:
    """One replica: continuous batching with chunked prefill, and a cache of prompt blocks."""

    slowdown: float = 1.0
    waiting: deque[Asked] = field(default_factory=deque)
    prefilling: deque[Asked] = field(default_factory=deque)
    decoding: list[tuple[int, int, Asked]] = field(default_factory=list)
    cache: OrderedDict[int, None] = field(default_factory=OrderedDict)
    steps: int = 0
    context: int = 0
    held: int = 0
    began_at: float = 0.0
    planned: int = 0
    step_s: float = 0.0
    version: int = 0
    done: list[Asked] = field(default_factory=list)

    def start(self, now: float) -> float | None:
        """Begin the next step, or as many of decoding alone as nothing changes in; when they end, None if idle."""
        while self.waiting and len(self.prefilling) + len(self.decoding) < _MAX_ANSWERS:
            asked = self.waiting[0]
            if self.held and self.held + asked.tokens + asked.output > ROOM:
                break
            self.prefilling.append(self.waiting.popleft())
            self.held += asked.tokens + asked.output
            self._match(asked)
        num_decoding = len(self.decoding)
        if not self.prefilling and not num_decoding:
            self.planned = 0
            return None
        tokens, pairs = num_decoding, 0
        budget = _CHUNK - num_decoding
        self.done = []
        for asked in self.prefilling:
            part = min(asked.left, budget)
            pairs += part * (asked.tokens - asked.left + part // 2)
            asked.left -= part
            budget -= part
            tokens += part
            if asked.left == 0:
                self.done.append(asked)
            if budget <= 0:
                break
        self.planned = 1 if self.prefilling else self.decoding[0][0] - self.steps
        mean_context = self.context + num_decoding * self.planned / 2
        linear_s = max(4.6e-3, 3.0e-3 + 20.1e-6 * tokens)
        answers = num_decoding + len(self.done)
        self.step_s = self.slowdown * (1.5e-3 + linear_s + 0.953e-9 * pairs + 35.4e-9 * mean_context + 6e-6 * answers)
        self.began_at = now
        self.version += 1
        return now + self.planned * self.step_s

    def interrupt(self, now: float) -> float | None:
        """Somebody has come while it decodes: the end of the step it is in, if that is sooner."""
        if self.planned <= 1:
            return None
        self.planned = min(self.planned, int((now - self.began_at) / self.step_s) + 1)
        self.version += 1
        return self.began_at + self.planned * self.step_s

    def finish(self, now: float) -> tuple[list[Asked], list[Asked]]:
        """The steps are over: who has a first token now, and who is answered."""
        self.steps += self.planned
        self.context += self.planned * len(self.decoding)
        ended = []
        while self.decoding and self.decoding[0][0] <= self.steps:
            asked = heapq.heappop(self.decoding)[2]
            self.context -= asked.tokens + asked.output
            ended.append(asked)
        for asked in self.done:
            self.prefilling.remove(asked)
            self._keep(asked)
            asked.first_at = now
            if asked.output > 1:
                heapq.heappush(self.decoding, (self.steps + asked.output - 1, id(asked), asked))
                self.context += asked.tokens + 1
            else:
                ended.append(asked)
        for asked in ended:
            asked.ended_at = now
            self.held -= asked.tokens + asked.output
        return self.done, ended

    def _match(self, asked: Asked) -> None:
        whole = asked.blocks[: asked.tokens // BLOCK]
        depth = next((place for place, block in enumerate(whole) if block not in self.cache), len(whole))
        asked.matched = min(depth * BLOCK, asked.tokens - 1)
        asked.left = asked.tokens - asked.matched

    def _keep(self, asked: Asked) -> None:
        for block in reversed(asked.blocks[: asked.tokens // BLOCK]):
            self.cache[block] = None
            self.cache.move_to_end(block)
        while len(self.cache) * BLOCK > ROOM:
            self.cache.popitem(last=False)


class RandomPick:
    """Any of them: the baseline."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def pick(self, candidates: Sequence[object], match: Match) -> object:
        """Chance."""
        return self._random.choice(candidates)


class InTurn:
    """One after the other: the baseline."""

    def __init__(self) -> None:
        self._turn = -1

    def pick(self, candidates: Sequence[object], match: Match) -> object:
        """The next."""
        self._turn += 1
        return candidates[self._turn % len(candidates)]


@dataclass(slots=True)
class Outcome:
    """What a way of balancing made of the trace."""

    in_slo: float
    hit: float
    first_s: list[float]
    error: float
    last_at: float
    wall_s: float


def read_trace(path: Path, limit: int, seed: int) -> list[Asked]:
    """The requests, those of one tick spread over it. Raises: OSError, KeyError, ValueError for another format."""
    random = Random(seed)
    asked = []
    with gzip.open(path, "rt") as lines:
        for line in lines:
            row = json.loads(line)
            asked.append(Asked(row["t"] + random.random() * _TICK_S, row["i"], max(1, row["o"]), row["h"]))
            if len(asked) == limit:
                break
    return sorted(asked, key=lambda each: each.at)


def play(way: str, trace: list[Asked], *, num_servers: int, slow: int = 0, seed: int = 1) -> Outcome:
    """The trace through one way of balancing."""
    began = time.perf_counter()
    asked = afresh(trace)
    servers = [Server(slowdown=2.0 if place < slow else 1.0) for place in range(num_servers)]
    gateway = Gateway(way, num_servers, ROOM, seed)
    last_at = drive(asked, servers, [gateway], Random(seed))
    replicas = gateway.replicas
    assert all(replica.in_flight.held_tokens == replica.in_flight.requests == 0 for replica in replicas)
    return Outcome(
        in_slo=share_in_slo(asked),
        hit=share_hit(asked),
        first_s=first_tokens_s(asked),
        error=statistics.median(replica.model.error for replica in replicas),
        last_at=last_at,
        wall_s=time.perf_counter() - began,
    )


class Gateway:
    """One gateway's view of the replicas; each has `cache_tokens`, as far as it is told."""

    def __init__(self, way: str, num_servers: int, cache_tokens: int, seed: int) -> None:
        self.index = PrefixIndex()
        self.replicas = [Replica(f"r{place}", cache_tokens, self.index, StoppedClock()) for place in range(num_servers)]
        self.balancer = _balancer(way, self.replicas, Random(seed))


def drive(asked: list[Asked], servers: Sequence[Server], gateways: Sequence[Gateway], random: Random) -> float:
    """Each request to any one of the gateways, and from there to a replica; when the last replica was at work."""
    came_to: dict[int, Gateway] = {}
    events: list[tuple[float, int, int, int]] = [(each.at, -1, place, 0) for place, each in enumerate(asked)]
    heapq.heapify(events)
    last_at = 0.0
    while events:
        now, place, which, version = heapq.heappop(events)
        if place >= 0 and version != servers[place].version:
            continue
        if place < 0:
            each = asked[which]
            gateway = came_to[id(each)] = random.choice(gateways)
            whole = each.tokens // BLOCK
            demand = Demand(
                each.tokens,
                is_stream=True,
                blocks=each.blocks[:whole],
                ends=range(BLOCK, BLOCK * whole + 1, BLOCK),
                key=repr(each.blocks[:4]).encode(),
            )
            match = look_up(demand, gateway.index)
            chosen = gateway.balancer.choose((), match)
            assert chosen is not None
            place = chosen
            each.attempt = gateway.replicas[place].begin(match, now)
            server = servers[place]
            server.waiting.append(each)
            ends_at = server.interrupt(now) if server.planned else server.start(now)
        else:
            server = servers[place]
            begun, ended = server.finish(now)
            for each in begun:
                assert each.attempt is not None
                came_to[id(each)].replicas[place].first_token(each.attempt, now)
            for each in ended:
                assert each.attempt is not None
                came_to[id(each)].replicas[place].finish(each.attempt, each.output, now)
            last_at = now
            ends_at = server.start(now)
        if ends_at is not None:
            heapq.heappush(events, (ends_at, place, 0, servers[place].version))
    return last_at


def afresh(trace: list[Asked], stretch: float = 1.0) -> list[Asked]:
    """The requests, of none of which anything has become; at their times `stretch`."""
    return [Asked(each.at * stretch, each.tokens, each.output, each.blocks) for each in trace]


def share_in_slo(asked: list[Asked]) -> float:
    """Of the requests."""
    return sum(each.is_in_slo for each in asked) / len(asked)


def share_hit(asked: list[Asked]) -> float:
    """Of the prompts' tokens."""
    return sum(each.matched for each in asked) / sum(each.tokens for each in asked)


def first_tokens_s(asked: list[Asked]) -> list[float]:
    """Seconds to the first token, the shortest first."""
    return sorted(each.first_at - each.at for each in asked)


def stretched(trace: list[Asked], load: float, num_servers: int) -> tuple[list[Asked], float]:
    """The trace at so much of what the replicas can do, and what that is, in requests a second."""
    reached = capacity(trace, num_servers)
    offered = len(trace) / max(each.at for each in trace)
    return afresh(trace, offered / (load * reached)), reached


def capacity(trace: list[Asked], num_servers: int) -> float:
    """Requests a second with the whole trace waiting: while the first nine tenths are answered."""
    backlog = [Asked(0.0, each.tokens, each.output, each.blocks) for each in trace]
    servers = [Server(waiting=deque(backlog[place::num_servers])) for place in range(num_servers)]
    ends: list[float] = []
    for server in servers:
        ends_at = server.start(0.0)
        while ends_at is not None:
            ends += [each.ended_at for each in server.finish(ends_at)[1]]
            ends_at = server.start(ends_at)
    ends.sort()
    nine_tenths = len(ends) * 9 // 10
    return nine_tenths / ends[nine_tenths]


def shared_hit(trace: list[Asked], num_servers: int) -> float:
    """Share of prompt tokens that one cache as large as all of them would have held."""
    cache: OrderedDict[int, None] = OrderedDict()
    matched = 0
    for each in trace:
        whole = each.blocks[: each.tokens // BLOCK]
        matched += BLOCK * next((place for place, block in enumerate(whole) if block not in cache), len(whole))
        for block in reversed(whole):
            cache[block] = None
            cache.move_to_end(block)
        while len(cache) * BLOCK > ROOM * num_servers:
            cache.popitem(last=False)
    return matched / sum(each.tokens for each in trace)


def _balancer(way: str, replicas: list[Replica], random: Random) -> Numbered:
    counters = PickerCounters()
    pickers: dict[str, Picker] = {
        "random": RandomPick(random),  # type: ignore[dict-item]  # baselines, less strictly typed
        "round_robin": InTurn(),  # type: ignore[dict-item]
        "least_request": LeastRequest(random),
        "p2c": PowerOfTwo(random),
        "least_tokens": LeastTokens(random),
        "consistent_hash": ConsistentHash(),
        "latency": Latency(random, counters),
        "predicted_cost": PredictedCost(random, counters),
    }
    places = [
        make_place(number, CircuitBreaker(CircuitBreakerPolicy(), StoppedClock()), replica=replica)
        for number, replica in enumerate(replicas)
    ]
    return Numbered(places, LoadBalancer([Share(place, 1, 0) for place in places], pickers[way]))


def main() -> None:
    """Prints one line a way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path, required=True)
    parser.add_argument("--load", type=float, default=0.95)
    parser.add_argument("--servers", type=int, default=8)
    parser.add_argument("--slow", type=int, default=0, help="How many of them run at half speed, unknown to anybody.")
    parser.add_argument("--limit", type=int, default=0, help="Only so many requests.")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    options = parser.parse_args()
    trace = read_trace(options.trace, options.limit, options.seed)
    trace, reached = stretched(trace, options.load, options.servers)
    shared = shared_hit(trace, options.servers)
    print(
        f"{len(trace)} requests, {options.servers} replicas, load 1 = {reached:.2f} requests/s, load {options.load}, "
        f"one shared cache would hit {shared:.3f}"
    )
    print(f"{'way':16} in SLO    hit  of shared  TTFT p50 s  p99 s  model error  run s")
    for way in options.ways:
        got = play(way, trace, num_servers=options.servers, slow=options.slow, seed=options.seed)
        p50, p99 = got.first_s[len(got.first_s) // 2], got.first_s[len(got.first_s) * 99 // 100]
        print(
            f"{way:16} {got.in_slo:6.4f}  {got.hit:5.3f}  {got.hit / shared:9.2f}  {p50:10.2f}  {p99:5.2f}  "
            f"{got.error:11.2f}  {got.wall_s:5.1f}"
        )


if __name__ == "__main__":
    main()
