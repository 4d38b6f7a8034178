"""The `slipstream` command: a group that imports a subcommand only when it is called, so that `--help` is quick."""

from __future__ import annotations

import importlib
import signal
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.metadata import version as installed_version
from typing import Any

import click

from gateway.process.garbage import without_full_collections

_PACKAGE = "slipstream-gateway"


@dataclass(frozen=True, slots=True)
class Deferred:
    """A subcommand that is imported when it is called."""

    target: str
    """Where the command is defined, as `module:attribute`."""
    purpose: str
    example: str
    holds_sighup: bool = False
    """Whether SIGHUP is blocked during the import, which it would otherwise end. Child processes inherit the mask."""


class LazyGroup(click.Group):
    """A group whose subcommands are listed, with an example each, without being imported."""

    def __init__(self, *args: Any, deferred: dict[str, Deferred], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._deferred = deferred

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The subcommands in order of use."""
        return list(self._deferred)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a subcommand; None for an unknown name."""
        found = self._deferred.get(cmd_name)
        if found is None:
            return None
        module, _, attribute = found.target.partition(":")
        # A fifth of what a start costs would be passes over the modules that are there already.
        with without_full_collections():
            command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As in click, but an unknown name is answered with the nearest known one."""
        found = self._deferred.get(args[0])
        if found is not None and found.holds_sighup:
            # Blocked before the import, which is slow: a SIGHUP that arrives meanwhile would end the process.
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            near = get_close_matches(args[0], self._deferred, n=1)
            if near:
                raise click.UsageError(f'{error.message} Did you mean "{near[0]}"?', ctx) from error
            raise

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a line of purpose and an example for each subcommand."""
        width = max(len(name) for name in self._deferred)
        with formatter.section("Commands, in order of use"):
            for name, command in self._deferred.items():
                formatter.write(f"  {name:<{width}}  {command.purpose}\n  {'':<{width}}  $ {command.example}\n")


@click.group(
    cls=LazyGroup,
    deferred={
        "init": Deferred(
            "gateway.cli.init:init",
            "Write a policy file with comments, and a file with its secrets.",
            "slipstream init --upstream https://api.openai.com/v1",
        ),
        "check": Deferred(
            "gateway.cli.check:check",
            "Find what is wrong in a policy file, with line and remedy.",
            "slipstream check policy.yaml",
        ),
        "explain": Deferred(
            "gateway.cli.explain:explain",
            "Show which route takes a request, through which stages, and why.",
            "slipstream explain policy.yaml request.json --header 'x-team: support'",
        ),
        "config": Deferred(
            "gateway.cli.config.config:config",
            "Show a policy with every default filled in; print the JSON Schema.",
            "slipstream config show --effective policy.yaml",
        ),
        "serve": Deferred(
            "gateway.cli.serve:serve",
            "Start the gateway.",
            "slipstream serve policy.yaml --port 8080",
            holds_sighup=True,
        ),
        "chat": Deferred(
            "gateway.cli.chat.chat:chat",
            "Talk to a gateway, and see how fast and how dear its answers are.",
            "slipstream chat 'What is 12+30?'",
        ),
        "demo": Deferred(
            "gateway.demo.command:demo",
            "Show the dashboard with made-up data.",
            "slipstream demo",
            holds_sighup=True,
        ),
        "budgets": Deferred(
            "gateway.cli.budgets:budgets",
            "Raise budgets for a while, and see who raised what.",
            "slipstream budgets raise --config policy.yaml --key alice --usd 5 --until 7d --why launch",
        ),
        "keys": Deferred(
            "gateway.cli.keys:keys",
            "Make, show, rotate and revoke keys while gateways run.",
            "slipstream keys create --config policy.yaml --name alice --tenant acme --expires 90d",
        ),
        "ledger": Deferred(
            "gateway.cli.ledger:ledger",
            "Add up what calls used and cost, by tenant, key, model or day; print a line for each of them.",
            "slipstream ledger report --config policy.yaml --by day --by tenant",
        ),
        "prices": Deferred(
            "gateway.cli.prices:prices",
            "Show what each backend takes for a model, and who says so.",
            "slipstream prices --config policy.yaml gpt-5",
        ),
        "samples": Deferred(
            "gateway.demo.samples.command:samples",
            "Write made-up policies, traces and logs, to try the next commands on.",
            "slipstream samples",
        ),
        "simulate": Deferred(
            "gateway.cli.simulate:simulate",
            "Replay a trace of requests through a policy, in virtual time, on a fleet that need not exist.",
            "slipstream simulate --trace trace.jsonl.gz --policy policy.yaml --fleet h200-8b:8",
        ),
        "cache": Deferred(
            "gateway.cli.cache:cache",
            "Find out how often the semantic cache would have served on a log of yours, and how often wrongly.",
            "slipstream cache replay log.jsonl.gz --policy policy.yaml",
        ),
        "eval-router": Deferred(
            "gateway.cli.two_models.eval_router:eval_router",
            "Find out for how many of your prompts a small model would do, as far as prompts can tell.",
            "slipstream eval-router labelled.jsonl",
        ),
        "calibrate": Deferred(
            "gateway.cli.two_models.calibrate:calibrate",
            "Find the threshold from which on a small model's answers do, for the quality that has to be left.",
            "slipstream calibrate --on labelled.jsonl --out pair.cascade",
        ),
        "audit": Deferred(
            "gateway.cli.audit.audit:audit",
            "Find out whether one tenant can tell from a running gateway what another has asked.",
            "slipstream audit timing http://127.0.0.1:8080 --model help --key-a env:RED_KEY --key-b env:BLUE_KEY",
        ),
        "selftest": Deferred(
            "gateway.cli.selftest:selftest",
            "Try what can go wrong: lying upstreams and hostile clients against a copy of a policy.",
            "slipstream selftest policy.yaml --quick",
        ),
        "size": Deferred(
            "gateway.cli.models.size:size",
            "Work out what a model needs of a GPU, and how fast it could be there.",
            "slipstream size llama-3.1-8b --gpu h200 --context 8192 --concurrency 64",
        ),
        "quantize": Deferred(
            "gateway.cli.models.quantize:quantize",
            "Make a model folder smaller: int8, int4 and others.",
            "slipstream quantize models/Qwen3-0.6B models/Qwen3-0.6B-int8 --method int8",
        ),
        "eval": Deferred(
            "gateway.cli.models.evaluate:evaluate",
            "Measure what that costs in quality, on a file of yours.",
            "slipstream eval models/Qwen3-0.6B notes.txt --quantization int8",
        ),
        "bench": Deferred(
            "gateway.cli.bench.bench:bench",
            "Measure the engine, the kernels, the semantic cache and the policies, beside their peers.",
            "slipstream bench engine",
        ),
        "version": Deferred("gateway.cli.main:version", "Print the version.", "slipstream version"),
    },
    epilog="Each command has its own --help. Exit codes: 0 all is well, 1 a problem with the file, 2 wrong usage.",
)
@click.version_option(package_name=_PACKAGE, prog_name="slipstream", message="%(prog)s %(version)s")
def cli() -> None:
    """Slipstream, an OpenAI-compatible gateway that makes LLM traffic cheaper and faster without changing the answers.

    One policy file (YAML) says who may call, which backends answer, and what happens on the way. Without one,
    `slipstream serve` starts a trial that answers by itself.
    """


@click.command()
def version() -> None:
    """Print the version."""
    click.echo(f"slipstream {installed_version(_PACKAGE)}")
