"""`slipstream serve` in a new user's first minute: what it says works, and what it refuses it explains."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import pytest

from gateway.cli.greeting import EMBEDDED, TRIAL, TRIAL_PROMPTS, first_listed_model, greeting
from gateway.cli.loading import read_policy
from gateway.cli.ready_made import PolicyOrigin, has_embedded_models, model_name, ready_made_policy
from gateway.settings import Settings
from tests.support.cli import Run
from tests.support.gateway import Gateway, gateway_process, start_gateway
from tests.support.http_client import HttpClient, chat_body, request_bytes
from tests.support.servers.openai_server import Behaviour, OpenAIServer, error

WITH_KEY = """\
version: 1
backends: {local: {type: scripted}}
keys: [{name: dev, key: "env:FIRST_KEY"}]
routes: [{name: all, match: {models: ["*", "it's-me"]}, backends: [{ref: local}]}]
"""


async def try_it(gateway: Gateway, environ: Mapping[str, str] | None = None) -> str:
    """Run the curl line that the gateway printed, as a user would paste it: what it answers."""
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    line = gateway.stderr.partition("Try it:\n")[2]
    shell = await asyncio.create_subprocess_exec(
        *("sh", "-c", line.strip().replace("curl ", "curl -s ", 1)), env={"PATH": "/usr/bin:/bin", **(environ or {})},
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    output, _ = await asyncio.wait_for(shell.communicate(), 10)
    return output.decode()


async def test_serve_without_anything_prints_a_line_that_works() -> None:
    """With neither file nor upstream the small test models answer, or else a scripted backend; it says which."""
    async with start_gateway(None) as gateway:
        answer = await try_it(gateway)

        assert answer.startswith("data: ")
        assert answer.endswith("data: [DONE]\n\n")
        assert ("Two small test models" if has_embedded_models() else "No upstream is named") in gateway.stderr
        assert "warning" not in gateway.stderr


@pytest.mark.skipif(not has_embedded_models(), reason="the engine is not installed")
async def test_serve_without_anything_prints_prompts_that_its_models_answer() -> None:
    """Whoever copies one of them gets a right answer from the test model, without setting anything else."""
    right = dict(zip(TRIAL_PROMPTS, ("42", "10, 20, 30", "gateway"), strict=True))
    answers = {}
    async with start_gateway(None) as gateway:
        line = next(line for line in gateway.stderr.splitlines() if "They answer these" in line)
        assert all(f'"{prompt}"' in line for prompt in right)
        client = await HttpClient.open(gateway.port)
        for prompt in right:
            body = chat_body(prompt, model="slipstream-target")
            client.send(request_bytes("/v1/chat/completions", body))
            answer = await client.answer(timeout_s=30)
            answers[prompt] = json.loads(bytes(answer.body))["choices"][0]["message"]["content"]
        client.close()

    assert {prompt: right[prompt] in answers[prompt] for prompt in right} == dict.fromkeys(right, True), answers


@pytest.mark.skipif(not has_embedded_models(), reason="the engine is not installed")
async def test_serve_without_anything_takes_little_memory() -> None:
    """Models of 11 MB are given the room that they need, not what a machine has to spare; PyTorch is most of it."""
    async with start_gateway(None) as gateway:
        await try_it(gateway)
        taken_mib = gateway.rss_mib()

    assert taken_mib < 450


@pytest.mark.skipif(not has_embedded_models(), reason="the engine is not installed")
async def test_serve_lets_threads_of_models_sleep_while_they_wait() -> None:
    """OpenMP's threads would spin at each barrier, which stops a model beside a busy neighbour."""
    async with start_gateway(None, environ={"OMP_DISPLAY_ENV": "TRUE"}) as gateway:
        told = gateway.stderr

    if "OPENMP DISPLAY ENVIRONMENT BEGIN" not in told:
        pytest.skip("PyTorch has another OpenMP than GNU's")
    assert "OMP_WAIT_POLICY = 'PASSIVE'" in told


async def test_serve_with_a_file_prints_a_line_with_its_key() -> None:
    """The line takes the key from where the policy takes it, and asks for a model that the policy names."""
    async with start_gateway(WITH_KEY, environ={"FIRST_KEY": "sk-first"}) as gateway:
        answer = await try_it(gateway, {"FIRST_KEY": "sk-first"})

        assert answer.endswith("data: [DONE]\n\n")
        assert '"model":"it\'s-me"' in answer
        assert "sk-first" not in gateway.stderr


async def test_serve_with_an_upstream_asks_it_for_a_model(openai_server: OpenAIServer) -> None:
    """The line names a model that the upstream has, so that it works; the upstream gets its key."""
    async with start_gateway(
        None, args=["--upstream", openai_server.base_url], environ={"UPSTREAM_KEY": "sk-up"}
    ) as gateway:
        answer = await try_it(gateway)

        assert answer.endswith("data: [DONE]\n\n")
        assert [request.header("authorization") for request in openai_server.requests] == ["Bearer sk-up"] * 2
        assert "warning" not in gateway.stderr


@pytest.mark.parametrize(
    ("behaviour", "said"),
    [
        (error(404), "answers with status 404; such an address usually ends in /v1"),
        (error(401), "answers with status 401; set UPSTREAM_KEY to its key"),
        (error(500), "answers with status 500"),
        (Behaviour(body=b"<html>"), "lists no model; is this an OpenAI-compatible server?"),
        (Behaviour(body=b'{"data": []}'), "lists no model; is this an OpenAI-compatible server?"),
    ],
    ids=["404", "401", "500", "html", "empty"],
)
async def test_ask_model_of_a_doubtful_upstream_is_a_warning(
    openai_server: OpenAIServer, behaviour: Behaviour, said: str
) -> None:
    """What an upstream says to a first question is passed on with a hint."""
    openai_server.next(behaviour)

    answer = await asyncio.to_thread(first_listed_model, openai_server.base_url, "")

    assert answer == (None, [f"{openai_server.base_url}/models {said}"])


async def test_serve_with_an_upstream_that_is_down_starts_with_a_warning() -> None:
    """An upstream may come up later than the gateway."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        upstream = f"http://127.0.0.1:{closed.getsockname()[1]}/v1"
        async with start_gateway(None, args=["--upstream", upstream]) as gateway:
            assert f"warning: {upstream}/models does not answer yet: " in gateway.stderr


async def test_serve_warns_of_variables_that_are_no_settings() -> None:
    """A misspelt setting would otherwise go unnoticed."""
    async with start_gateway(None, environ={"SLIPSTREAM_WORKRS": "3"}) as gateway:
        assert "SLIPSTREAM_WORKRS is not a setting and is ignored. Did you mean SLIPSTREAM_WORKERS?" in gateway.stderr


@pytest.mark.parametrize(
    ("source", "said"),
    [(TRIAL, "pip install 'slipstream-gateway[engine]'"), (EMBEDDED, "nothing that could be relied on")],
)
def test_greeting_says_what_answers(source: str, said: str, policy: Path) -> None:
    """Whoever tries it out is told what they talk to, and how to get something better."""
    loaded = read_policy(policy, no_env=True)

    lines = greeting(Settings(), loaded, source, 8080, "m", "")

    assert said in lines
    assert "slipstream serve --" in lines


def test_ready_made_policy_serves_a_folder_under_its_name(tmp_path: Path) -> None:
    """The options of the command line become a backend, and the folder's name is the model's."""
    settings = {"model": str(tmp_path), "quantization": "int8", "device": "cpu"}

    with ready_made_policy(PolicyOrigin(model=settings), has_key=False) as path:
        loaded = read_policy(path, no_env=True)

    kind, config = loaded.backends["model"]
    assert (kind, config.model_dump(include=set(settings))) == ("engine", settings)
    assert loaded.policy.routes[0].match.models == (model_name(str(tmp_path)),) == (tmp_path.name,)
    assert not path.exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--draft", "x"], "--draft needs --model"),
        (["--device", "cpu"], "--device needs --model"),
        (["--model", "x", "--upstream", "http://127.0.0.1:1/v1"], "give --upstream or --model, not both"),
        (["--model", "x", "--quantization", "int3"], "'int3' is not one of"),
    ],
)
def test_serve_refuses_options_that_do_not_go_together(run: Run, arguments: list[str], said: str) -> None:
    """What would be ignored is a mistake."""
    result = run("serve", *arguments)

    assert result.exit_code == 2
    assert said in result.stderr


@pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed")
async def test_serve_names_the_option_with_a_folder_that_is_not_there(tmp_path: Path) -> None:
    """The option is wrong, not the file that is made up for it; and nothing of Python's is shown."""
    async with asyncio.timeout(15):
        with gateway_process(None, args=["--model", str(tmp_path / "nowhere")]) as gateway:
            assert await gateway.wait_exit() == 2

            assert f'--model: there is no folder "{tmp_path / "nowhere"}"' in gateway.stderr
            assert "Traceback" not in gateway.stderr


@pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed")
@pytest.mark.parametrize("workers", ["1", "2"])
async def test_serve_ends_where_a_model_cannot_be_loaded(tmp_path: Path, workers: str) -> None:
    """What is wrong with a folder is found when it is opened; it ends the start with its name, and no greeting."""
    with gateway_process(None, args=["--model", str(tmp_path), "--workers", workers]) as gateway:
        assert await gateway.wait_exit(timeout_s=60) == 1

        assert "backends.model: " in gateway.stderr
        assert str(tmp_path) in gateway.stderr
        assert "Traceback" not in gateway.stderr
        assert "listens on" not in gateway.stderr


def test_serve_refuses_an_upstream_that_is_no_url(run: Run) -> None:
    """The option is named, not the file that is made up for it."""
    result = run("serve", "--upstream", "127.0.0.1:8000/v1")

    assert result.exit_code == 2
    assert '--upstream: "127.0.0.1:8000/v1" - must be a URL' in result.stderr
    assert ".yaml" not in result.stderr


def test_serve_refuses_itself_as_its_upstream(run: Run) -> None:
    """A server on the gateway's own port would answer itself in a circle; llama.cpp has the same default port."""
    result = run("serve", "--upstream", "http://localhost:8080/v1")

    assert result.exit_code == 2
    assert "give it another --port" in result.stderr


def test_serve_refuses_a_file_and_an_upstream(run: Run, policy: Path) -> None:
    """Neither is ignored in silence, wherever the file is named."""
    by_argument = run("serve", policy, "--upstream", "http://127.0.0.1:1/v1")
    by_variable = run("serve", "--upstream", "http://127.0.0.1:1/v1", environ={"SLIPSTREAM_POLICY": str(policy)})

    assert (by_argument.exit_code, by_variable.exit_code) == (2, 2)
    assert "or --upstream, not both" in by_argument.stderr
    assert "or --upstream, not both" in by_variable.stderr


@pytest.mark.parametrize("arguments", [[], ["--upstream", "http://127.0.0.1:1/v1"]], ids=["trial", "upstream"])
def test_serve_refuses_an_open_door(run: Run, arguments: list[str]) -> None:
    """Without keys it does not listen where others can reach it, and says what to do."""
    result = run("serve", "--host", "0.0.0.0", *arguments)

    assert result.exit_code == 1
    assert "without a policy file there are no `keys`" in result.stderr


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("SLIPSTREAM_PORT", "abc", "SLIPSTREAM_PORT: Input should be a valid integer"),
        ("SLIPSTREAM_MAX_BODY", "12", "SLIPSTREAM_MAX_BODY: a size needs a number and a unit"),
        ("SLIPSTREAM_ACCESS_LOG", "yes", "SLIPSTREAM_ACCESS_LOG: Input should be 'auto', 'json', 'lines' or 'off'"),
    ],
)
def test_serve_refuses_a_bad_setting(run: Run, name: str, value: str, said: str) -> None:
    """A variable with a value that it cannot have ends the start with its name."""
    result = run("serve", environ={name: value})

    assert result.exit_code == 1
    assert said in result.stderr


UNBUILDABLE = """\
version: 1
backends: {up: {type: openai, base_url: "http://127.0.0.1:1/v1", transport: "no.such:thing"}}
routes: [{name: all, match: {models: ["*"]}, backends: [{ref: up}]}]
"""


@pytest.mark.parametrize("workers", ["1", "2"])
async def test_serve_refuses_what_it_cannot_build_without_a_traceback(workers: str) -> None:
    """What is found wrong only when things are built is explained like any other mistake, by workers too."""
    with gateway_process(UNBUILDABLE, args=["--workers", workers]) as gateway:
        assert await gateway.wait_exit() == 1

        assert """backends.up.transport: "no.such:thing" cannot be imported: No module named 'no'""" in gateway.stderr
        assert "Traceback" not in gateway.stderr


@pytest.mark.parametrize("target", ["no_such_module:report", "json:no_such", "json:__name__", "json"])
async def test_error_hook_that_is_none_is_an_error_at_the_start(target: str) -> None:
    """Which says what was asked for."""
    route = "{name: r, match: {models: ['*']}, backends: [{ref: up}]}"
    policy = f"{{version: 1, backends: {{up: {{type: scripted}}}}, routes: [{route}]}}"
    with gateway_process(policy, environ={"SLIPSTREAM_ERROR_HOOK": target}) as gateway:
        assert await gateway.wait_exit() == 1

        assert "SLIPSTREAM_ERROR_HOOK" in gateway.stderr
        assert "Traceback" not in gateway.stderr
