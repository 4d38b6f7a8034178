"""`slipstream samples`: the commands that it names run on its files as they are written, and so do their examples."""

from __future__ import annotations

import gzip
import re
import shlex
from importlib.util import find_spec
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gateway.cli.main import cli
from gateway.demo.samples.command import COMMANDS

_DOCS = Path(__file__).parents[3] / "docs"
_EXAMPLE = re.compile(r"^ *(slipstream simulate .*)$", re.MULTILINE)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments, catch_exceptions=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One with the samples."""
    folder = tmp_path_factory.mktemp("samples")
    assert run("samples", str(folder)).exit_code == 0
    return folder


def test_samples_are_told_and_overwrite_nothing(tmp_path: Path) -> None:
    """The second time nothing is written, and the first file that is in the way is named."""
    (tmp_path / "calls.csv").write_text("mine")
    refused = run("samples", str(tmp_path))

    assert refused.exit_code == 1
    assert "calls.csv is there already" in refused.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["calls.csv"]
    told = run("samples", str(tmp_path / "new"))
    assert all(command in told.stderr for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_run_as_they_are_written(
    command: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """In the folder of the samples."""
    if "cache replay" in command:
        if find_spec("sentence_transformers") is None:
            pytest.skip("the semantic cache's encoder is not installed")
        # Where a fifth of the log is read and compared, all of it would be.
        log = folder / "log.jsonl.gz"
        lines = gzip.decompress(log.read_bytes()).splitlines(keepends=True)
        log.write_bytes(gzip.compress(b"".join(lines[: len(lines) // 5])))
    monkeypatch.chdir(folder)
    program, *arguments = shlex.split(command)
    done = run(*arguments)

    assert program == "slipstream"
    assert done.exit_code == 0, done.output
    # Some of them run a process of their own, which writes by itself.
    assert (done.stdout + capfd.readouterr().out).strip()


def test_replay_of_the_sample_log_comes_near_to_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the log of backends that do what the simulator knows, one of them slower."""
    monkeypatch.chdir(folder)
    done = run("simulate", "--trace", "access.log", "--policy", "old.yaml", "--replay")
    rows = {
        words[0]: words for words in map(str.split, done.stdout.splitlines()) if words and words[0].startswith("gpu-")
    }

    assert rows.keys() == {"gpu-a", "gpu-b"}
    assert all(0.9 <= float(words[7]) <= 1.1 for words in rows.values()), rows
    assert float(rows["gpu-b"][3]) > 1.3 * float(rows["gpu-a"][3])


def test_examples_name_files_that_there_are(folder: Path) -> None:
    """Of the command's help, and of its page."""
    texts = (run("simulate", "--help").output, (_DOCS / "simulate.md").read_text(encoding="utf-8"))
    examples = [example for text in texts for example in _EXAMPLE.findall(text)]
    named = {
        word
        for example in examples
        for word in shlex.split(example)
        if re.fullmatch(r"[\w-]+\.(?:yaml|log|csv|jsonl\.gz)", word)
    }

    assert len(examples) >= 10
    assert named <= {path.name for path in folder.iterdir()}
