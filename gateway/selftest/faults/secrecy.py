"""Faults 26 to 28: where requests and secrets may not get to: other hosts, logs, metrics, errors."""

from __future__ import annotations

import json
from collections.abc import Callable

from gateway.selftest.answers import error_body
from gateway.selftest.bench import Bench, GatewayTarget, ask_way, chat, target_of
from gateway.selftest.check import Check
from gateway.selftest.client import Client, request_bytes
from gateway.selftest.run import CHAT
from gateway.selftest.upstream import Lie, ReceivedRequest
from gateway.selftest.verdict import CheckOutcome, failed, passed

_BUG = "report it: this is a bug of the gateway, not of your policy"
_PROMPT_CANARY = "prompt-canary-5f1d"
_ANSWER_CANARY = "answer-canary-77ab"


async def elsewhere(bench: Bench) -> CheckOutcome:
    """Neither a client nor an upstream can send the gateway, or its keys, to another host."""
    way = bench.subject.way
    came_through: list[str] = []
    async with bench.upstreams(1) as (trap,), bench.gateway(bench.policy(way, cache=None)) as child:
        places = [
            trap.url,
            trap.url.replace("127.0.0.1", "[::ffff:127.0.0.1]"),
            trap.url.replace("127.0.0.1", "2130706433"),
        ]
        tries = 0
        for place in places:
            for field in ("api_base", "base_url", "endpoint", "url", "proxy"):
                body = {**chat(f"{field} {place}", way.model), field: place}
                await child.ask(CHAT, body, key=way.secret, headers=way.headers)
                tries += 1
            for name in ("x-base-url", "x-upstream", "x-forwarded-host", "host", "x-original-url", "forwarded"):
                await ask_way(child, way, f"{name} {place}", headers=((name, place.split("/")[2]),))
                tries += 1
            key = (("authorization", f"Bearer {way.secret}"), *way.headers)
            absolute = json.dumps(chat("absolute", way.model)).encode()
            for target in (
                f"{place}/chat/completions",
                f"//{place.split('/')[2]}/v1/chat/completions",
                f"/v1/@{place}",
            ):
                client = await Client.open(child.address)
                client.send(request_bytes(target, absolute, key))
                await client.answer()
                client.close()
                tries += 1
            for status in (301, 302, 307, 308):
                for upstream in bench.own.values():
                    upstream.usual = Lie(status=status, headers=(("location", f"{place}/chat/completions"),), pieces=())
                answer = await ask_way(child, way, f"redirect {status} {place}")
                tries += 1
                if 300 <= answer.status < 400:
                    came_through.append(f"a {status} to {place} is passed on")
            for upstream in bench.own.values():
                upstream.usual = Lie()
        good = await ask_way(child, way, "not elsewhere")
        connections, requests = trap.num_connections, list(trap.requests)
    measured = f"{connections} of {tries} reached another host"
    if any(canary in str(request.headers) for request in requests for canary in bench.subject.canaries):
        return failed(measured, "the upstream's key was sent to another host", _BUG)
    if connections:
        return failed(measured, "a request was sent where the policy does not say", _BUG)
    if came_through:
        return failed(measured, came_through[0], _BUG)
    if not good.is_good:
        return failed(measured, f"but nothing came to its own upstream either: status {good.status}")
    return passed(measured)


async def canaries(bench: Bench) -> CheckOutcome:
    """Secrets, prompts and answers, with errors in every phase: in no log, metric or error."""
    way = bench.subject.way
    found: list[str] = []
    async with bench.gateway(bench.policy(way, cache=None, fallbacks=None, retry={"attempts": 0})) as child:
        upstream_keys = [key for key in bench.subject.canaries if key not in {k.secret for k in bench.subject.keys}]
        said: list[tuple[str, str]] = []
        lies: dict[str, Lie | Callable[[ReceivedRequest], Lie]] = {
            "honest": Lie(),
            "401 that quotes the key": lambda request: _quoting(401, request),
            "400 that quotes the key": lambda request: _quoting(400, request),
            "403 that quotes the key": lambda request: _quoting(403, request),
            "500 that quotes the key": lambda request: _quoting(500, request),
            "header that quotes the key": lambda request: Lie(headers=(("x-debug", _credentials(request)),)),
            "cut": Lie(stop_after=0),
            "no HTTP": Lie(raw=b"nonsense\r\n\r\n"),
            "HTML": Lie(pieces=(_ANSWER_CANARY.encode(),), content_type="text/html"),
            "number of 400 digits": Lie(pieces=(b'{"choices":[],"usage":{"prompt_tokens":' + b"9" * 400 + b"}}",)),
        }
        for name, lie in lies.items():
            for upstream in bench.own.values():
                upstream.plan = lie if callable(lie) else lambda request, lie=lie: lie
            for stream in (False, True):
                answer = await ask_way(child, way, f"{_PROMPT_CANARY} {name}", stream=stream)
                said.append((name, f"{answer.headers} {answer.body.decode('utf-8', 'replace')}"))
        num_requests = bench.num_requests()
        for upstream in bench.own.values():
            await upstream.kill()
        answer = await ask_way(child, way, f"{_PROMPT_CANARY} refused")
        said.append(("refused", f"{answer.headers} {answer.body.decode('utf-8', 'replace')}"))
        ports = [str(upstream.port) for upstream in bench.own.values()]
        if any(f":{port}" in answer.body.decode("utf-8", "replace") for port in ports):
            found.append("an inner address in an error")
        strange = await child.ask(CHAT, chat(_PROMPT_CANARY, way.model), key=f"sk-{_PROMPT_CANARY}")
        said.append(("strange key", strange.body.decode("utf-8", "replace")))
        await bench.sleep(0.4)
        shown = {
            "the access log": child.stdout,
            "standard error": child.stderr,
            "/metrics": (await child.ask("/metrics")).body.decode("utf-8", "replace"),
        }
        for upstream in bench.own.values():
            await upstream.start()
    for place, text in shown.items():
        if _PROMPT_CANARY in text or _ANSWER_CANARY in text or any(key in text for key in bench.subject.canaries):
            found.append(place)
    told = dict.fromkeys(name for name, text in said if any(key in text for key in upstream_keys))
    found += [f"{name}: the client gets it" for name in told]
    measured = f"{len(found)} of {len(lies) + 2 + len(shown)} places"
    if num_requests < len(lies):
        return failed(
            measured, f"its upstream was asked {num_requests} times for {len(lies)} lies: is this route in order?"
        )
    if found:
        return failed(measured, f"a secret or a prompt in: {', '.join(dict.fromkeys(found))}", _BUG)
    return passed(measured)


def _credentials(request: ReceivedRequest) -> str:
    """What the gateway has shown to the upstream."""
    return request.header("authorization") or request.header("x-api-key") or request.header("api-key") or "none"


def _quoting(status: int, request: ReceivedRequest) -> Lie:
    """An error that says which key it was asked with, as careless servers do."""
    return Lie(status=status, pieces=(error_body(f"Incorrect API key provided: {_credentials(request)}"),))


async def administration_own(bench: Bench) -> CheckOutcome:
    """On the copied policy."""
    async with bench.gateway() as child:
        plain = next((key for key in bench.subject.keys if not key.is_admin), None)
        way = bench.subject.way
        target = target_of(child, way, is_quick=bench.is_quick)
        outcome = await administration(target)
        if outcome.verdict.value != "pass" or plain is None:
            return outcome
        answer = await child.ask("/v1/cache/entries", key=plain.secret)
        if answer.status == 200:
            return failed(outcome.measured, "a key without admin: true looks into the cache", _BUG)
    return outcome


async def administration(target: GatewayTarget) -> CheckOutcome:
    """Nobody gets in without a key or with a weak one, nor a web page on a visitor's behalf; names are not markup."""
    if not target.key:
        return await _keyless(target)
    wrong: list[str] = []
    schemes = {
        "no key": (),
        "empty": (("authorization", "Bearer "),),
        "prefix": (("authorization", f"Bearer {target.key[:-1]}"),),
        "longer": (("authorization", f"Bearer {target.key}x"),),
        "Basic": (("authorization", f"Basic {target.key}"),),
        "upper case": (("authorization", f"Bearer {target.key.upper()}"),),
        "two that differ": (("authorization", "Bearer x"), ("authorization", f"Bearer {target.key}")),
        "in a cookie": (("cookie", f"authorization=Bearer {target.key}"),),
    }
    stranger = GatewayTarget(target.address, target.model, "", target.headers)
    for name, headers in schemes.items():
        for path in (CHAT, "/v1/models", "/v1/cache/entries", "/v1/files", "/v1/batches"):
            body = chat("who?", target.model) if path == CHAT else None
            answer = await stranger.ask(path, body, headers=headers)
            if answer.status < 400:
                wrong.append(f"{name} on {path}: {answer.status}")
    markup = "<script>alert(1)</script>"
    answer = await target.ask(CHAT, {"model": markup, "messages": []})
    if "html" in answer.header("content-type"):
        wrong.append("a model's name is answered as HTML")
    tries = len(schemes) * 5 + 1
    measured = f"{len(wrong)} of {tries} got in"
    return failed(measured, "; ".join(wrong[:4]), _BUG) if wrong else passed(measured)


async def _keyless(target: GatewayTarget) -> CheckOutcome:
    """Without keys it is loopback that protects; a web page in a browser here is on loopback too."""
    wrong = []
    page = (("origin", "https://evil.example"), ("content-type", "text/plain"))
    body = json.dumps(chat("on behalf of a visitor", target.model)).encode()
    for name, headers in {"a foreign page": page, "a foreign name": (("host", "evil.example"),)}.items():
        answer = await target.ask(CHAT, body, headers=headers)
        if answer.status < 400:
            wrong.append(name)
    measured = f"{len(wrong)} of 2 got in"
    if wrong:
        return failed(measured, f"without keys, {' and '.join(wrong)} may spend your tokens", "give the policy `keys`")
    return passed(measured, "this policy has no keys: only pages and foreign host names were tried")


CHECKS = (
    Check("26", "other hosts: base URLs, redirects, odd addresses", elsewhere),
    Check("27", "canary secrets: in no log, metric or error", canaries),
    Check("28", "no key, weak keys, foreign pages, markup: denied", administration_own, administration),
)
