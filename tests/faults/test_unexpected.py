"""What nobody has foreseen is one call's 500 in OpenAI's shape, told in the log, whatever endpoint was asked."""

from __future__ import annotations

import struct
from itertools import product
from pathlib import Path

import httpx
import msgspec
import pytest

from backends.operations import BY_PATH
from gateway.api.own_apis import OWN_APIS
from gateway.pages import PATHS
from tests.support.errors import openai_error
from tests.support.gateway import Gateway, start_gateway
from tests.support.plugin import plugin

BROKEN = """
from backends.operations import Operation
from backends.protocol import Capabilities
from backends.registry import Kind
from backends.scripted.script import Scripted, ScriptedConfig

class Broken(Scripted):
    @property
    def capabilities(self):
        return Capabilities(operations=frozenset(Operation))

    async def send(self, call):
        raise RuntimeError("nobody has foreseen this")

KIND = Kind(config=ScriptedConfig, build=Broken)
"""
POLICY = """
version: 1
backends: {broken: {type: mine}}
routes: [{name: all, match: {models: ["*"]}, backends: [{ref: broken}]}]
"""
POLICY_OF_THE_SCRIPTED = POLICY.replace("mine", "scripted")
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
URL = "/v1/chat/completions"
DAMAGED = struct.pack("ii", 40, 0) + struct.pack("i", 12) + b"no metric!!!" + bytes(16)
"""A file of prometheus_client's whose one entry has a name that is no JSON."""


def metrics_files(gateway: Gateway) -> list[Path]:
    """Those that the workers share."""
    pid = gateway.process.pid
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split():
        for entry in Path(f"/proc/{child}/environ").read_bytes().split(b"\0"):
            if entry.startswith(b"PROMETHEUS_MULTIPROC_DIR="):
                return list(Path(entry.partition(b"=")[2].decode()).glob("*.db"))
    raise AssertionError("no worker shares metrics")


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        pytest.param("POST", URL, CHAT, id="an operation"),
        pytest.param("GET", "/v1/models", None, id="an answer of the gateway's own"),
        pytest.param("GET", "/v1/models/m", None, id="one model"),
    ],
)
async def test_every_endpoint_answers_500_in_openais_shape(method: str, path: str, body: object) -> None:
    """The client learns whose fault it is and nothing else; log, metrics and traceback tell the rest."""
    with plugin(BROKEN) as environ:
        async with start_gateway(POLICY, environ=environ) as gateway:
            async with httpx.AsyncClient(base_url=gateway.url, verify=False) as client:
                answer = await client.request(method, path, json=body, headers={"x-request-id": "mine"})
                after = await client.get("/ready")
            line = await gateway.wait_log(lambda line: line["request_id"] == "mine")
            metrics = await gateway.metrics()

            assert "request mine failed inside the gateway" in gateway.stderr
            assert "RuntimeError: nobody has foreseen this" in gateway.stderr
    error = openai_error(answer, 500)
    assert error["code"] == "internal_error"
    assert "foreseen" not in answer.text
    assert answer.headers["x-request-id"] == "mine"
    assert line["status"] == 500
    assert line["error"] == "internal_error"
    assert metrics.value("slipstream_requests_total", status="500") == 1
    assert metrics.value("slipstream_errors_total", code="internal_error") == 1
    assert metrics.value("slipstream_requests_in_flight") == 0
    assert after.status_code == 200


async def test_metrics_that_cannot_be_put_together_are_told_of_as_any_failure() -> None:
    """A file of a worker is damaged: JSON for who asks, the traceback in the log, and the workers go on."""
    async with start_gateway(POLICY_OF_THE_SCRIPTED, args=("--workers", "2")) as gateway:
        async with httpx.AsyncClient(base_url=gateway.url, verify=False, timeout=20) as client:
            for file in metrics_files(gateway):
                file.write_bytes(DAMAGED)
            answer = await client.get("/metrics", headers={"x-request-id": "mine"})
            after = await client.post(URL, json=CHAT)
        line = await gateway.wait_log(lambda line: line["request_id"] == "mine")

        assert "request mine failed inside the gateway" in gateway.stderr
    assert openai_error(answer, 500)["code"] == "internal_error"
    assert answer.headers["x-request-id"] == "mine"
    assert (line["status"], line["error"]) == (500, "internal_error")
    assert after.status_code == 200


async def test_every_path_of_the_api_is_behind_the_door(tmp_path: Path) -> None:
    """Whoever answers it: without a key nobody does, in OpenAI's shape and with a line in the log."""
    policy = f"{POLICY_OF_THE_SCRIPTED}keys: [{{name: k, key: env:KEY}}]\nstores: {{batches: {{folder: {tmp_path}}}}}\n"
    roots = [f"/{api.root}" for api in OWN_APIS]
    paths = [*BY_PATH, *roots, *(f"{root}/below" for root in roots), "/audio/speech", "/anything"]
    async with start_gateway(policy, environ={"KEY": "sk-0123456789abcdef"}) as gateway:
        async with httpx.AsyncClient(base_url=gateway.url, verify=False) as client:
            for number, (path, method) in enumerate(product(paths, ("GET", "POST", "DELETE", "PATCH"))):
                answer = await client.request(method, f"/v1{path}", headers={"x-request-id": f"try-{number}"})
                line = await gateway.wait_log(lambda line, wanted=f"try-{number}": line["request_id"] == wanted)

                assert openai_error(answer, 401)["code"] == "invalid_api_key"
                assert answer.headers["x-request-id"] == f"try-{number}"
                assert line["status"] == 401
            for path in PATHS:
                assert (await client.get(path)).status_code == 200


async def test_line_of_a_batch_is_told_of_as_a_call(tmp_path: Path) -> None:
    """One that fails inside is a 500 in the log like any other call's, and is asked again."""
    policy = f"{POLICY}stores: {{batches: {{folder: {tmp_path}}}}}\n"
    line = msgspec.json.encode({"custom_id": "1", "method": "POST", "url": URL, "body": CHAT})
    with plugin(BROKEN) as environ:
        async with start_gateway(policy, environ=environ) as gateway:
            async with httpx.AsyncClient(base_url=gateway.url, verify=False) as client:
                files = {"file": ("input.jsonl", line)}
                file = (await client.post("/v1/files", files=files, data={"purpose": "batch"})).json()
                fields = {"input_file_id": file["id"], "endpoint": URL, "completion_window": "24h"}
                batch = (await client.post("/v1/batches", json=fields)).json()
            told = await gateway.wait_log(lambda line: line["request_id"].startswith(batch["id"]), count=2)

            assert f"request {told['request_id']} failed inside the gateway" in gateway.stderr
    assert (told["operation"], told["status"], told["error"]) == ("chat", 500, "internal_error")
