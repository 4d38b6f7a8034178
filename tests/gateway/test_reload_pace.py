"""How often the files of a policy are looked at, where looking takes long."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from gateway.reload import Reloader
from gateway.revisions import Revision, Revisions
from policies.policy_file.sources import Fingerprint, PolicyFiles


class _Files:
    """Looking at them takes a while, by a clock of their own."""

    def __init__(self, takes_s: float) -> None:
        self.num_looks = 0
        self.seen: Fingerprint = ()
        self._takes_s = takes_s
        self._now = 0.0

    def fingerprint(self) -> Fingerprint:
        self.num_looks += 1
        self._now += self._takes_s
        return ()

    def now(self) -> float:
        return self._now


def _watch(files: _Files) -> asyncio.Task[None]:
    async def build(previous: Any) -> Any:
        raise AssertionError("nothing has changed")

    core = SimpleNamespace(settings=SimpleNamespace(reload_interval=0.01), clock=files, runtime=None)
    reloader = Reloader(cast(Any, core), cast(PolicyFiles, files), build, Revisions(Revision("", 0.0, None)))
    return asyncio.create_task(reloader.run())


async def test_files_that_take_long_to_look_at_are_looked_at_less_often() -> None:
    """Two per cent of the time at most; a few files as often as was asked for."""
    few, many = _Files(0.0), _Files(0.2)
    tasks = [_watch(many), _watch(few)]
    async with asyncio.timeout(10):
        while few.num_looks < 10:
            await asyncio.sleep(0.01)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)

    assert many.num_looks == 1
