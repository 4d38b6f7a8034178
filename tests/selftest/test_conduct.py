"""How checks are run: side by side where times do not matter, and what breaks ends nothing else."""

from __future__ import annotations

import asyncio
from importlib import resources
from pathlib import Path

from gateway.cli.loading import read_policy
from gateway.selftest.bench import Bench
from gateway.selftest.check import Check
from gateway.selftest.conduct import conduct
from gateway.selftest.subject import copy_of
from gateway.selftest.verdict import CheckOutcome, CheckVerdict, passed


def benches(folder: Path, count: int) -> list[Bench]:
    """So many that have nothing to serve."""
    with resources.as_file(resources.files("gateway.selftest").joinpath("everything.yaml")) as path:
        subject = copy_of(read_policy(path, no_env=True), folder)
    return [Bench(subject, folder, is_quick=True) for _ in range(count)]


async def test_conduct_tries_untimed_checks_at_once_and_timed_ones_alone(tmp_path: Path) -> None:
    """Two wait for each other on two benches; a timed one has nobody beside it; the order is that of the list."""
    meeting = asyncio.Barrier(2)
    running: set[str] = set()
    beside: dict[str, set[str]] = {}
    on: dict[str, Bench] = {}

    def check(name: str, *, is_timed: bool) -> Check:
        async def run(bench: Bench) -> CheckOutcome:
            on[name] = bench
            running.add(name)
            if not is_timed:
                await meeting.wait()
            beside[name] = running - {name}
            await asyncio.sleep(0)
            running.discard(name)
            return passed("")

        return Check(name, name, run, is_timed=is_timed)

    checks = [check("1", is_timed=True), check("2", is_timed=False), check("3", is_timed=False)]
    checks.append(check("4", is_timed=True))
    results = await conduct(checks, benches(tmp_path, 2), lambda *_: None)

    assert [result.check.id for result in results] == ["1", "2", "3", "4"]
    assert beside == {"1": set(), "2": {"3"}, "3": {"2"}, "4": set()}
    assert on["2"] is not on["3"]


async def test_conduct_goes_on_after_a_check_that_breaks(tmp_path: Path) -> None:
    """It is a failure with what was said, and those beside and behind it are tried."""

    async def breaks(bench: Bench) -> CheckOutcome:
        raise KeyError("nothing there")

    async def holds(bench: Bench) -> CheckOutcome:
        return passed("held")

    checks = [Check("1", "", breaks), Check("2", "", holds), Check("3", "", holds, is_timed=True)]
    results = await conduct(checks, benches(tmp_path, 1), lambda *_: None)

    assert [result.outcome.verdict for result in results] == [CheckVerdict.FAIL, CheckVerdict.PASS, CheckVerdict.PASS]
    assert "nothing there" in results[0].outcome.reason
