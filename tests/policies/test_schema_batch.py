"""How a policy file says what becomes of batches."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator

from backends.errors import ConfigurationError
from gateway.cli.config.config import effective_policy
from gateway.cli.config.schema import schema_text
from gateway.cli.loading import read_policy
from policies.policy_file.load import LoadedPolicy


def load(folder: Path, batch: object, *, keeps_batches: bool = True) -> LoadedPolicy:
    """A policy with one route whose `batch` is that."""
    policy = {
        "version": 1,
        "stores": {"batches": {"folder": "batches"}} if keeps_batches else {},
        "backends": {"up": {"type": "openai", "base_url": "http://127.0.0.1:1/v1"}},
        "routes": [{"name": "r", "match": {"models": ["*"]}, "backends": [{"ref": "up"}], "batch": batch}],
    }
    (folder / "policy.yaml").write_text(yaml.safe_dump(policy), encoding="utf-8")
    Draft202012Validator(json.loads(schema_text())).validate(policy)
    return read_policy(folder / "policy.yaml", no_env=True)


def test_batch_as_a_word_is_its_mode(tmp_path: Path) -> None:
    """`batch: provider` is a section with the defaults of that mode."""
    by_word = load(tmp_path, "provider").policy.routes[0].batch
    by_section = load(tmp_path, {"mode": "provider"}).policy.routes[0].batch

    assert by_word == by_section
    assert (by_word.mode, by_word.collect_for, by_word.discount) == ("provider", 300.0, 0.5)


def test_batch_of_a_provider_without_a_folder_is_refused(tmp_path: Path) -> None:
    """There would be nowhere to keep what is collected."""
    with pytest.raises(ConfigurationError, match="needs `stores\\.batches`"):
        load(tmp_path, "provider", keeps_batches=False)


def test_batch_written_out_in_full_loads_again(tmp_path: Path) -> None:
    """With every default filled in it means the same."""
    loaded = load(tmp_path, {"mode": "provider", "collect_for": "90s"})
    path = tmp_path / "full.yaml"
    path.write_text(yaml.safe_dump(effective_policy(loaded)), encoding="utf-8")

    assert read_policy(path, no_env=True).policy.routes[0].batch == loaded.policy.routes[0].batch


@pytest.mark.parametrize(
    ("batch", "said"),
    [("provide", "routes[0].batch"), ({"mode": "provider", "colect_for": "5m"}, "collect_for")],
)
def test_batch_that_is_misspelt_is_refused_with_its_place(tmp_path: Path, batch: object, said: str) -> None:
    """Nothing is guessed."""
    (tmp_path / "policy.yaml").write_text(
        yaml.safe_dump(
            {
                "version": 1,
                "backends": {"up": {"type": "scripted"}},
                "routes": [{"name": "r", "match": {"models": ["*"]}, "backends": [{"ref": "up"}], "batch": batch}],
            }
        ),
        encoding="utf-8",
    )
    with pytest.raises(ConfigurationError) as refused:
        read_policy(tmp_path / "policy.yaml", no_env=True)

    assert said in refused.value.message
