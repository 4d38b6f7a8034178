"""A real Prometheus: scrapes one address several times a second, evaluates rule files, answers queries."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.support.gateway import reserved_port

_DURATION = re.compile(r"(?<![\w.])(\d+)([smhd])(?![\w])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_EVERY = "250ms"

Sample = tuple[dict[str, str], float]


def in_fast_motion(rules: str, factor: int) -> str:
    """A file of rules whose windows and waits are so many times as short; names stay as they are."""
    loaded = yaml.safe_load(rules)
    for group in loaded["groups"]:
        group["interval"] = _EVERY
        for rule in group["rules"]:
            for key in ("expr", "for"):
                if key in rule:
                    rule[key] = _DURATION.sub(lambda match: _shortened(match, factor), rule[key])
    return yaml.safe_dump(loaded, sort_keys=False, width=1000)


class Prometheus:
    """One that runs."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    async def query(self, expression: str) -> list[Sample]:
        """What an expression comes to now. Raises: AssertionError where it is none."""
        answer = (await self._client.get("/api/v1/query", params={"query": expression})).json()
        assert answer["status"] == "success", f"{expression}: {answer}"
        return [(each["metric"], float(each["value"][1])) for each in answer["data"]["result"]]

    async def firing(self) -> set[str]:
        """The names of the alerts that fire now."""
        alerts: list[dict[str, Any]] = (await self._client.get("/api/v1/alerts")).json()["data"]["alerts"]
        return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}

    async def wait_firing(self, wanted: set[str], timeout_s: float) -> None:
        """Until just these fire. Raises: AssertionError with those that do."""
        firing: set[str] = set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while (firing := await self.firing()) != wanted:
                    await asyncio.sleep(0.1)
        assert firing == wanted

    async def wait_fired(self, wanted: set[str], timeout_s: float) -> None:
        """Until each of these has fired, be it over by then. Raises: AssertionError with those that have not."""
        missing = set(wanted)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while missing := missing - await self.firing():
                    await asyncio.sleep(0.1)
        assert not missing, f"these have not fired: {sorted(missing)}"


@asynccontextmanager
async def running_prometheus(target: str, rules: Path, folder: Path) -> AsyncIterator[Prometheus]:
    """One that looks at `host:port` as the job `slipstream`, and is ready."""
    settings = {
        "global": {"scrape_interval": _EVERY, "scrape_timeout": _EVERY, "evaluation_interval": _EVERY},
        "rule_files": [str(rules)],
        "scrape_configs": [{"job_name": "slipstream", "static_configs": [{"targets": [target]}]}],
    }
    (folder / "prometheus.yaml").write_text(json.dumps(settings), encoding="utf-8")
    with reserved_port() as port, _process(port, folder) as process:
        async with httpx.AsyncClient(verify=False, base_url=f"http://127.0.0.1:{port}", timeout=10) as client:
            async with asyncio.timeout(30):
                while not await _is_ready(client):
                    assert process.poll() is None, (folder / "prometheus.log").read_text()
                    await asyncio.sleep(0.05)
            yield Prometheus(client)


@contextmanager
def _process(port: int, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = ["prometheus", f"--config.file={folder / 'prometheus.yaml'}", f"--storage.tsdb.path={folder / 'data'}"]
    command += [f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"]
    with (folder / "prometheus.log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            yield process
        finally:
            process.terminate()


async def _is_ready(client: httpx.AsyncClient) -> bool:
    try:
        return (await client.get("/-/ready")).status_code == 200
    except httpx.TransportError:
        return False


def _shortened(match: re.Match[str], factor: int) -> str:
    return f"{int(match[1]) * _SECONDS[match[2]] * 1000 // factor}ms"
