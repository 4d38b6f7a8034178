"""Faults 7 to 9: upstreams that are full, that are not there, and that die under load."""

from __future__ import annotations

import time
from typing import Any

from gateway.selftest.answers import chat_pieces
from gateway.selftest.bench import Bench, ask_way, at_once
from gateway.selftest.check import Check
from gateway.selftest.client import ReceivedAnswer
from gateway.selftest.upstream import Lie
from gateway.selftest.verdict import CheckOutcome, failed, partial, passed, skipped

_BUG = "report it: this is a bug of the gateway, not of your policy"
_RETRY_AFTER = (
    ("retry-after", "1"),
    ("retry-after", "Wed, 21 Oct 2099 07:28:00 GMT"),
    ("retry-after", "1000000000"),
    ("retry-after", "-5"),
    ("retry-after", "soon"),
    ("retry-after", "9" * 400),
    ("retry-after-ms", "250"),
)
_MOST_RETRIES = 0.2
_FREE_RETRIES, _FREE_RETRIES_PER_S = 10, 3
"""What the smallest route may always spend."""


async def full(bench: Bench) -> CheckOutcome:
    """429 with whatever Retry-After: told to the client, no storm of retries, and over when the upstream is well."""
    way = bench.subject.way
    each = bench.count(8, 60)
    wrong: list[str] = []
    async with bench.gateway(bench.policy(way, fallbacks=None, admission=None)) as child:
        began = time.monotonic()
        for header in _RETRY_AFTER:
            for upstream in bench.own.values():
                upstream.usual = Lie(status=429, headers=(header,))

            async def once(number: int, header: tuple[str, str] = header) -> None:
                answer = await ask_way(child, way, f"full {header[1][:40]} {number}")
                if answer.status not in (429, 503) or answer.error() is None:
                    wrong.append(f"{header[1][:20]}: {answer.status}")

            await at_once(each, [once(number) for number in range(each)])
        num_calls = each * len(_RETRY_AFTER)
        extra = bench.num_requests() - num_calls
        free = _FREE_RETRIES + _FREE_RETRIES_PER_S * (time.monotonic() - began)
        for upstream in bench.own.values():
            upstream.forget()
        after = await ask_way(child, way, "full no more")
    measured = f"{extra} extra for {num_calls}, {min(extra, free):.0f} of them free"
    if wrong:
        return failed(measured, f"not answered as a 429: {', '.join(wrong[:3])}", _BUG)
    if not after.is_good:
        return failed(measured, "the route does not come back once its upstream is well again", _BUG)
    if extra > _MOST_RETRIES * num_calls + free:
        return failed(
            measured, "more than 20 % of the calls, and 10 + 3 a second, were sent again", "lower retry.budget_percent"
        )
    return passed(measured)


async def gone(bench: Bench) -> CheckOutcome:
    """Nobody listens, no such name, no TLS, a black hole: the right error within the limits, and a way back."""
    way = bench.subject.way
    total_s = 1.0 if bench.is_quick else 2.0
    limits = {"connect": "500ms", "first_token": "700ms", "stream_idle": "700ms", "total": f"{total_s}s"}
    breaker = {"consecutive_failures": 3, "open_for": "500ms", "slow_start": "0s"}
    late: list[float] = []
    wrong: list[str] = []
    async with bench.upstreams(1) as (hole,):
        hole.usual = Lie(stop_after=-1, stop="stall")
        port = hole.port
        places = {
            "refused": "http://127.0.0.1:1/v1",
            "no such name": "http://nowhere.invalid/v1",
            "no TLS": f"https://127.0.0.1:{port}/v1",
            "black hole": f"http://127.0.0.1:{port}/v1",
        }
        for name, url in places.items():
            policy = bench.policy(way, timeouts=limits, fallbacks=None, hedge=None)
            for backend in bench.own:
                policy["backends"][backend]["base_url"] = url
            async with bench.gateway(policy) as child:
                for stream in (True,) if bench.is_quick else (True, False):
                    began = time.monotonic()
                    answer = await ask_way(child, way, f"gone {name}", stream=stream)
                    late.append(time.monotonic() - began - total_s)
                    if answer.status not in (502, 503, 504) or answer.error() is None:
                        wrong.append(f"{name}: {answer.status}")
    way_back = await _flap(bench, {"circuit_breaker": breaker, "timeouts": limits, "fallbacks": None})
    measured = f"worst {1000 * max(late):+.0f} ms; back in {way_back:.1f} s"
    if wrong:
        return failed(measured, f"not an error of the gateway: {', '.join(wrong)}", _BUG)
    if max(late) > 2.0:
        return failed(measured, "timeouts.total was not kept", _BUG)
    if way_back > 10:
        return failed(measured, "a backend that is well again is not used", "lower circuit_breaker.max_open_for")
    if max(late) > 0.05:
        return partial(measured, "over timeouts.total + 50 ms; is this machine busy?")
    return passed(measured)


async def _flap(bench: Bench, sections: dict[str, Any]) -> float:
    """Seconds from a server's coming back to the first good answer."""
    way = bench.subject.way
    async with bench.gateway(bench.policy(way, **sections)) as child:
        for upstream in bench.own.values():
            await upstream.kill()
        for number in range(8):
            await ask_way(child, way, f"flapping {number}")
        for upstream in bench.own.values():
            await upstream.start()
        began = time.monotonic()
        while time.monotonic() - began < 12:
            if (await ask_way(child, way, f"back {time.monotonic()}")).is_good:
                break
            await bench.sleep(0.05)
    return time.monotonic() - began


async def killed(bench: Bench) -> CheckOutcome:
    """kill -9 of a server under load: only streams that had begun are lost, the others are answered elsewhere."""
    way = bench.subject.way
    if len(set(way.backends)) < 2:
        return skipped("the route has one backend: nobody could take over", "give it a second one")
    seconds = bench.count(2, 6)
    victim = bench.all_of(way)[0]
    calls: list[tuple[float, ReceivedAnswer]] = []
    for upstream in bench.own.values():
        upstream.usual = Lie(pieces=chat_pieces(), pause_s=0.02)
    async with bench.gateway(bench.policy(way, cache=None, circuit_breaker=None)) as child:
        began = time.monotonic()

        async def load(worker: int) -> None:
            while time.monotonic() < began + seconds:
                sent_at_s = time.monotonic() - began
                calls.append((sent_at_s, await ask_way(child, way, f"load {worker} {sent_at_s}", stream=True)))

        async def kill() -> None:
            await bench.sleep(0.4)
            await victim.kill()

        await at_once(9, [kill(), *(load(worker) for worker in range(8))])
    await victim.start()
    bad = [(sent_at_s, answer) for sent_at_s, answer in calls if not answer.is_good]
    unbegun = sum(not answer.text() for _, answer in bad)
    late = sum(sent_at_s > 1.4 for sent_at_s, _ in bad)
    measured = f"{len(bad)} broken, {unbegun} unbegun, {late} after 1 s"
    if any(answer.is_done for _, answer in bad) or any(not answer.tells_error for _, answer in bad):
        return failed(measured, "a broken stream looked whole", _BUG)
    if late:
        return failed(measured, "the dead server was still asked a second later", "see circuit_breaker and retry.on")
    if unbegun:
        remedy = "add upstream_cut to retry.on: a call that had reached the dead server may be paid twice then"
        return partial(measured, "calls failed of which nothing had been answered yet", remedy)
    return passed(measured)


CHECKS = (
    Check("7", "429 with any Retry-After: told, no retry storm", full),
    Check("8", "nobody there, no name, no TLS, a black hole", gone, is_timed=True),
    Check("9", "kill -9 of a server under load", killed),
)
