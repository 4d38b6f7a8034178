"""Backends that come, go and stall behind a whole gateway: probes, slow start, hedges, and the metrics of them."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx

from tests.support.gateway import Gateway, start_gateway
from tests.support.servers.openai_server import Behaviour, OpenAIServer, Received, error

PATH = "/v1/chat/completions"


class Upstream(OpenAIServer):
    """An upstream that says its name, with a health of its own, that stalls as often as it is told."""

    def __init__(self, name: str) -> None:
        super().__init__(Behaviour(text=name))
        self.is_well = True
        self.stalls = 0

    def plan(self, received: Received) -> Behaviour:
        """How one request is answered."""
        planned = super().plan(received)
        if received.path == "/health":
            return Behaviour(body=b"ok") if self.is_well else error(503)
        if self.stalls:
            self.stalls -= 1
            return Behaviour(stall_before_head=True)
        return planned

    def num_probes(self) -> int:
        """How often its health was asked for."""
        return sum(request.path == "/health" for request in self.requests)


def policy(one: Upstream, *more: Upstream, health: str = "", route: str = "") -> str:
    """A route over these upstreams, in turn."""
    names = ["one", "two", "three"][: 1 + len(more)]
    backends = "\n".join(
        f'  {name}: {{type: openai, base_url: "{server.base_url}"{health}}}'
        for name, server in zip(names, (one, *more), strict=True)
    )
    refs = ", ".join(f"{{ref: {name}}}" for name in names)
    return f"""
version: 1
backends:
{backends}
routes:
  - name: all
    match: {{models: ["*"]}}
    backends: [{refs}]
    routing: {{policy: round_robin}}
    {route}
"""


async def ask(client: httpx.AsyncClient, **fields: Any) -> str:
    """Who answers a call."""
    body = {"model": "m", "messages": [{"role": "user", "content": "a b c"}], **fields}
    answer = await client.post(PATH, json=body)
    assert answer.status_code == 200, answer.text
    if fields.get("stream"):
        return next(name for name in ("one", "two") if f'"{name}"' in answer.text)
    said: str = answer.json()["choices"][0]["message"]["content"]
    return said


async def metric_is(gateway: Gateway, name: str, value: float, **labels: str) -> None:
    """Wait until a metric has that value."""
    async with asyncio.timeout(5):
        while (await gateway.metrics()).value(name, **labels) != value:
            await asyncio.sleep(0.02)


async def test_probed_backend_leaves_and_comes_back_without_a_call_failing() -> None:
    """Its health alone takes it out of rotation and brings it back; a reload without `health` ends the asking."""
    health = ", health: {interval: 50ms, timeout: 500ms}"
    async with Upstream("one") as one, Upstream("two") as two:
        one.is_well = False
        text = policy(one, two, health=health, route="circuit_breaker: {slow_start: 0s}")
        async with start_gateway(text) as gateway, httpx.AsyncClient(verify=False, base_url=gateway.url) as client:
            await metric_is(gateway, "slipstream_breaker_open", 1, backend="one")
            while_down = {await ask(client) for _ in range(10)}
            down = await gateway.metrics()
            one.is_well = True
            await metric_is(gateway, "slipstream_breaker_open", 0, backend="one")
            while_up = {await ask(client) for _ in range(10)}
            up = await gateway.metrics()
            assert await gateway.reload(policy(one, two))
            async with asyncio.timeout(5):
                # The policy before is let go of once nothing is in flight on it.
                while True:
                    probes = one.num_probes(), two.num_probes()
                    await asyncio.sleep(0.3)
                    if probes == (one.num_probes(), two.num_probes()):
                        break
            gone = await gateway.metrics()

    assert (while_down, while_up) == ({"two"}, {"one", "two"})
    assert [down.value("slipstream_probe_up", backend=name) for name in ("one", "two")] == [0, 1]
    assert down.value("slipstream_probe_failures_total", backend="one") > 0
    assert down.value("slipstream_ejections_total", backend="one") == 1
    assert up.value("slipstream_probe_up", backend="one") == 1
    assert "slipstream_probe_up{" not in gone.text
    assert {request.method for request in one.requests if request.path == "/health"} == {"GET"}


async def test_backend_without_health_is_never_asked_anything() -> None:
    """Only calls arrive."""
    async with Upstream("one") as one:
        async with (
            start_gateway(policy(one)) as gateway,
            httpx.AsyncClient(verify=False, base_url=gateway.url) as client,
        ):
            await ask(client)
            await asyncio.sleep(0.05)

        assert [request.path for request in one.requests] == [PATH]


async def test_backend_that_a_reload_adds_starts_slowly() -> None:
    """In turn it would get every second call; in its first second it gets a tenth of them."""
    async with Upstream("one") as one, Upstream("two") as two:
        route = "circuit_breaker: {slow_start: 1h}"
        async with (
            start_gateway(policy(one, route=route)) as gateway,
            httpx.AsyncClient(verify=False, base_url=gateway.url) as client,
        ):
            await ask(client)
            assert await gateway.reload(policy(one, two, route=route))
            after = [await ask(client) for _ in range(60)]
            assert await gateway.reload(policy(one, two, route="circuit_breaker: {slow_start: 59m}"))
            later = [await ask(client) for _ in range(20)]

    assert 2 <= after.count("two") <= 4
    assert later.count("two") == 10


async def test_stalled_backend_is_hedged_and_counted() -> None:
    """Once the gateway knows its backends, calls that stall are answered by the other one, and all costs counted."""
    async with Upstream("one") as one, Upstream("two") as two:
        text = policy(one, two, route="hedge: {budget: 0.5, quantile: 0.9}")
        async with (
            start_gateway(text) as gateway,
            httpx.AsyncClient(verify=False, base_url=gateway.url, timeout=10) as client,
        ):
            for _ in range(80):
                await ask(client, stream=True)
            before = await gateway.metrics()
            one.stalls = 1000
            answers = [await ask(client, stream=True) for _ in range(4)]
            after = await gateway.metrics()

    grown = {
        name: after.value(f"slipstream_{name}_total") - before.value(f"slipstream_{name}_total")
        for name in ("hedges", "hedges_won", "hedge_wasted_tokens", "upstream_attempts", "requests")
    }
    assert answers == ["two"] * 4
    assert 2 <= grown["hedges_won"] <= grown["hedges"] <= 4
    assert (grown["requests"], grown["upstream_attempts"]) == (4, 4 + grown["hedges"])
    assert grown["hedge_wasted_tokens"] > 0
    assert after.value("slipstream_backend_in_flight") == 0
    assert after.value("slipstream_breaker_open") == 0


async def test_backend_that_a_reload_takes_out_is_asked_no_more() -> None:
    """Also while an answer of the policy before it is on its way."""
    async with Upstream("one") as one, Upstream("two") as two:
        one.default = Behaviour(stall_after_events=1)
        health = ", health: {path: /health, interval: 20ms}"
        async with start_gateway(policy(one, health=health)) as gateway:
            async with httpx.AsyncClient(base_url=gateway.url, verify=False, timeout=20) as client:
                body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "x"}]}
                async with client.stream("POST", PATH, json=body) as answer:
                    await anext(answer.aiter_raw())
                    assert await gateway.reload(policy(two, health=health))
                    num_asked = one.num_probes()
                    async with asyncio.timeout(10):
                        while two.num_probes() < 20:
                            await asyncio.sleep(0.02)
                    num_asked_since = one.num_probes() - num_asked

    # One may have been on its way.
    assert num_asked_since <= 1
