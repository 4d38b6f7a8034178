"""`slipstream selftest`: lying upstreams and hostile clients against a copy of a policy, or a running gateway."""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from importlib import resources
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import TextIO
from urllib.parse import urlsplit

import click

from gateway.cli.loading import read_policy, read_policy_or_exit
from gateway.cli.parameters import KeyReference, gateway_address
from gateway.selftest import report
from gateway.selftest.bench import Bench, GatewayTarget
from gateway.selftest.catalogue import CHECKS
from gateway.selftest.check import Check
from gateway.selftest.client import Address
from gateway.selftest.conduct import CheckResult, OnProgress, conduct, conduct_outside
from gateway.selftest.run import DidNotStart
from gateway.selftest.subject import CannotTry, copy_of

_NUM_AT_ONCE = 3
"""How many checks run concurrently. They mostly wait, so this costs little processor time."""


@click.command()
@click.argument("policy", required=False, type=click.Path(path_type=Path, dir_okay=False, exists=True))
@click.option("--url", callback=gateway_address, help="Instead of a POLICY: a running gateway, best a copy of yours.")
@click.option("--model", default="selftest", show_default=True, help="With --url: the model to ask for.")
@click.option("--key", type=KeyReference(), default=None, help="With --url: the key to ask with.")
@click.option("--quick", is_flag=True, help="Fewer of everything: done in 60 s.")
@click.option("--only", "ids", metavar="ID", multiple=True, help="Only this fault; repeatable.")
@click.option("--list", "is_listing", is_flag=True, help="Show the faults and try none.")
@click.option(
    "--json", "json_file", type=click.File("w", encoding="utf-8"), help="Write the outcome as JSON there; - for here."
)
@click.pass_context
def selftest(
    context: click.Context,
    *,
    policy: Path | None,
    url: str | None,
    model: str,
    key: str | None,
    quick: bool,
    ids: tuple[str, ...],
    is_listing: bool,
    json_file: TextIO | None,
) -> None:
    """Try what can go wrong: lying upstreams and hostile clients, against a copy of a POLICY on this machine.

    In the copy every server is one of ours on a free port of loopback, every secret is a canary, every folder a
    temporary one: nothing is sent elsewhere, and nothing costs money. Without a POLICY a built-in one is tried. With
    --url only what needs no upstream of ours is tried, with real requests of that key. Exit code 1 if anything failed.
    What each fault is, and what the verdicts mean: docs/selftest.md.

    \b
    Examples:
      slipstream selftest --quick
      slipstream selftest policy.yaml --json selftest.json
      slipstream selftest policy.yaml --only 1 --only 24
      slipstream selftest --url http://127.0.0.1:8080 --model gpt-4o-mini --key env:GATEWAY_KEY
    """
    if policy is not None and url is not None:
        raise click.UsageError("give a POLICY or --url, not both")
    checks = _chosen(ids)
    if is_listing:
        click.echo("\n".join(f"{check.id:<4} {check.fault}" for check in checks))
        return
    began = time.monotonic()
    with _progress(is_shown=sys.stderr.isatty()) as on_progress:
        if url is not None:
            subject, notes = url, list[str]()
            target = GatewayTarget(_address(url), model, key or "", is_quick=quick)
            results = asyncio.run(conduct_outside(checks, target, on_progress))
        else:
            subject, notes, results = _try_policy(policy, checks, on_progress, is_quick=quick)
    if json_file is not None:
        version = installed_version("slipstream-gateway")
        text = report.as_json(results, subject=subject, version=version, is_quick=quick, notes=notes)
        click.echo(text, file=json_file)
    if json_file is None or json_file.name not in ("-", "<stdout>"):
        said = [f"tried: {subject}{' (quick)' if quick else ''}", *(f"note: {note}" for note in notes), ""]
        summary = report.summary(results, time.monotonic() - began)
        click.echo("\n".join([*said, report.table(results), "", summary]))
    context.exit(1 if report.has_failed(results) else 0)


def _try_policy(
    policy: Path | None, checks: Sequence[Check], on_progress: OnProgress, *, is_quick: bool
) -> tuple[str, list[str], list[CheckResult]]:
    """Run the checks: the name of the policy, the differences between its copy and the original, and the results."""
    with tempfile.TemporaryDirectory(prefix="slipstream-selftest-", ignore_cleanup_errors=True) as name:
        if policy is not None:
            loaded = read_policy_or_exit(policy, no_env=True)
        else:
            with resources.as_file(resources.files("gateway.selftest").joinpath("everything.yaml")) as path:
                loaded = read_policy(path, no_env=True)
        folders = [Path(name, str(number)) for number in range(_NUM_AT_ONCE)]
        for folder in folders:
            folder.mkdir()
        try:
            # One copy for each bench: checks that run concurrently must not share a store or a secret.
            subjects = [copy_of(loaded, folder) for folder in folders]
        except CannotTry as error:
            raise click.ClickException(str(error)) from error

        async def run() -> list[CheckResult]:
            async with AsyncExitStack() as stack:
                benches = [
                    await stack.enter_async_context(Bench(subject, folder, is_quick=is_quick))
                    for subject, folder in zip(subjects, folders, strict=True)
                ]
                return await conduct(checks, benches, on_progress)

        try:
            results = asyncio.run(run())
        except DidNotStart as error:
            raise click.ClickException(str(error)) from error
    first = subjects[0]
    return first.name if policy is not None else "the built-in policy", list(first.notes), results


def _chosen(ids: Sequence[str]) -> list[Check]:
    known = {check.id for check in CHECKS}
    unknown = [wanted for wanted in ids if wanted.upper() not in known]
    if unknown:
        raise click.BadParameter(f"there is no fault {unknown[0]}; --list shows them", param_hint="--only")
    wanted = {wanted.upper() for wanted in ids}
    return [check for check in CHECKS if not wanted or check.id in wanted]


def _address(url: str) -> Address:
    parts = urlsplit(url)
    is_tls = parts.scheme == "https"
    prefix = parts.path.rstrip("/").removesuffix("/v1")
    return Address(parts.hostname or "", parts.port or (443 if is_tls else 80), prefix, is_tls)


@contextmanager
def _progress(*, is_shown: bool) -> Iterator[OnProgress]:
    """A progress bar on standard error that names the fault being tried."""

    def nothing(done: int, total: int, fault: str) -> None:
        del done, total, fault

    if not is_shown:
        yield nothing
        return
    with click.progressbar(length=len(CHECKS), file=sys.stderr, item_show_func=lambda fault: fault, width=20) as bar:

        def advance(done: int, total: int, fault: str) -> None:
            bar.length = total
            bar.update(done - bar.pos, fault)

        yield advance
