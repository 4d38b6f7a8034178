"""`slipstream chat` with real gateways: answers, what they took and cost, and what goes wrong."""

from __future__ import annotations

import asyncio
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cli import Run
from tests.support.gateway import Gateway, running_gateway
from tests.support.servers.openai_server import Behaviour, OpenAIServer

ENVIRON = {"ALICE": "sk-alice-0123456789"}
POLICY = """
version: 1
ledger: {{url: "sqlite:///{folder}/ledger.sqlite3"}}
backends:
  answers:
    type: scripted
    price: {{input_per_1m: 1000, output_per_1m: 2000}}
    script: [{{reply: "One two."}}, {{reply: "Red \\e[31mtext."}}]
  broken: {{type: scripted, script: [{{status: 500}}]}}
routes:
  - {{name: good, match: {{models: [good]}}, backends: [{{ref: answers}}], cache: {{exact: {{ttl: 60s}}}}}}
  - {{name: bad, match: {{models: [bad]}}, backends: [{{ref: broken}}], retry: {{attempts: 0}}}}
keys: [{{name: alice, key: env:ALICE}}]
"""


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """One for all of these tests."""
    with running_gateway(POLICY.format(folder=tmp_path_factory.mktemp("chat")), environ=ENVIRON) as running:
        yield running


def test_chat_one_question_answer_alone_is_on_standard_output(run: Run, gateway: Gateway) -> None:
    """What it took and cost is on the other one, with the tokens that were paid for."""
    said = run("chat", "--url", gateway.url, "--key", "env:ALICE", "one", "two", environ=ENVIRON)

    assert said.exit_code == 0, said.stderr
    assert said.stdout.strip() in ("One two.", "Red \N{REPLACEMENT CHARACTER}[31mtext.")
    prompt, output, cost = re.search(r"(\d+) \+ (\d+) tokens.*\$([0-9.]+)\n$", said.stderr).groups()  # type: ignore[union-attr]
    assert float(cost) == pytest.approx((int(prompt) * 1000 + int(output) * 2000) / 1e6)


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["--key", "env:ALICE", "--model", "bad", "x"], 1, "status 5"),
        (["--key", "env:ALICE", "--model", "none-such", "x"], 1, "none-such"),
        (["x"], 1, "--key"),
        (["--key", "sk-typed", "x"], 2, "env:"),
        (["--key", "env:ALICE"], 2, "standard input is empty"),
    ],
)
def test_chat_what_goes_wrong_is_said(
    run: Run, gateway: Gateway, arguments: list[str], status: int, words: str
) -> None:
    """With what to do, and without a traceback."""
    said = run("chat", "--url", gateway.url, *arguments, environ=ENVIRON)

    assert said.exit_code == status, said.stderr
    assert words in said.stderr
    assert "sk-" not in said.stderr


def test_chat_nobody_listens_is_an_error(run: Run) -> None:
    """Port 9 is nobody's."""
    said = run("chat", "--url", "http://127.0.0.1:9", "x")

    assert said.exit_code == 1
    assert "does not answer" in said.stderr


def test_chat_on_a_terminal_is_a_conversation(gateway: Gateway) -> None:
    """Questions in turn, commands, and an end with Ctrl-D; nothing that a model says commands the terminal."""
    driver, terminal = pty.openpty()
    slipstream = str(Path(sys.executable).with_name("slipstream"))
    command = [slipstream, "chat", "--url", gateway.url, "--key", "env:ALICE"]
    process = subprocess.Popen(
        command, stdin=terminal, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, **ENVIRON}
    )
    try:
        os.write(driver, b"first\nsecond\n/models\n/model bad\nthird\n/new\n\x04")
        stdout, stderr = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
        os.close(driver)
        os.close(terminal)

    assert process.returncode == 0, stderr
    assert b"One two." in stdout
    assert b"Red \xef\xbf\xbd[31mtext." in stdout
    assert b"good\nbad" in stderr
    assert b"status 5" in stderr


@pytest.mark.parametrize(
    "data",
    [
        '{"choices": ["x"]}',
        '{"choices": [{"delta": {"content": {"text": 1}}}]}',
        '{"choices": [], "usage": {"prompt_tokens": "many"}}',
        '["x"]',
        "\x1b]0;title\x07",
    ],
)
async def test_chat_of_what_is_no_chat_is_an_error(run: Run, openai_server: OpenAIServer, data: str) -> None:
    """A server that says what no model says is told of, and no traceback."""
    openai_server.default = Behaviour(events=(f"data: {data}\n\n".encode(), b"data: [DONE]\n\n"))

    said = await asyncio.to_thread(run, "chat", "--url", openai_server.base_url, "--model", "any", "x")

    assert said.exit_code == 1, said.stderr
    assert "no stream of a chat" in said.stderr
    assert "\x1b" not in said.stderr
