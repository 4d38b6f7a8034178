"""`slipstream size`: how much memory of a GPU a model needs and how fast it could be there, without loading it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from difflib import get_close_matches
from typing import TYPE_CHECKING

import click

from gateway.cli.models.model_folder import METHODS, engine_at_work, json_option, model_folder, size_text, table

if TYPE_CHECKING:
    from backends.engine.sizing import Estimate, Gpu, ModelShape, Workload

_SHOWN = ("bf16", "int8", "fp8", "int4")


@click.command()
@click.argument("model")
@click.option("--gpu", "gpu_name", help="One of h100, h200, a100-80, l4, l40s, rtx-4090.  [required]")
@click.option(
    "--context",
    type=click.IntRange(1, 10_000_000),
    default=8192,
    show_default=True,
    help="Tokens of prompt and answer together, of each sequence.",
)
@click.option(
    "--concurrency",
    type=click.IntRange(1, 100_000),
    default=64,
    show_default=True,
    help="Sequences that are worked on at the same time.",
)
@click.option(
    "--quantization",
    "methods",
    multiple=True,
    type=click.Choice(["bf16", *METHODS]),
    help=f"Of the weights; may be given several times.  [default: {', '.join(_SHOWN)}]",
)
@click.option(
    "--kv-dtype",
    type=click.Choice(["auto", "int8", "fp8"]),
    default="auto",
    show_default=True,
    help="Of the cached keys and values; auto is bf16.",
)
@json_option
def size(
    model: str,
    gpu_name: str | None,
    context: int,
    concurrency: int,
    methods: tuple[str, ...],
    kv_dtype: str,
    as_json: bool,
) -> None:
    """Work out how much of a GPU a MODEL takes, and how fast it could be there at best.

    MODEL is a folder with a config.json, or the name of a known model such as llama-3.1-8b; a name that is not known
    lists those that are. Nothing is loaded, and no GPU is needed.

    Speeds are rooflines: the time that reading the weights and the cached keys and values takes, or multiplying, if
    that is longer, at the share of the data sheet's figures that a plain copy and a plain product reach. An engine
    stays below them; how far below is what to judge it by.

    \b
    Examples:
      slipstream size llama-3.1-8b --gpu h200 --context 8192 --concurrency 64
      slipstream size models/Qwen3-8B --gpu l4 --quantization int4 --kv-dtype fp8
    """
    from backends.engine.sizing import PRECISIONS, Workload, estimate
    from backends.engine.sizing_data import GPUS

    if gpu_name is None:
        raise click.UsageError(f"Missing option '--gpu': one of {', '.join(GPUS)}.")
    gpu = GPUS.get(gpu_name.lower())
    if gpu is None:
        raise click.BadParameter(f'"{gpu_name}" is not known{_near(gpu_name, GPUS)}', param_hint="--gpu")
    shape = _shape(model)
    demand = Workload(context=context, concurrency=concurrency, kv_dtype=kv_dtype)
    estimates = [estimate(shape, gpu, PRECISIONS[name], demand) for name in dict.fromkeys(methods or _SHOWN)]
    if as_json:
        asked = {"model": shape.name, "parameters": shape.num_parameters, "gpu": asdict(gpu), **asdict(demand)}
        kv_bytes = shape.kv_bytes_per_token(kv_dtype)
        rows = [asdict(found) for found in estimates]
        click.echo(json.dumps({**asked, "kv_bytes_per_token": kv_bytes, "estimates": rows}, indent=2))
    else:
        click.echo(_text(shape, gpu, demand, estimates))


def _shape(model: str) -> ModelShape:
    from backends.engine.sizing import ModelShape
    from backends.engine.sizing_data import MODELS

    folder = model_folder(model)
    if folder is None:
        # Model hubs write names with an owner and with capitals.
        known = MODELS.get(model.rpartition("/")[2].lower())
        if known is None:
            near = _near(model.rpartition("/")[2], MODELS)
            problem = f'there is no folder "{model}", and no known model of that name{near}'
            raise click.BadParameter(problem, param_hint="MODEL")
        return known
    with engine_at_work():
        from backends.engine.model.config import ModelConfig

        return ModelShape.of(ModelConfig.from_folder(folder), folder.resolve().name)


def _near(name: str, known: Iterable[str]) -> str:
    near = get_close_matches(name.lower(), known, n=1)
    return (f". Did you mean {near[0]}?" if near else ".") + f" Known are {', '.join(known)}."


def _text(shape: ModelShape, gpu: Gpu, demand: Workload, estimates: list[Estimate]) -> str:
    per_token = shape.kv_bytes_per_token(demand.kv_dtype)
    number = "bf16" if demand.kv_dtype == "auto" else demand.kv_dtype
    lines = [
        f"{shape.name} ({_count(shape.num_parameters)} parameters) on one {gpu.name} ({size_text(gpu.memory_bytes)})",
        f"Keys and values in {number}: {size_text(per_token)} a token, "
        f"{size_text(per_token * demand.context)} for {demand.context:,} tokens, "
        f"{size_text(estimates[0].kv_bytes)} for {demand.concurrency:,} times that",
    ]
    if demand.context > shape.max_positions:
        lines.append(f"Mind that the model was made for {shape.max_positions:,} tokens.")
    together = f"with all {demand.concurrency:,}"
    names = ["weights", "size", together, "fit at once", "first token", "tokens/s alone", "tokens/s together"]
    rows = [names, *(_cells(found, demand) for found in estimates)]
    return "\n".join(
        [
            *lines,
            "",
            table(rows),
            "",
            f"At best, with {demand.context:,} tokens in every sequence; first token: of a lone prompt of that length.",
            f"Bounds: {gpu.reachable_bytes_per_s / 1e12:.2f} TB/s, {gpu.reachable_flops / 1e12:,.0f} TFLOP/s, "
            f"about {gpu.reachable_bytes_per_s / gpu.bytes_per_s:.0%} and {gpu.reachable_flops / gpu.flops:.0%} "
            "of the data sheet's.",
        ]
    )


def _cells(found: Estimate, demand: Workload) -> list[str]:
    cells = [found.precision, size_text(found.weight_bytes), size_text(found.total_bytes), f"{found.fits:,}"]
    if found.ttft_s is None or found.alone_tokens_per_s is None or found.together_tokens_per_s is None:
        return [*cells, "", "", "does not fit"]
    together = f"{found.together_tokens_per_s:,.0f}"
    if found.batch < demand.concurrency:
        together += f" with {found.batch:,}"
    return [*cells, _duration(found.ttft_s), f"{found.alone_tokens_per_s:,.0f}", together]


def _count(number: int) -> str:
    return f"{number / 1e9:.3g} billion" if number >= 1e9 else f"{number / 1e6:.3g} million"


def _duration(seconds: float) -> str:
    return f"{seconds:,.1f} s" if seconds >= 10 else f"{seconds:.2f} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"
