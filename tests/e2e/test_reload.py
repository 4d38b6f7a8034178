"""A changed policy file takes over whole, or not at all, and no call notices more than it should."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.gateway import Gateway, gateway_process, running_gateway, start_gateway
from tests.support.plugin import plugin
from tests.support.servers.openai_server import Behaviour, OpenAIServer

PATH = "/v1/chat/completions"
POLICY = """
version: 1
backends: {{up: {{type: openai, base_url: "{url}"}}}}
routes:
  - {{name: all, match: {{models: ["*"]}}, backends: [{{ref: up, model: {model}}}]}}
"""


def chat(**fields: Any) -> dict[str, Any]:
    """A call."""
    return {"model": "m", "messages": [{"role": "user", "content": "a b c d"}], **fields}


@pytest.fixture
async def gateway(openai_server: OpenAIServer) -> AsyncIterator[Gateway]:
    """A gateway that asks its upstream for the model `one`."""
    async with start_gateway(POLICY.format(url=openai_server.base_url, model="one")) as gateway:
        yield gateway


@pytest.fixture
async def client(gateway: Gateway) -> AsyncIterator[httpx.AsyncClient]:
    """A client of it."""
    async with httpx.AsyncClient(base_url=gateway.url, verify=False, timeout=20) as client:
        yield client


async def test_change_of_the_file_is_taken_over(
    gateway: Gateway, client: httpx.AsyncClient, openai_server: OpenAIServer
) -> None:
    """Without a signal: the file is looked at, and the new revision is in the log and the metrics."""
    await client.post(PATH, json=chat())
    gateway.write_policy(POLICY.format(url=openai_server.base_url, model="two"))
    revision = (await gateway.wait_stderr(r"policy revision (\w+) is in force"))[1]
    await client.post(PATH, json=chat())
    metrics = await gateway.metrics()

    assert [request.json()["model"] for request in openai_server.requests] == ["one", "two"]
    assert metrics.value("slipstream_policy_info", revision=revision) == 1
    assert metrics.value("slipstream_policy_info") == 1
    assert metrics.value("slipstream_policy_reloads_total", outcome="applied") == 1
    assert openai_server.connections_opened == 1


async def test_sighup_reads_the_file_at_once(
    gateway: Gateway, client: httpx.AsyncClient, openai_server: OpenAIServer
) -> None:
    """Also where nothing changed: then the same revision stays in force."""
    since = len(gateway.stderr)
    gateway.process.send_signal(signal.SIGHUP)
    await gateway.wait_stderr("is in force", since)

    assert await gateway.reload(POLICY.format(url=openai_server.base_url, model="two"))
    await client.post(PATH, json=chat())

    assert openai_server.requests[0].json()["model"] == "two"


OWN = """
version: 1
backends: {own: {type: scripted}}
routes: [{name: all, match: {models: ["*"]}, backends: [{ref: own}]}]
"""
BAD = {
    "half": ("version: 1\nbackends: {", "YAML"),
    "empty": ("", "empty"),
    "bad_value": ("version: 1\nbackends: {up: {type: openai, base_url: x}}\nroutes: []", "base_url"),
    "unknown_key": ("version: 1\nrouts: []", "routs"),
    "dangling": (OWN.replace("ref: own", "ref: owm"), "owm"),
    "no_variable": (OWN + "keys: [{name: k, key: 'env:NOT_SET'}]", "NOT_SET"),
    "transport": (OWN.replace("scripted", 'openai, base_url: "http://x", transport: "no_such:thing"'), "no_such"),
    "transport_fails": (OWN.replace("scripted", 'openai, base_url: "http://x", transport: "math:sqrt"'), "math:sqrt"),
    "header": (OWN.replace("scripted", 'openai, base_url: "http://x", headers: {x-team: "a\u2026"}'), "x-team"),
    "scheme": (OWN.replace("scripted", 'openai, base_url: "http://x", auth_scheme: "\u201c"'), "auth_scheme"),
    "key": (OWN.replace("scripted", 'openai, base_url: "http://x", api_key: "env:CURLY"'), "no header can carry"),
    "anthropic_key": (OWN.replace("scripted", 'anthropic, api_key: "env:CURLY"'), "no header can carry"),
    "store": (OWN + "stores: {memory: {max_size: 2MiB}}", "stores"),
}


@pytest.fixture(scope="module")
def steady() -> Iterator[Gateway]:
    """A gateway that answers by itself."""
    with running_gateway(OWN, environ={"CURLY": "\u201csk-curly-quotes\u201d"}) as gateway:
        yield gateway


@pytest.mark.parametrize(("text", "reason"), BAD.values(), ids=BAD.keys())
async def test_file_that_cannot_be_used_changes_nothing(steady: Gateway, text: str, reason: str) -> None:
    """The last good policy stays, the log says why, the metric counts it; a good file is taken again."""
    since = len(steady.stderr)
    before = await steady.metrics()

    assert not await steady.reload(text)

    await steady.wait_stderr(reason, since)
    async with httpx.AsyncClient(base_url=steady.url, verify=False) as client:
        assert (await client.post(PATH, json=chat())).status_code == 200
    after = await steady.metrics()
    name = "slipstream_policy_reloads_total"
    assert after.value(name, outcome="refused") >= before.value(name, outcome="refused") + 1
    assert after.value(name, outcome="applied") == before.value(name, outcome="applied")
    assert "Traceback" not in steady.stderr
    assert "curly" not in steady.stderr
    assert await steady.reload(OWN)


BROKEN_WHERE_ASKED = """
from backends.registry import Kind
from backends.scripted.script import Scripted, ScriptedConfig

class BrokenConfig(ScriptedConfig):
    breaks: str = ""

class Broken(Scripted):
    def __init__(self, name, config, clock):
        if config.breaks == "made":
            raise ZeroDivisionError("made")
        super().__init__(name, ScriptedConfig(), clock)
        self.breaks = config.breaks

    async def open(self):
        if self.breaks == "opened":
            raise ZeroDivisionError("opened")

    async def aclose(self):
        print(self.name, "is closed", file=__import__("sys").stderr, flush=True)
        if self.breaks == "closed":
            raise ZeroDivisionError("closed")

KIND = Kind(config=BrokenConfig, build=Broken)
"""


async def test_backend_that_breaks_stops_neither_reloads_nor_what_is_closed_with_it() -> None:
    """Made or opened: refused, counted, and said with the place. Closed: the others are closed all the same."""
    leaf = "{name}: {{type: mine, breaks: {breaks!r}}}"

    def text(first: str, second: str) -> str:
        leaves = ", ".join([leaf.format(name=f"a{first}", breaks=first), leaf.format(name=f"b{second}", breaks=second)])
        return OWN.replace("own: {type: scripted}", f"own: {{type: scripted}}, {leaves}")

    with plugin(BROKEN_WHERE_ASKED) as environ:
        async with start_gateway(text("closed", "closed"), environ=environ) as gateway:
            assert not await gateway.reload(text("", "made"))
            assert not await gateway.reload(text("", "opened"))
            metrics = await gateway.metrics()
            assert metrics.value("slipstream_policy_reloads_total", outcome="refused") >= 2
            assert metrics.value("slipstream_background_failures_total") == 0
            assert 'backends.bmade: type "mine" cannot be made: ZeroDivisionError: made' in gateway.stderr
            assert 'backends.bopened: type "mine" cannot be opened: ZeroDivisionError: opened' in gateway.stderr
            await gateway.wait_stderr("bopened is closed")
            assert await gateway.reload(OWN)
            await gateway.wait_stderr("bclosed is closed")
            await gateway.wait_stderr("aclosed is closed")
            assert await gateway.terminate() == 0


def _serve_until_it_ends(policy: Path, environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("slipstream")), "serve", str(policy), "--port", "0"]
    return subprocess.run(
        command, env={**os.environ, **environ}, capture_output=True, text=True, check=False, timeout=30
    )


@pytest.mark.parametrize("breaks", ["made", "opened"])
def test_start_names_the_backend_that_breaks(tmp_path: Path, breaks: str) -> None:
    """In one line, with the place in its code, like any other fault of a policy."""
    policy = tmp_path / "policy.yaml"
    policy.write_text(OWN.replace("{type: scripted}", f"{{type: mine, breaks: {breaks}}}"))
    with plugin(BROKEN_WHERE_ASKED) as environ:
        ended = _serve_until_it_ends(policy, environ)

    assert ended.returncode == 1
    assert (
        f'backends.own: type "mine" cannot be {breaks}: ZeroDivisionError: {breaks} (my_backend.py, line'
        in ended.stderr
    )
    assert "Traceback" not in ended.stderr


def test_start_names_the_type_whose_code_cannot_be_read(tmp_path: Path) -> None:
    """Whatever is raised where it is imported."""
    policy = tmp_path / "policy.yaml"
    policy.write_text(OWN.replace("{type: scripted}", "{type: mine}"))
    with plugin("KIND = 1 / 0") as environ:
        ended = _serve_until_it_ends(policy, environ)

    assert ended.returncode == 1
    assert 'backend type "mine" cannot be loaded: ZeroDivisionError: division by zero (my_backend.py, line 1)' in (
        ended.stderr
    )
    assert "Traceback" not in ended.stderr


async def test_file_that_is_gone_changes_nothing(gateway: Gateway, client: httpx.AsyncClient) -> None:
    """A missing file is a bad file."""
    since = len(gateway.stderr)
    gateway.policy.unlink()
    gateway.process.send_signal(signal.SIGHUP)

    await gateway.wait_stderr("not taken over", since)
    assert (await client.post(PATH, json=chat())).status_code == 200


async def test_stream_in_flight_finishes_on_the_old_policy(
    gateway: Gateway, client: httpx.AsyncClient, openai_server: OpenAIServer
) -> None:
    """Its backend, gone from the file, is closed only after the stream is."""
    async with OpenAIServer() as other:
        openai_server.next(Behaviour(event_delay_s=0.03))
        async with client.stream("POST", PATH, json=chat(stream=True)) as answer:
            pieces = answer.aiter_raw()
            received = await anext(pieces)
            assert await gateway.reload(POLICY.format(url=other.base_url, model="two"))
            assert (await client.post(PATH, json=chat())).status_code == 200
            async for piece in pieces:
                received += piece
        async with asyncio.timeout(5):
            while openai_server.connections:
                await asyncio.sleep(0.01)

    assert received.endswith(b"data: [DONE]\n\n")
    assert len(openai_server.requests) == len(other.requests) == 1


async def test_half_written_file_is_left_alone_until_it_is_whole(openai_server: OpenAIServer) -> None:
    """An editor that writes in pieces does not make the gateway complain."""
    text = POLICY.format(url=openai_server.base_url, model="two")
    cuts = range(0, len(text), 20)
    async with start_gateway(OWN, environ={"SLIPSTREAM_RELOAD_INTERVAL": "250ms"}) as gateway:
        with gateway.policy.open("w", encoding="utf-8") as file:
            for at in cuts:
                file.write(text[at : at + 20])
                file.flush()
                await asyncio.sleep(0.04)
        await gateway.wait_stderr("is in force")
        async with httpx.AsyncClient(base_url=gateway.url, verify=False) as client:
            await client.post(PATH, json=chat())

        assert openai_server.requests[0].json()["model"] == "two"
        assert (await gateway.metrics()).value("slipstream_policy_reloads_total", outcome="refused") == 0


async def test_keys_can_be_changed_but_not_taken_away_in_public(openai_server: OpenAIServer) -> None:
    """A reload never opens a door that the start would have refused to open."""
    policy = POLICY.format(url=openai_server.base_url, model="one")
    keyed = policy + 'keys: [{name: k, key: "env:KEY"}]'
    async with start_gateway(
        keyed, environ={"KEY": "sk-0123456789", "NEW": "sk-new"}, args=["--host", "0.0.0.0"]
    ) as own:
        assert not await own.reload(policy)
        assert await own.reload(keyed.replace("env:KEY", "env:NEW"))
        async with httpx.AsyncClient(base_url=own.url, verify=False) as client:
            statuses = [
                (await client.post(PATH, json=chat(), headers={"authorization": f"Bearer {key}"})).status_code
                for key in ("sk-0123456789", "sk-new")
            ]

    assert statuses == [401, 200]


async def test_two_hundred_reloads_under_load_lose_nothing(
    gateway: Gateway, client: httpx.AsyncClient, openai_server: OpenAIServer
) -> None:
    """Every call gets its whole answer while the policy changes under it all the time."""
    is_over = False
    num_answers = 0

    async def keep_asking(stream: bool) -> None:
        nonlocal num_answers
        while not is_over:
            answer = await client.post(PATH, json=chat(stream=stream))
            assert answer.status_code == 200, answer.text
            assert not stream or answer.content.endswith(b"data: [DONE]\n\n")
            num_answers += 1

    async with OpenAIServer() as other:
        servers = (openai_server, other)
        async with asyncio.TaskGroup() as tasks:
            for number in range(4):
                tasks.create_task(keep_asking(number % 2 == 0))
            for number in range(200):
                text = POLICY.format(url=servers[number % 2].base_url, model=f"model-{number}")
                assert await gateway.reload(text)
            is_over = True
        metrics = await gateway.metrics()

        assert metrics.value("slipstream_policy_reloads_total", outcome="refused") == 0
        assert metrics.value("slipstream_policy_reloads_total", outcome="applied") >= 200
        assert metrics.value("slipstream_policy_info") == 1
        assert num_answers >= 50
    assert "Traceback" not in gateway.stderr


async def test_file_that_turns_into_a_pipe_is_refused_and_calls_go_on(
    gateway: Gateway, client: httpx.AsyncClient
) -> None:
    """Nobody writes to it, and nobody waits for that: the revision in force stays, and the next file is taken over."""
    text = gateway.policy.read_text(encoding="utf-8")
    gateway.policy.unlink()
    os.mkfifo(gateway.policy)
    gateway.process.send_signal(signal.SIGHUP)
    await gateway.wait_stderr("is not taken over(?s:.*)it is a pipe with nothing in it")
    during = await client.post(PATH, json=chat())
    taken_over = await gateway.reload(text)

    assert during.status_code == 200
    assert taken_over


async def test_start_with_a_pipe_as_policy_ends_with_a_word() -> None:
    """Instead of waiting for a writer."""
    with tempfile.TemporaryDirectory() as name:
        fifo = f"{name}/policy.yaml"
        os.mkfifo(fifo)
        with gateway_process(None, args=[fifo]) as gateway:
            code = await gateway.wait_exit(10)

            assert code == 1
            assert "it is a pipe with nothing in it" in gateway.stderr


TEAM = "routes: [{{name: {name}, match: {{models: [{name}]}}, backends: [{{ref: own}}]}}]\n"


async def test_included_file_that_changes_or_comes_is_taken_over(openai_server: OpenAIServer) -> None:
    """Also where the one before it was refused: mending it is enough."""
    own = OWN.replace('["*"]', "[main]")
    async with start_gateway(own) as gateway, httpx.AsyncClient(base_url=gateway.url, verify=False) as client:

        async def statuses() -> list[int]:
            return [(await client.post(PATH, json=chat(model=name))).status_code for name in ("main", "blue", "red")]

        assert await statuses() == [200, 404, 404]
        blue, red = gateway.policy.with_name("blue.team"), gateway.policy.with_name("red.team")
        blue.write_text(TEAM.format(name="blue"), encoding="utf-8")
        assert await gateway.reload(own + "include: ['*.team']\n")
        assert await statuses() == [200, 200, 404]

        since = len(gateway.stderr)
        red.write_text("routes: {}", encoding="utf-8")
        await gateway.wait_stderr(r"red\.team:1: routes: \{\} - must be a list", since)
        assert await statuses() == [200, 200, 404]
        since = len(gateway.stderr)
        red.write_text(TEAM.format(name="red"), encoding="utf-8")
        await gateway.wait_stderr("is in force", since)
        assert await statuses() == [200, 200, 200]
        since = len(gateway.stderr)
        blue.unlink()
        await gateway.wait_stderr("is in force", since)
        assert await statuses() == [200, 404, 200]


async def test_route_that_has_not_changed_keeps_its_breaker(openai_server: OpenAIServer) -> None:
    """A change elsewhere does not send calls to a backend that is known to be down."""
    text = POLICY.format(url=openai_server.base_url, model="one")
    breaker = "{consecutive_failures: 1, max_ejection_percent: 100}"
    text = text.replace("model: one}]", f"model: one}}], retry: {{attempts: 0}}, circuit_breaker: {breaker}")
    async with start_gateway(text) as gateway, httpx.AsyncClient(base_url=gateway.url, verify=False) as client:
        openai_server.next(Behaviour(status=500))
        assert (await client.post(PATH, json=chat())).status_code == 500
        other = "  - {name: other, match: {models: [x]}, backends: [{ref: up}]}\n"

        assert await gateway.reload(text + other)
        assert (await client.post(PATH, json=chat())).status_code == 503
        assert await gateway.reload((text + other).replace("model: one", "model: two"))
        assert (await client.post(PATH, json=chat())).status_code == 200


@pytest.mark.timed
async def test_calls_go_on_beside_a_long_reload() -> None:
    """Thousands of routes are read and checked while calls are answered: none waits for a good part of it."""
    routes = "".join(
        f"  - {{name: r{number}, match: {{models: [m{number}]}}, backends: [{{ref: own}}]}}\n" for number in range(2000)
    )
    own = "version: 1\nbackends: {own: {type: scripted}}\nroutes:\n"
    own += "  - {name: all, match: {models: [m]}, backends: [{ref: own}]}\n"
    async with start_gateway(own) as gateway, httpx.AsyncClient(base_url=gateway.url, verify=False) as client:
        await client.post(PATH, json=chat())
        loop = asyncio.get_running_loop()
        began = loop.time()
        reloading = asyncio.create_task(gateway.reload(own + routes))
        waits_s = []
        while not reloading.done():
            before = loop.time()
            assert (await client.post(PATH, json=chat())).status_code == 200
            waits_s.append(loop.time() - before)
        assert await reloading
        assert (await client.post(PATH, json=chat(model="m1999"))).status_code == 200

        assert max(waits_s) < (loop.time() - began) / 3
        assert len(waits_s) > 10
