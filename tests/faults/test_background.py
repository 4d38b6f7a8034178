"""What fails beside the requests costs no request, is counted, and goes on; what cannot go on ends the process."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import httpx

from tests.support.gateway import gateway_process, start_gateway
from tests.support.plugin import plugin

CHAT = "/v1/chat/completions"
FAILURES = "slipstream_background_failures_total"
POLICY = """
version: 1
backends: {broken: {type: mine}, whole: {type: scripted}}
routes:
  - {name: broken, match: {models: [broken]}, backends: [{ref: broken}]}
  - {name: whole, match: {models: [whole]}, backends: [{ref: whole}]}
"""
WHOLE = POLICY.replace("type: mine", "type: scripted")
BROKEN_STATISTICS = """
from backends.registry import Kind
from backends.scripted.script import Scripted, ScriptedConfig

class Poison(BaseException):
    pass

class Broken(Scripted):
    def statistics(self):
        raise ERROR

KIND = Kind(config=ScriptedConfig, build=Broken)
"""
BROKEN_USAGE = """
from backends.protocol import Usage
from backends.registry import Kind
from backends.scripted.script import Scripted, ScriptedConfig

class Broken(Scripted):
    async def send(self, call):
        reply = await super().send(call)
        wrong = -1 if call.body["messages"][0]["content"] == "negative" else 10 ** 400
        call.facts.usage = Usage(prompt_tokens=wrong, completion_tokens=1)
        return reply

KIND = Kind(config=ScriptedConfig, build=Broken)
"""


async def ask(client: httpx.AsyncClient, model: str, content: str = "hello") -> int:
    """One call: its status."""
    answer = await client.post(CHAT, json={"model": model, "messages": [{"role": "user", "content": content}]})
    return answer.status_code


async def test_backend_that_cannot_be_looked_at_is_left_out_of_the_metrics_only() -> None:
    """Its statistics raise at every look: /metrics answers with all the rest, and calls go on, its own too."""
    with plugin(BROKEN_STATISTICS.replace("ERROR", "ValueError('no statistics')")) as environ:
        async with start_gateway(POLICY, environ=environ) as gateway:
            async with httpx.AsyncClient(base_url=gateway.url, verify=False) as client:
                statuses = [await ask(client, model) for model in ("broken", "whole") * 3]
                metrics = [await gateway.metrics() for _ in range(3)][-1]
                statuses.append(await ask(client, "whole"))
                ready = await client.get("/ready")
            code = await gateway.terminate()

            assert gateway.stderr.count("Traceback") == 1, "told once, not at every look"
    assert set(statuses) == {200}
    assert ready.status_code == 200
    assert metrics.value("slipstream_requests_total", status="200") == 6
    assert metrics.value("slipstream_backend_in_flight", backend="whole") == 0
    assert 'backend_in_flight{backend="whole"}' in metrics.text
    assert metrics.value(FAILURES, loop="gauges") >= 3
    assert code == 0


async def test_exchange_that_cannot_be_counted_is_dropped_alone() -> None:
    """Numbers that are none, from a backend of somebody's own: counted as failures, those beside them as ever."""
    with plugin(BROKEN_USAGE) as environ:
        async with start_gateway(POLICY, environ=environ) as gateway:
            async with httpx.AsyncClient(base_url=gateway.url, verify=False) as client:
                first = [await ask(client, "broken", content) for content in ("negative", "endless")]
                first += await asyncio.gather(*(ask(client, "whole") for _ in range(5)))
                metrics = await gateway.metrics()
                await gateway.wait_log(lambda line: line["route"] == "whole", count=5)
                again = [await ask(client, "whole") for _ in range(3)]
                ready = await client.get("/ready")
            later = await gateway.metrics()
            code = await gateway.terminate()

    assert set(first) == set(again) == {200}
    assert ready.status_code == 200
    assert metrics.value("slipstream_requests_total", route="whole") == 5
    assert metrics.value(FAILURES, loop="observer") == 2
    assert later.value("slipstream_requests_total", route="whole") == 8
    assert code == 0


async def test_loop_that_cannot_go_on_ends_the_process() -> None:
    """What is no `Exception` ends a loop for good: the process says so and ends with a code, instead of living half."""
    with (
        plugin(BROKEN_STATISTICS.replace("ERROR", "Poison('for good')")) as environ,
        gateway_process(POLICY, environ=environ) as gateway,
    ):
        code = await gateway.wait_exit()

        assert code == 1
        assert "the gateway cannot go on: gauges has ended with Poison: for good" in gateway.stderr


async def test_access_log_on_a_full_disk_costs_lines_which_are_counted() -> None:
    """Standard output takes nothing: calls are answered, the lost lines are in the metrics, the end is in order."""
    with Path("/dev/full").open("wb") as full:  # noqa: ASYNC230  # takes no time
        async with start_gateway(WHOLE, stdout=full) as gateway:
            async with httpx.AsyncClient(base_url=gateway.url, verify=False) as client:
                statuses = [await ask(client, "whole") for _ in range(3)]
                async with asyncio.timeout(5):
                    while (await gateway.metrics()).value("slipstream_log_lines_dropped_total") < 3:
                        await asyncio.sleep(0.02)
                statuses.append(await ask(client, "whole"))
            code = await gateway.terminate()

            assert gateway.stderr.count("the access log cannot be written") == 1
    assert statuses == [200] * 4
    assert code == 0


async def test_reader_of_the_access_log_that_has_stopped_holds_nothing_up() -> None:
    """Nobody empties the pipe: calls are answered all the same, and SIGTERM still ends the process."""
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb"), os.fdopen(writer, "wb") as pipe:
        async with start_gateway(WHOLE, stdout=pipe) as gateway:
            async with httpx.AsyncClient(base_url=gateway.url, verify=False) as client:
                statuses = [await ask(client, "whole") for _ in range(500)]
            code = await gateway.terminate()

    assert set(statuses) == {200}
    assert code == 0
