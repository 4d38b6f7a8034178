"""`slipstream eval`: how good a model is on the user's own file, before and after its weights are quantized."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from gateway.cli.models.model_folder import (
    METHODS,
    engine_at_work,
    existing_folder,
    file_text,
    json_option,
    progress_bar,
    size_text,
    table,
)

if TYPE_CHECKING:
    from backends.engine.evaluate import AnswerQuality, TextQuality
    from backends.engine.options import Device

_CONTEXT = 2048


class Variant(NamedTuple):
    """A model to compare: its folder, and the method by which its weights are quantized while they are loaded."""

    folder: Path
    quantization: str | None

    @property
    def name(self) -> str:
        """Its name in the table."""
        return self.folder.name + (f", {self.quantization}" if self.quantization else "")


class EvaluationRow(NamedTuple):
    """The measurements of one variant."""

    variant: Variant
    weight_bytes: int
    quality: TextQuality | AnswerQuality


@click.command("eval")
@click.argument("folder", metavar="DIR", callback=existing_folder)
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--against", metavar="DIR", callback=existing_folder, help="Another model, such as DIR made smaller.")
@click.option(
    "--quantization",
    "methods",
    multiple=True,
    type=click.Choice(METHODS),
    help="Compare with DIR's weights rounded to this; may be given several times.",
)
@click.option(
    "--context",
    type=click.IntRange(16, 1_000_000),
    help=f"The longest text to read at once, in tokens.  [default: {_CONTEXT}, or the model's if it is shorter]",
)
@click.option(
    "--device",
    type=click.Choice(["auto", "cpu", "cuda"]),
    default="auto",
    show_default=True,
    help="Where it runs; auto takes the GPU if there is one.",
)
@json_option
def evaluate(folder: Path, file: Path, against: Path | None, methods: tuple[str, ...], **options: Any) -> None:
    """Measure how good the model in folder DIR is on a FILE of yours, and what smaller weights cost.

    A .txt file is a text: its perplexity is printed, a token and a byte, lower is better. Models of different
    tokenizers compare by the byte. A .jsonl file holds questions with the one right answer, an object a line: "prompt"
    (a text) or "messages" (a chat), and "answer". Printed are the share of answers that the model gives word for word
    at temperature 0, and the mean log-probability of an answer, higher is better.

    \b
    Examples:
      slipstream eval models/Qwen3-0.6B notes.txt --quantization int8 --quantization int4
      slipstream eval models/Qwen3-0.6B questions.jsonl --against models/Qwen3-0.6B-int4
      echo '{"prompt": "The capital of France is", "answer": " Paris"}' > questions.jsonl
    """
    if file.suffix not in (".txt", ".jsonl"):
        raise click.BadParameter(f"{file} is neither a .txt nor a .jsonl file", param_hint="FILE")
    variants = [Variant(folder, None), *(Variant(folder, method) for method in dict.fromkeys(methods))]
    if against is not None:
        variants.append(Variant(against, None))
    with engine_at_work():
        context = _context(variants, options["context"])
        rows = [_measured(variant, file, context, options["device"]) for variant in variants]
    if options["as_json"]:
        click.echo(
            json.dumps({"file": str(file), "context": context, "models": [_fields(row) for row in rows]}, indent=2)
        )
    else:
        click.echo(_text(file, context, rows))


def _context(variants: list[Variant], asked: int | None) -> int:
    """The context length that all variants support, so that their figures can be compared.

    It reads every model's configuration, so a model that cannot be loaded is reported before any is.
    """
    from backends.engine.model.config import ModelConfig

    configs = [ModelConfig.from_folder(variant.folder) for variant in variants]
    for variant, config in zip(variants, configs, strict=True):
        if variant.quantization is not None and config.quantization is not None:
            problem = f"the weights in {variant.folder} are rounded already; name the folder they were made of"
            raise click.BadParameter(problem, param_hint="--quantization")
    longest = min(config.max_positions for config in configs)
    if asked is not None and asked > longest:
        raise click.BadParameter(f"the model was made for {longest:,} tokens", param_hint="--context")
    return min(asked or _CONTEXT, longest)


def _measured(variant: Variant, file: Path, context: int, device: Device) -> EvaluationRow:
    from backends.engine.evaluate import PassageReader, answer_quality, read_examples, text_quality
    from backends.engine.text.tokenizer import Tokenizer

    tokenizer = Tokenizer(variant.folder)
    quality: TextQuality | AnswerQuality
    # The file is read first, so that its problems are reported before the model is loaded.
    text = file_text(file)
    examples = read_examples(text, str(file), tokenizer, context=context) if file.suffix == ".jsonl" else []
    # The previous model may be part of a reference cycle, and two models might not fit into memory.
    gc.collect()
    reader = PassageReader.from_folder(
        variant.folder, quantization=variant.quantization, context=context, device=device
    )
    with progress_bar(variant.name) as progress:
        if file.suffix == ".txt":
            quality = text_quality(reader, tokenizer, text, progress)
        else:
            quality = answer_quality(reader, examples, progress)
    return EvaluationRow(variant, reader.weight_bytes, quality)


def _fields(row: EvaluationRow) -> dict[str, Any]:
    from backends.engine.evaluate import TextQuality

    quality = row.quality
    common = {
        "model": str(row.variant.folder),
        "quantization": row.variant.quantization,
        "weight_bytes": row.weight_bytes,
    }
    if isinstance(quality, TextQuality):
        return common | {
            "tokens": quality.num_tokens,
            "bytes": quality.num_bytes,
            "token_perplexity": quality.token_perplexity,
            "byte_perplexity": quality.byte_perplexity,
        }
    return common | {
        "answers": quality.num_answers,
        "exact_share": quality.exact_share,
        "mean_logprob": quality.mean_logprob,
    }


def _text(file: Path, context: int, rows: list[EvaluationRow]) -> str:
    from backends.engine.evaluate import TextQuality

    first = rows[0].quality
    if isinstance(first, TextQuality):
        head = f"{file}: {first.num_bytes:,} bytes, {first.num_tokens:,} tokens, read in windows of {context:,}"
        names = ["model", "weights", "perplexity a token", "a byte", "change a byte"]
        lines = [_text_cells(row.quality, first) for row in rows if isinstance(row.quality, TextQuality)]
    else:
        head = f"{file}: {first.num_answers:,} answers"
        names = ["model", "weights", "exact", "log-probability of an answer", "change"]
        lines = [_answer_cells(row.quality, first) for row in rows if not isinstance(row.quality, TextQuality)]
    if len(rows) == 1:
        names, lines = names[:-1], [line[:-1] for line in lines]
    cells = [[row.variant.name, size_text(row.weight_bytes), *line] for row, line in zip(rows, lines, strict=True)]
    return f"{head}\n\n{table([names, *cells])}"


def _text_cells(quality: TextQuality, first: TextQuality) -> list[str]:
    change = "" if quality is first else f"{quality.byte_perplexity / first.byte_perplexity - 1:+.2%}"
    return [f"{quality.token_perplexity:,.3f}", f"{quality.byte_perplexity:,.4f}", change]


def _answer_cells(quality: AnswerQuality, first: AnswerQuality) -> list[str]:
    points, nats = 100 * (quality.exact_share - first.exact_share), quality.mean_logprob - first.mean_logprob
    change = "" if quality is first else f"{points:+.1f} points, {nats:+.3f}"
    return [f"{quality.exact_share:.1%}", f"{quality.mean_logprob:,.3f}", change]
