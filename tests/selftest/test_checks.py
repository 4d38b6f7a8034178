"""Every check can fail: a proxy that believes everything fails it, and the gateway passes."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import pytest

from gateway.cli.loading import read_policy
from gateway.selftest.bench import Bench, Start
from gateway.selftest.catalogue import CHECKS
from gateway.selftest.conduct import conduct
from gateway.selftest.run import child_gateway
from gateway.selftest.subject import copy_of
from gateway.selftest.verdict import CheckOutcome, CheckVerdict
from tests.support.servers.faulty_proxies import NeedsRedis, NeverGivesUp, RemembersByModel
from tests.support.servers.naive_proxy import NaiveProxy, naive_proxy, started


async def outcome(wanted: str, folder: Path, start: Start) -> CheckOutcome:
    """Of one check on the built-in policy."""
    with resources.as_file(resources.files("gateway.selftest").joinpath("everything.yaml")) as path:
        subject = copy_of(read_policy(path, no_env=True), folder)
    async with Bench(subject, folder, is_quick=True, start=start) as bench:
        results = await conduct([check for check in CHECKS if check.id == wanted], [bench], lambda *_: None)
    return results[0].outcome


_NAIVE = (
    "1",
    "2",
    "4",
    "5",
    "8",
    "9",
    "11",
    "12",
    "13",
    "14",
    "15",
    "18",
    "19",
    "20",
    "24",
    "25",
    "26",
    "27",
    "28",
    "29",
    "30",
    "35",
)
_WITH_ONE_MORE_FAULT = {"7": NeverGivesUp, "10": NeedsRedis, "16": RemembersByModel, "17": RemembersByModel}


@pytest.mark.parametrize("wanted", _NAIVE)
async def test_check_of_a_naive_proxy_fails(wanted: str, tmp_path: Path) -> None:
    """A proxy that believes its upstream and remembers everything does not get through."""
    found = await outcome(wanted, tmp_path, naive_proxy)

    # How much of it a policy could mend depends on when a fault strikes.
    assert found.verdict in (CheckVerdict.FAIL, CheckVerdict.PARTIAL)
    assert found.measured not in ("broke off", "no end"), found


@pytest.mark.parametrize(("wanted", "kind"), _WITH_ONE_MORE_FAULT.items(), ids=_WITH_ONE_MORE_FAULT)
async def test_check_of_a_proxy_with_its_fault_fails(wanted: str, kind: type[NaiveProxy], tmp_path: Path) -> None:
    """A proxy with the very fault does not get through either."""
    found = await outcome(wanted, tmp_path, started(kind))

    assert found.verdict is CheckVerdict.FAIL, found
    assert found.measured not in ("broke off", "no end"), found


@pytest.mark.parametrize("wanted", ["1"])
async def test_check_of_the_gateway_passes(wanted: str, tmp_path: Path) -> None:
    """The same check on the gateway."""
    found = await outcome(wanted, tmp_path, child_gateway)

    assert found.verdict is CheckVerdict.PASS, found
