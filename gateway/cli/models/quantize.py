"""`slipstream quantize`: writes a model folder with quantized weights, made from another one."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gateway.cli.models.model_folder import METHODS, engine_at_work, existing_folder, file_text, progress_bar, size_text

if TYPE_CHECKING:
    from torch import Tensor


@click.command()
@click.argument("source", metavar="DIR", callback=existing_folder)
@click.argument("target", metavar="OUT", type=click.Path(path_type=Path))
@click.option("--method", required=True, type=click.Choice(METHODS), help="What to round the weights to; see above.")
@click.option(
    "--group-size",
    type=click.Choice(["64", "128"]),
    default="128",
    show_default=True,
    help="For int4 and nf4: weights that share a scale. 64 is a little more exact and a little larger.",
)
@click.option(
    "--calibrate",
    "text",
    metavar="FILE",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="For w8a8: a text like those that the model will read; inputs that it makes large are evened out.",
)
def quantize(source: Path, target: Path, method: str, group_size: str, text: Path | None) -> None:
    """Write the model in folder DIR to the new folder OUT, with its weights rounded.

    The folder needs config.json and safetensors, as Hugging Face lays them out; everything else in it is copied. One
    file of weights is in memory at a time; with --calibrate it is the whole model.

    \b
    Methods, by what is left of bf16 weights:
      int8   half; rarely to be noticed. On a CPU also the fastest.
      w8a8   half; activations are int8 too while it runs: for long prompts and full batches.
      fp8    half; for GPUs that have it.
      int4   a quarter; some quality goes, so compare.
      nf4    a quarter; a table of 16 values made for the way weights are spread.

    \b
    Examples:
      slipstream quantize models/Qwen3-0.6B models/Qwen3-0.6B-int8 --method int8
      slipstream quantize models/Qwen3-8B models/Qwen3-8B-int4 --method int4 --group-size 64
      slipstream quantize models/Qwen3-8B models/Qwen3-8B-w8a8 --method w8a8 --calibrate notes.txt
      slipstream eval models/Qwen3-8B notes.txt --against models/Qwen3-8B-int4
    """
    with engine_at_work():
        from backends.engine.model.config import ModelConfig
        from backends.engine.model.quantize import quantize_folder

        ModelConfig.from_folder(source)
        if target.exists():
            raise click.ClickException(f"{target} exists: name a folder that does not")
        peaks = None if text is None else _input_peaks(source, text)
        with progress_bar(f"{method} weights") as progress:
            quantize_folder(source, target, method, group_size=int(group_size), input_peaks=peaks, progress=progress)
        before, after = (_weight_bytes(folder) for folder in (source, target))
    click.echo(f"{target}: weights of {size_text(after)}, {after / before:.0%} of the {size_text(before)} in {source}.")
    shown = shlex.quote(str(target))
    click.echo(f"Serve it:\n  slipstream serve --model {shown}")
    click.echo(f"Compare it, on a text of yours:\n  slipstream eval {shlex.quote(str(source))} FILE --against {shown}")


def _input_peaks(source: Path, text: Path) -> dict[str, Tensor]:
    from backends.engine.model.calibrate import input_peaks_of_text

    with progress_bar("calibration") as progress:
        return input_peaks_of_text(source, file_text(text), progress=progress)


def _weight_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))
