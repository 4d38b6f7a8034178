"""`slipstream cache replay`: what the semantic cache would have done to a log, before it is switched on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from gateway.cli.config.config import effective_policy
from gateway.cli.loading import FileProblem, read_policy_or_exit
from gateway.cli.module import check_can_be_written, check_installed, run_module
from policies.policy_file.load import LoadedPolicy

_NEEDS = ("numpy", "faiss", "sentence_transformers")
_NEEDS_ONNX = ("numpy", "faiss", "onnxruntime")


@click.group()
def cache() -> None:
    """Look at what caching would do, on your own traffic."""


@cache.command()
@click.argument("log", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option(
    "--policy",
    "file",
    required=True,
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The policy whose route has the section cache.semantic.",
)
@click.option("--route", metavar="NAME", help="Which route.  [default: the only one with the section]")
@click.option("--skip-bad", is_flag=True, help="Count lines that are no exchange, and go on.")
@click.option(
    "--json", "figures", type=click.Path(path_type=Path, dir_okay=False), metavar="OUT", help="Write the figures there."
)
@click.option(
    "--plot", type=click.Path(path_type=Path, dir_okay=False), metavar="OUT", help="Write the curve there, as SVG."
)
def replay(log: Path, file: Path, route: str | None, skip_bad: bool, figures: Path | None, plot: Path | None) -> None:
    """What hit and wrong-hit rates a LOG would have had, as if the route's cache had been on in mode `verified`.

    The LOG has a line for each exchange, in the order in which they were: {"request": a chat completion's body,
    "response": its answer, "tenant": name, "key": name}, the last two where they are known; gzip or plain. All of it is
    taken for that route's. Nothing is sent anywhere, and nothing is kept.

    \b
    Example:
      slipstream cache replay log.jsonl.gz --policy policy.yaml --plot curve.svg
    """
    for option, path in (("--json", figures), ("--plot", plot)):
        check_can_be_written(path, option)
    loaded = read_policy_or_exit(file, no_env=True)
    route_section = _route_section(loaded, route)
    has_onnx = route_section["cache"]["semantic"]["encoder"]["type"] == "onnx"
    check_installed(_NEEDS_ONNX if has_onnx else _NEEDS, "semantic")
    arguments = [str(log)]
    arguments += ["--skip-bad"] if skip_bad else []
    arguments += ["--json", str(figures)] if figures is not None else []
    arguments += ["--plot", str(plot)] if plot is not None else []
    run_module("policies.cache.semantic.log_replay", arguments, text=json.dumps(route_section).encode())


def _route_section(loaded: LoadedPolicy, name: str | None) -> dict[str, Any]:
    """The route's cache section with all defaults written out. Raises: FileProblem, BadParameter."""
    written = effective_policy(loaded)
    routes = {route["name"]: route["cache"] for route in written["routes"]}
    fit = [known for known, section in routes.items() if section is not None and section["semantic"] is not None]
    if name is not None and name not in routes:
        raise click.BadParameter(f"there is no route {name}, only {', '.join(routes)}", param_hint="--route")
    if not fit or (name is not None and name not in fit):
        which = "no route has" if name is None else f"route {name} has not"
        raise FileProblem(f"{loaded.path}: {which} the section cache.semantic; add `semantic: {{mode: observe}}`")
    if name is None and len(fit) > 1:
        raise click.BadParameter(f"several routes have the section: {', '.join(fit)}", param_hint="--route")
    section = routes[name or fit[0]]
    if section["semantic"]["min_precision"] is not None:
        # Of the two bounds only one may be set; this one is a default that the user has not written.
        del section["semantic"]["max_wrong_hit_rate"]
    return {
        "route": name or fit[0],
        "max_size": written["stores"]["semantic"]["max_size"],
        "cache": section,
    }
