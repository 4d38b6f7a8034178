"""Faults 1 to 5: streams that are cut, end oddly, begin with an error, stall, or come in odd pieces."""

from __future__ import annotations

import asyncio

from gateway.selftest.answers import chat_pieces
from gateway.selftest.bench import Bench, ask_way
from gateway.selftest.check import Check
from gateway.selftest.client import Answer
from gateway.selftest.upstream import Lie
from gateway.selftest.verdict import Outcome, failed, passed

_AT_ONCE = 10
_WORDS = tuple(f"word{number} " for number in range(12))
_TEXT = "".join(_WORDS)


async def cut(bench: Bench) -> Outcome:
    """Cut after k of n events: the client sees that it broke, and nobody gets it from the cache."""
    way = bench.subject.way
    count = bench.count(60, 2000)
    pieces = chat_pieces(_WORDS)
    gate = asyncio.Semaphore(_AT_ONCE)
    silent: list[str] = []
    from_cache: list[str] = []

    async with bench.gateway(bench.policy(way, retry={"attempts": 0}, fallbacks=None)) as child:

        async def once(number: int) -> None:
            text = f"cut {number}"
            async with gate:
                answer = await ask_way(child, way, text, stream=True)
                if not _is_told(answer):
                    silent.append(text)
                if number % 5 == 0:
                    asked = bench.num_asked()
                    again = await ask_way(child, way, text, stream=True)
                    if again.header("x-cache") == "hit" or bench.num_asked() == asked:
                        from_cache.append(text)

        for upstream in bench.all_of(way):
            upstream.plan = lambda asked: Lie(
                pieces=pieces,
                stop_after=bench.random.randrange(1, len(pieces) - 1),
                stop=bench.random.choice(("close", "reset")),
                framing=bench.random.choice(("chunked", "close")),
            )
        await asyncio.gather(*(once(number) for number in range(count)))
    measured = f"{len(silent)} silent of {count}, {len(from_cache)} cached"
    if silent:
        return failed(measured, "a cut stream looked whole to the client", "report it: this is a bug of the gateway")
    if from_cache:
        return failed(measured, "half an answer was served from the cache", "report it: this is a bug of the gateway")
    return passed(measured)


def _is_told(answer: Answer) -> bool:
    """Whether a stream that broke says so, or is whole after all because somebody else went on."""
    if answer.is_done:
        return answer.text() == _TEXT and not answer.tells_error
    return answer.tells_error


CHECKS = (Check("1", "stream cut after k of n tokens: told, not cached", cut),)
