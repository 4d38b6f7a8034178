"""`slipstream quantize`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from safetensors import safe_open

from tests.support.cli import Run
from tests.support.engine.tiny_pair import make_pair


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny random model."""
    return make_pair(tmp_path_factory.mktemp("pair")).target


@pytest.fixture
def model(made: Path, tmp_path: Path) -> Path:
    """One of the test's own."""
    return shutil.copytree(made, tmp_path / "model")


def test_quantize_writes_a_smaller_folder_and_says_how_to_serve_it(run: Run, model: Path, tmp_path: Path) -> None:
    """The new folder has smaller weights and everything else; the command that serves it is printed."""
    target = tmp_path / "small"
    result = run("quantize", model, target, "--method", "int8")

    before, after = ((folder / "model.safetensors").stat().st_size for folder in (model, target))
    assert result.exit_code == 0, result.stderr
    assert after < 0.7 * before
    assert f"{after / before:.0%} of the " in result.stdout
    assert f"slipstream serve --model {target}\n" in result.stdout
    assert f"slipstream eval {model} FILE --against {target}\n" in result.stdout
    assert {path.name for path in model.iterdir()} == {path.name for path in target.iterdir()}
    assert result.stderr == ""


def test_quantize_passes_the_group_size_on(run: Run, model: Path, tmp_path: Path) -> None:
    """Smaller groups are what config.json then says."""
    result = run("quantize", model, tmp_path / "small", "--method", "int4", "--group-size", "64")

    config = json.loads((tmp_path / "small" / "config.json").read_text(encoding="utf-8"))
    assert result.exit_code == 0, result.stderr
    assert (config["quantization_config"]["method"], config["quantization_config"]["group_size"]) == ("int4", 64)


def test_quantize_evens_inputs_out_by_a_text(run: Run, model: Path, tmp_path: Path) -> None:
    """With a text to calibrate by, the folder says what inputs are divided by; an empty one is a problem."""
    text = tmp_path / "notes.txt"
    text.write_text("Seven grey geese cross the frozen lake. " * 4, encoding="utf-8")
    result = run("quantize", model, tmp_path / "small", "--method", "w8a8", "--calibrate", text)
    text.write_text("", encoding="utf-8")
    empty = run("quantize", model, tmp_path / "other", "--method", "w8a8", "--calibrate", text)

    with safe_open(tmp_path / "small" / "model.safetensors", framework="pt") as weights:
        assert "model.layers.0.self_attn.q_proj.smoothing" in weights.keys()  # noqa: SIM118
    assert result.exit_code == 0, result.stderr
    assert (empty.exit_code, (tmp_path / "other").exists()) == (1, False)


def test_quantize_leaves_a_folder_that_exists_alone(run: Run, model: Path, tmp_path: Path) -> None:
    """A target that is there already is a problem, and nothing in it changes."""
    target = tmp_path / "there"
    target.mkdir()
    result = run("quantize", model, target, "--method", "int8")

    assert result.exit_code == 1
    assert f"{target} exists" in result.stderr
    assert list(target.iterdir()) == []


def test_quantize_missing_weights_are_named(run: Run, model: Path, tmp_path: Path) -> None:
    """A file that is not there is named."""
    (model / "model.safetensors").unlink()
    result = run("quantize", model, tmp_path / "small", "--method", "int8")

    assert result.exit_code == 1
    assert f"{model / 'model.safetensors'} does not exist" in result.stderr
    assert not (tmp_path / "small").exists()


def test_quantize_torn_weights_are_named(run: Run, model: Path, tmp_path: Path) -> None:
    """A file that was not copied whole is named."""
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    result = run("quantize", model, tmp_path / "small", "--method", "int8")

    assert result.exit_code == 1
    assert f"{weights} is torn" in result.stderr
    assert not (tmp_path / "small").exists()


def test_quantize_unknown_architecture_lists_the_known_ones(run: Run, model: Path, tmp_path: Path) -> None:
    """A model that could not be served afterwards is refused before anything is written."""
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    (model / "config.json").write_text(json.dumps(config | {"architectures": ["GPT2LMHeadModel"]}), encoding="utf-8")
    result = run("quantize", model, tmp_path / "small", "--method", "int8")

    assert result.exit_code == 1
    assert "'GPT2LMHeadModel', which is not served; known are LlamaForCausalLM" in result.stderr


def test_quantize_twice_is_refused(run: Run, model: Path, tmp_path: Path) -> None:
    """Weights that are rounded already are not rounded again."""
    run("quantize", model, tmp_path / "small", "--method", "int8")
    result = run("quantize", tmp_path / "small", tmp_path / "smaller", "--method", "int4")

    assert result.exit_code == 1
    assert "quantized already" in result.stderr


def test_quantize_folder_that_is_not_there_is_wrong_usage(run: Run, tmp_path: Path) -> None:
    """The folder is named; so are the methods, where none is."""
    missing = run("quantize", tmp_path / "gone", tmp_path / "small", "--method", "int8")
    without_method = run("quantize", tmp_path, tmp_path / "small")

    assert (missing.exit_code, without_method.exit_code) == (2, 2)
    assert f'there is no folder "{tmp_path / "gone"}"' in missing.stderr
    assert "int8" in without_method.stderr
