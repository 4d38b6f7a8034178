"""`slipstream init`: what it writes is a policy that loads and serves, and secrets that nobody else can read."""

from __future__ import annotations

import stat
from pathlib import Path

import httpx
import pytest
import yaml

from tests.gateway.cli.conftest import Run
from tests.support.gateway import start_gateway
from tests.support.servers.openai_server import OpenAIServer


def secrets_of(folder: Path) -> dict[str, str]:
    """The variables of its .env."""
    lines = (folder / ".env").read_text(encoding="utf-8").splitlines()
    return dict(line.split("=", 1) for line in lines if not line.startswith("#"))


async def test_init_writes_what_serves_as_it_is(run: Run, tmp_path: Path, openai_server: OpenAIServer) -> None:
    """With the key of the .env a call goes to the upstream that was named; without it, none."""
    folder = tmp_path / "new" / "gateway"
    done = run("init", str(folder), "--upstream", openai_server.base_url)
    assert done.exit_code == 0, done.output
    secrets = secrets_of(folder)
    policy = (folder / "policy.yaml").read_text(encoding="utf-8")
    # As if it were started there.
    policy = policy.replace("sqlite:///", f"sqlite:///{folder}/")
    async with start_gateway(policy, environ=secrets) as gateway:
        async with httpx.AsyncClient(verify=False, base_url=gateway.url) as client:
            body = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
            headers = {"authorization": f"Bearer {secrets['GATEWAY_KEY']}"}
            answer = await client.post("/v1/chat/completions", json=body, headers=headers)
            without = await client.post("/v1/chat/completions", json=body)
            own = {"origin": gateway.url, "sec-fetch-site": "same-origin", "x-slipstream-csrf": "1"}
            sign_in = "/dashboard/api/sign-in"
            looked = [
                (await client.post(sign_in, json={"key": secrets[name]}, headers=own)).status_code
                for name in ("GATEWAY_KEY", "ADMIN_KEY")
            ]
            spent = (await client.get("/dashboard/api/overview")).status_code

    assert (answer.status_code, without.status_code) == (200, 401)
    assert (looked[1], spent) == (200, 200)
    assert looked[0] in (401, 403)
    assert openai_server.requests[0].header("authorization") == f"Bearer {secrets['UPSTREAM_KEY']}"
    assert stat.S_IMODE((folder / ".env").stat().st_mode) == 0o600


def test_init_writes_nothing_that_check_would_refuse(run: Run, tmp_path: Path) -> None:
    """An address without its scheme is wrong usage, and can be given anew: no file is in the way."""
    done = run("init", str(tmp_path / "new"), "--upstream", "localhost:8000/v1")

    assert done.exit_code == 2
    assert '--upstream: "localhost:8000/v1" - must be a URL: http://host' in done.output
    assert not (tmp_path / "new").exists()


def test_init_makes_another_key_each_time(run: Run, tmp_path: Path) -> None:
    """And none that could be guessed."""
    for name in ("a", "b"):
        assert run("init", str(tmp_path / name)).exit_code == 0

    keys = {secrets_of(tmp_path / name)["GATEWAY_KEY"] for name in ("a", "b")}
    assert len(keys) == 2
    assert all(len(key) > 30 for key in keys)


@pytest.mark.parametrize("name", ["policy.yaml", ".env"])
def test_init_overwrites_nothing(run: Run, tmp_path: Path, name: str) -> None:
    """Neither of the two is written where one is there."""
    (tmp_path / name).write_text("mine")
    done = run("init", str(tmp_path))

    assert done.exit_code == 1
    assert f"{name} is there already" in done.output
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "mine"


def test_init_quotes_any_address(run: Run, tmp_path: Path) -> None:
    """What would be YAML of its own is the text of an address all the same."""
    address = 'http://host/v1?a="b": {c} # d'
    assert run("init", str(tmp_path), "--upstream", address).exit_code == 0

    assert yaml.safe_load((tmp_path / "policy.yaml").read_text())["backends"]["up"]["base_url"] == address


def test_init_says_what_it_cannot_write(run: Run, tmp_path: Path) -> None:
    """A file where a folder should be is a problem with a word, not a traceback."""
    (tmp_path / "file").write_text("")
    done = run("init", str(tmp_path / "file" / "below"))

    assert done.exit_code == 1
    assert "Not a directory" in done.output
