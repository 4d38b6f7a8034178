"""Writes a training folder's pair as two Hugging Face folders with their scores.

`python -m backends.engine.demo_models.export TRAINING_DIR OUT_DIR [--page docs/demo-models.md]`
"""

import argparse
import json
import logging
import platform
import shutil
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import GenerationConfig, PreTrainedTokenizerFast

from backends.engine.demo_models.networks import DRAFT_SHAPE, ROPE_THETA, TARGET_SHAPE, make_network
from backends.engine.demo_models.score import SCORE_SEED, score_folder
from backends.engine.demo_models.tokenizer import load_tokenizer

SHAPES = {"target": TARGET_SHAPE, "draft": DRAFT_SHAPE}
PAGE_START, PAGE_END = "<!-- scores -->", "<!-- end of scores -->"

_log = logging.getLogger(__name__)


def export(training: Path, out: Path, *, count: int) -> dict[str, Any]:
    """Writes `out/target`, `out/draft` and `out/scores.json` from a training folder; returns the scores.

    Each model folder is whole by itself and replaces the former one only once it is written and scored.
    """
    record = json.loads((training / "record.json").read_text())
    tokenizer = load_tokenizer(training / "tokenizer")
    former = record.get("former") or {"trained_tokens": 0, "cpu_minutes": 0.0}
    scores: dict[str, Any] = {
        "is_interim": not record["is_finished"],
        "machine": f"{platform.machine()}, {_processor()}, {record['threads']} threads",
        "torch": torch.__version__,
        "seed": record["seed"],
        "cpu_minutes": round(former["cpu_minutes"] + record["threads"] * record["spent_s"] / 60, 1),
        "trained_tokens": former["trained_tokens"] + record["tokens"],
        "score_seed": SCORE_SEED,
        "score_count": count,
        "models": {},
    }
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out) as scratch:
        for name, shape in SHAPES.items():
            folder = Path(scratch) / name
            parameters = write_folder(training / f"{name}.safetensors", folder, shape, tokenizer)
            _log.info("scoring %s", name)
            result = asdict(score_folder(folder, count=count))
            scores["models"][name] = {"parameters": parameters, "exact": result["mean"], "tasks": result["tasks"]}
        for name in SHAPES:
            shutil.rmtree(out / name, ignore_errors=True)
            (Path(scratch) / name).rename(out / name)
    (out / "scores.json").write_text(json.dumps(scores, indent=2) + "\n")
    return scores


def write_folder(weights: Path, folder: Path, shape: dict[str, Any], tokenizer: PreTrainedTokenizerFast) -> int:
    """Writes one bfloat16 model folder with its tokenizer; returns the number of parameters."""
    network = make_network(shape, tokenizer)
    missing, unexpected = network.load_state_dict(load_file(weights), strict=False)
    if unexpected or set(missing) - {"lm_head.weight"}:
        raise ValueError(f"{weights} does not fit the network: {missing=}, {unexpected=}")
    network.tie_weights()
    network.generation_config = GenerationConfig(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, do_sample=False
    )
    network.bfloat16().save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)
    tokenizer.save_pretrained(folder, save_jinja_files=False)
    # readers that know only the older spellings find theirs too
    _amend(folder / "config.json", rope_theta=ROPE_THETA, rope_scaling=None)
    _amend(folder / "tokenizer_config.json", tokenizer_class="PreTrainedTokenizerFast")
    return sum(parameter.numel() for parameter in network.parameters())


def score_table(scores: dict[str, Any]) -> str:
    """The scores as Markdown: a table by task, and how the pair was trained."""
    target, draft = scores["models"]["target"], scores["models"]["draft"]
    rows = [
        "| task | target, exact | draft, exact |",
        "|---|---|---|",
        *(f"| {task} | {share:.0%} | {draft['tasks'][task]:.0%} |" for task, share in target["tasks"].items()),
        f"| **mean of the tasks** | **{target['exact']:.1%}** | **{draft['exact']:.1%}** |",
    ]
    state = "Interim weights, the training goes on" if scores["is_interim"] else "Final weights"
    rows.append(
        f"\n{state}: {target['parameters']:,} and {draft['parameters']:,} parameters, seed {scores['seed']}, "
        f"{scores['trained_tokens'] / 1e6:.1f} million tokens in {scores['cpu_minutes']} CPU minutes on "
        f"{scores['machine']}. Scored on {scores['score_count']} held-out prompts, float32, greedy."
    )
    return "\n".join(rows)


def write_page(page: Path, scores: dict[str, Any]) -> None:
    """Renews the part of a page between the two marks."""
    before, _, rest = page.read_text(encoding="utf-8").partition(PAGE_START)
    _, mark, after = rest.partition(PAGE_END)
    if not mark:
        raise ValueError(f"{page} has no part between {PAGE_START} and {PAGE_END}")
    page.write_text(f"{before}{PAGE_START}\n{score_table(scores)}\n{PAGE_END}{after}", encoding="utf-8")


def _amend(path: Path, **fields: object) -> None:
    """Adds or replaces fields of a JSON file."""
    path.write_text(json.dumps(json.loads(path.read_text()) | fields, indent=2, sort_keys=True) + "\n")


def _processor() -> str:
    """The processor's name, where Linux tells it."""
    information = Path("/proc/cpuinfo")
    lines = information.read_text().splitlines() if information.exists() else []
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), "unknown processor")


def main(arguments: list[str] | None = None) -> None:
    """Exports, scores, and renews the page when one is named."""
    parser = argparse.ArgumentParser(description="Export a trained pair as two model folders.")
    parser.add_argument("training", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--count", type=int, default=600, help="held-out prompts to score each model on")
    parser.add_argument("--page", type=Path, help="a Markdown page whose score table is renewed")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.set_num_threads(options.threads)
    scores = export(options.training, options.out, count=options.count)
    if options.page is not None:
        write_page(options.page, scores)
    _log.info("%s", json.dumps(scores["models"], indent=2))


if __name__ == "__main__":
    main()
