"""`slipstream size`."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from backends.engine.sizing_data import GPUS, MODELS
from tests.support.cli import Run

CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": True,
    "eos_token_id": 1,
}


def test_size_table_has_a_row_for_each_precision(run: Run) -> None:
    """What the model takes, what fits, and the best speeds, in units that people read."""
    result = run("size", "llama-3.1-8b", "--gpu", "h200", "--context", 1024, "--concurrency", 64)

    assert result.exit_code == 0
    assert "llama-3.1-8b (8.03 billion parameters) on one H200 SXM (140.4 GiB)" in result.output
    assert "128.0 KiB a token, 128.0 MiB for 1,024 tokens, 8.0 GiB for 64 times that" in result.output
    rows = {line.split()[0]: re.split(r"\s{2,}", line) for line in result.output.splitlines() if "GiB   " in line}
    assert list(rows) == ["bf16", "int8", "fp8", "int4"]
    assert rows["bf16"] == ["bf16", "15.0 GiB", "23.0 GiB", "849", "18.4 ms", "284", "11,661"]


def test_size_of_a_folder_is_that_of_its_config(run: Run, tmp_path: Path) -> None:
    """A config.json is enough, and gives what the known model of that shape gives."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")

    folder, known = (json.loads(run("size", name, "--gpu", "l4", "--json").output) for name in (tmp_path, "qwen3-0.6b"))

    assert folder.pop("model") == tmp_path.name
    assert known.pop("model") == "qwen3-0.6b"
    assert folder == known


def test_size_json_has_plain_numbers(run: Run) -> None:
    """For programs: bytes, seconds, tokens a second."""
    options = ("--gpu", "H200", "--quantization", "int4", "--kv-dtype", "int8", "--json")
    answer = json.loads(run("size", "meta-llama/Llama-3.1-8B", *options).output)

    [found] = answer["estimates"]
    assert (answer["model"], answer["context"], answer["concurrency"]) == ("llama-3.1-8b", 8192, 64)
    assert answer["kv_bytes_per_token"] == 66_560
    assert (found["precision"], found["batch"]) == ("int4", 64)
    assert 0 < found["ttft_s"] < 1


def test_size_says_how_many_the_figures_are_of(run: Run) -> None:
    """Where fewer fit than were asked for, the speed is of those, and says so."""
    result = run("size", "llama-3.1-70b", "--gpu", "h200", "--quantization", "int8")

    assert re.search(r" with 2\d$", result.output, re.MULTILINE)


def test_size_says_what_does_not_fit(run: Run) -> None:
    """Weights beyond the memory have no speed."""
    result = run("size", "llama-3.1-405b", "--gpu", "l4", "--quantization", "bf16")

    assert result.exit_code == 0
    assert re.search(r"^bf16 .* 0 +does not fit$", result.output, re.MULTILINE)


def test_size_warns_of_a_context_beyond_the_model(run: Run) -> None:
    """A context that the model was not made for is pointed out."""
    assert (
        "Mind that the model was made for 8,192 tokens."
        in run("size", "gemma-2-9b", "--gpu", "h100", "--context", 9000).output
    )


@pytest.mark.parametrize(
    ("model", "gpu", "problem"),
    [
        ("llama-3.1-8b", "h20", '"h20" is not known. Did you mean h200? Known are h100, h200,'),
        ("llama-3.1-8b", "tpu", '"tpu" is not known. Known are h100, h200,'),
        ("qwen3-6b", "h200", "no known model of that name. Did you mean qwen3-0.6b? Known are"),
    ],
)
def test_size_of_an_unknown_name_lists_the_known_ones(run: Run, model: str, gpu: str, problem: str) -> None:
    """A name that is not known is wrong usage, with a hint where it is nearly right."""
    result = run("size", model, "--gpu", gpu)

    assert result.exit_code == 2
    assert problem in result.stderr


def test_size_without_a_gpu_lists_them(run: Run) -> None:
    """The one option that is needed says what it takes."""
    result = run("size", "llama-3.1-8b")

    assert result.exit_code == 2
    assert f"Missing option '--gpu': one of {', '.join(GPUS)}." in result.stderr


def test_size_of_an_unknown_architecture_names_the_file(run: Run, tmp_path: Path) -> None:
    """A folder of a model that the engine does not know is not guessed at."""
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, "architectures": ["GPT2LMHeadModel"]}))
    result = run("size", tmp_path, "--gpu", "h200")

    assert result.exit_code == 1
    assert "config.json: 'architectures' names 'GPT2LMHeadModel', which is not served; known are Llama" in result.stderr


def test_size_help_names_every_gpu(run: Run) -> None:
    """What can be chosen is in the help."""
    assert f"One of {', '.join(GPUS)}." in " ".join(run("size", "--help").output.split())


def test_size_of_every_known_model_works_on_every_gpu(run: Run) -> None:
    """No pair of names ends in an error."""
    assert [(m, g) for m in MODELS for g in GPUS if run("size", m, "--gpu", g).exit_code] == []


def test_size_of_a_known_model_needs_no_pytorch() -> None:
    """Arithmetic runs where the engine is not installed."""
    code = (
        "import sys; sys.modules['torch'] = None; from gateway.cli.main import cli;"
        "cli(['size', 'qwen3-8b', '--gpu', 'l4'], standalone_mode=False)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)

    assert result.returncode == 0, result.stderr
