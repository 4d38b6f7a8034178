"""Faults 15, 16, 18, 20 and 35: who is served what from the cache, what is never kept, and what it gives away."""

from __future__ import annotations

import asyncio
import json
from random import Random
from typing import Any

from gateway.cli.audit.timing import TimedClient as AuditClient
from gateway.cli.audit.timing import measure_signals
from gateway.selftest.answers import DONE, chat_body, chat_pieces, chunk
from gateway.selftest.bench import Bench, ask_way, at_once, chat
from gateway.selftest.check import Check
from gateway.selftest.client import Address, Client, ReceivedAnswer, request_bytes
from gateway.selftest.run import CHAT
from gateway.selftest.subject import ChatRoute, Key
from gateway.selftest.upstream import Lie
from gateway.selftest.verdict import CheckOutcome, failed, partial, passed, skipped

_BUG = "report it: this is a bug of the gateway, not of your policy"
_NO_CACHE = skipped("no route of this policy has a cache: nothing is shared")
_FORGED = (("x-tenant", "red"), ("x-cache-scope", "global"), ("openai-organization", "red"), ("x-forwarded-for", "::1"))


async def tenants(bench: Bench) -> CheckOutcome:
    """What one tenant has asked is never served to another, whatever headers it sends."""
    found = _two_tenants(bench)
    if isinstance(found, CheckOutcome):
        return found
    way, first, second = found
    count = bench.count(30, 1000)
    leaks: list[str] = []
    async with bench.gateway() as child:

        async def once(number: int) -> None:
            text = f"between tenants {number}"
            headers = (_FORGED[number % len(_FORGED)],)
            await ask_way(child, way, text, key=first, temperature=0)
            answer = await ask_way(child, way, text, key=second, headers=headers, temperature=0)
            if _is_hit(answer):
                leaks.append(text)

        await at_once(8, [once(number) for number in range(count)])
        own = await ask_way(child, way, "between tenants 0", key=first, temperature=0)
    measured = f"{len(leaks)} of {count} served"
    if leaks and way.route.cache is not None and way.route.cache.scope == "global":
        return partial(measured, "scope: global shares answers between tenants, as this policy asks", "scope: tenant")
    if leaks:
        return failed(measured, "one tenant got another's answer", _BUG)
    return passed(measured, "" if _is_hit(own) else "but not even its own tenant was served: the cache does nothing")


async def identity(bench: Bench) -> CheckOutcome:
    """Every field that may change an answer makes another entry, and order of keys or white space does not."""
    way = bench.subject.caching_way()
    if way is None:
        return _NO_CACHE
    wrong: list[str] = []
    async with bench.gateway() as child:

        async def ask(body: bytes, headers: tuple[tuple[str, str], ...] = ()) -> ReceivedAnswer:
            return await child.ask(CHAT, body, key=way.secret, headers=(*way.headers, *headers))

        base = {
            "model": way.model,
            "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "caf\u00e9 1"}],
            "temperature": 0,
        }
        await ask(json.dumps(base).encode())
        same = await ask(json.dumps(dict(reversed(base.items())), indent=2).encode())
        for name, changed in _variants(base).items():
            answer = await ask(json.dumps(changed).encode())
            if _is_hit(answer):
                wrong.append(name)
    count = len(_variants(base))
    measured = f"{len(wrong)} of {count} confused"
    if wrong:
        return failed(measured, f"not part of the cache key: {', '.join(wrong)}", _BUG)
    if not _is_hit(same):
        return partial(measured, "but the same call in other white space was not served from the cache")
    return passed(measured)


def _variants(base: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The same call with one thing changed."""
    system, user = base["messages"]
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    fields: dict[str, object] = {
        "seed": 1,
        "temperature": 0.1,
        "top_p": 0.5,
        "n": 2,
        "max_tokens": 5,
        "stop": ["x"],
        "logprobs": True,
        "presence_penalty": 1,
        "user": "someone",
        "logit_bias": {"1": 5},
        "tools": [tool],
        "tool_choice": "none",
        "response_format": {"type": "json_object"},
        "reasoning_effort": "low",
        "verbosity": "low",
        "top_k": 3,
        "chat_template_kwargs": {"thinking": False},
        "unknown_field": 1,
        "metadata": {"a": "b"},
    }
    variants = {name: {**base, name: value} for name, value in fields.items()}
    conversations = {
        "system prompt": [{**system, "content": "t"}, user],
        "no system prompt": [user],
        "order of messages": [user, system],
        "role": [{**system, "role": "developer"}, user],
        "history": [system, user, {"role": "assistant", "content": "a"}, user],
        "unicode form": [system, {**user, "content": "cafe\u0301 1"}],
        "a number": [system, {**user, "content": "caf\u00e9 2"}],
        "upper case": [system, {**user, "content": "Caf\u00e9 1"}],
        "a blank": [system, {**user, "content": "caf\u00e9 1 "}],
        "image": [system, {**user, "content": [{"type": "text", "text": "caf\u00e9 1"}, image]}],
        "name": [system, {**user, "name": "someone"}],
    }
    return variants | {name: {**base, "messages": messages} for name, messages in conversations.items()}


async def never_kept(bench: Bench) -> CheckOutcome:
    """Errors, cut and filtered answers are asked for again each time."""
    way = bench.subject.caching_way()
    if way is None:
        return _NO_CACHE
    kept: list[str] = []
    half = chat_body(("half",)).replace(b'"finish_reason":"stop"', b'"finish_reason":null')
    lies = {
        "400": Lie(status=400),
        "500": Lie(status=500),
        "filtered": Lie(pieces=(chat_body(("no",), finish_reason="content_filter"),)),
        "unfinished": Lie(pieces=(half,)),
        "error in a 200": Lie(pieces=(b'{"error":{"message":"no","type":"server_error"}}',)),
        "no choices": Lie(pieces=(b'{"choices":[],"usage":{"prompt_tokens":1}}',)),
        "HTML": Lie(pieces=(b"<html>busy</html>",), content_type="text/html"),
        "no-store": Lie(headers=(("cache-control", "no-store"),)),
        "cut body": Lie(pieces=(chat_body()[:50], chat_body()[50:]), framing="length", stop_after=1),
        "filtered stream": Lie(pieces=(chunk({"content": "no"}), chunk({}, "content_filter"), DONE)),
        "cut stream": Lie(pieces=chat_pieces(), stop_after=3),
    }
    async with bench.gateway(bench.policy(way, retry={"attempts": 0}, fallbacks=None)) as child:
        for name, lie in lies.items():
            for _ in range(2):
                for upstream in bench.own.values():
                    upstream.usual = lie
                requests_before = bench.num_requests()
                await ask_way(child, way, f"never kept: {name}", stream="stream" in name, temperature=0)
            if bench.num_requests() == requests_before:
                kept.append(name)
        for upstream in bench.own.values():
            upstream.forget()
        await ask_way(child, way, "kept", temperature=0)
        good = await ask_way(child, way, "kept", temperature=0)
    measured = f"{len(kept)} of {len(lies)} kept"
    if kept:
        return failed(measured, f"served again: {', '.join(kept)}", _BUG)
    if not _is_hit(good):
        return partial(measured, "but good answers were not kept either: the cache does nothing here")
    return passed(measured)


async def together(bench: Bench) -> CheckOutcome:
    """Many identical calls at once are one upstream call, also where the first client leaves or the upstream dies."""
    way = bench.subject.caching_way()
    if way is None:
        return _NO_CACHE
    count = bench.count(100, 1000)
    for upstream in bench.own.values():
        upstream.usual = Lie(pieces=chat_pieces(["word "] * 10), pause_s=0.06)
    async with bench.gateway(bench.policy(way, fallbacks=None)) as child:
        good = await _all_at_once(child.address, way, "together", count)
        calls = bench.num_requests()
        good_without = await _all_at_once(child.address, way, "together, and the first one leaves", count, leaving=True)
        calls_without = bench.num_requests() - calls
        lies = iter((Lie(first_s=0.4, pieces=chat_pieces(), stop_after=0, stop="reset"),))
        for upstream in bench.own.values():
            upstream.plan = lambda request: next(lies, None)
        before = bench.num_requests()
        good_after = await _all_at_once(child.address, way, "together, and the upstream dies", count)
        calls_after = bench.num_requests() - before
    measured = f"{calls} for {count}; first leaves {calls_without}; death {calls_after}"
    if good < count or good_without < count - 1:
        return failed(measured, "callers of a shared answer did not get it whole", _BUG)
    cache = way.route.cache
    if cache is not None and (cache.exact.coalesce == "off" or cache.pacing != "off"):
        return skipped("this policy does not join calls in flight", "cache.exact.coalesce: join_stream")
    if calls > 1 or calls_without > 1 or calls_after > 2:
        return failed(measured, "identical calls were sent several times", _BUG)
    # The call that died was the first client's own.
    if good_after < count - 1:
        return partial(measured, f"{count - good_after} callers were told of the death though they had nothing yet")
    return passed(measured)


async def _all_at_once(address: Address, way: ChatRoute, text: str, count: int, *, leaving: bool = False) -> int:
    """How many of so many identical streams came whole; with `leaving` the first one's client leaves."""
    clients = [await Client.open(address) for _ in range(count)]
    fields = [("authorization", f"Bearer {way.secret}"), *way.headers] if way.secret else list(way.headers)
    request = request_bytes(CHAT, json.dumps(chat(text, way.model, stream=True, temperature=0)).encode(), fields)
    first, *others = clients
    first.send(request)
    if leaving:
        await first.wait_body()
    for client in others:
        client.send(request)
    if leaving:
        await others[-1].wait_body()
        first.reset()
    answers = await asyncio.gather(*(client.answer() for client in clients))
    for client in clients:
        client.close()
    return sum(answer.is_good for answer in answers)


async def timing_probe(bench: Bench) -> CheckOutcome:
    """Another tenant cannot tell from times, dates or headers what was asked before."""
    found = _two_tenants(bench)
    if isinstance(found, CheckOutcome):
        return found
    way, first, second = found
    count = bench.count(40, 300)
    for upstream in bench.own.values():
        upstream.usual = Lie(first_s=0.004)
    async with bench.gateway() as child:
        url = f"http://{child.address.host}:{child.address.port}"
        asking, probing = (AuditClient(url, key.secret, way.model, stream=True) for key in (first, second))
        try:
            signals = await asyncio.to_thread(
                measure_signals, asking, probing, count, Random(1), lambda done, total: None
            )
        finally:
            asking.close()
            probing.close()
    worst = max(signals, key=lambda signal: abs(signal.auc.value - 0.5))
    measured = f"AUC {worst.auc.value:.2f}, {worst.auc.lower:.2f} to {worst.auc.upper:.2f}"
    telling = [signal.name for signal in signals if signal.auc.separates(0.05)]
    if not telling:
        return passed(measured)
    reason = f"tells what another tenant asked: {', '.join(telling)}"
    if way.route.cache is not None and way.route.cache.scope == "global" and way.route.cache.pacing == "off":
        return partial(measured, f"{reason}, as scope: global does", "cache.pacing: recorded, or scope: tenant")
    return failed(measured, reason, "slipstream audit timing shows more")


def _two_tenants(bench: Bench) -> tuple[ChatRoute, Key, Key] | CheckOutcome:
    """The route with a cache and keys of two tenants that it takes; without these, why nothing is tried."""
    way = bench.subject.caching_way()
    if way is None:
        return _NO_CACHE
    keys = way.tenants()
    if len(keys) < 2:
        return skipped("this policy has one tenant", "give keys a `tenant` where callers must not share")
    return way, keys[0], keys[1]


def _is_hit(answer: ReceivedAnswer) -> bool:
    return answer.header("x-cache") in ("hit", "semantic-hit", "semantic")


CHECKS = (
    Check("15", "other tenants, forged headers: never served", tenants),
    Check("16", "any field that changes the answer: another key", identity),
    Check("18", "errors, cut and filtered answers: never cached", never_kept),
    Check("20", "identical calls at once: one upstream call", together, is_timed=True),
    Check("35", "timing probe from another tenant: no signal", timing_probe, is_timed=True),
)
