"""The Redis of the self-test."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gateway.selftest.own_redis import own_redis


async def test_no_redis_is_started_that_no_gateway_could_speak_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program alone does not do: without the client a gateway refuses a policy that names it."""
    monkeypatch.setitem(sys.modules, "redis", None)
    async with own_redis(tmp_path) as url:
        assert url is None
