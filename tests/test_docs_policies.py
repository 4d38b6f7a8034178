"""The page on policy files: its examples load, its generated parts are those of the code."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from gateway.cli.config.reference import with_reference
from gateway.cli.config.schema import schema_text
from gateway.cli.loading import read_policy
from policies.policy_file.locate import read_document

DOCS = Path(__file__).parent.parent / "docs"
PAGE = (DOCS / "policies.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)


def test_docs_policies_reference_is_current() -> None:
    """The reference is what the schema's descriptions make."""
    assert with_reference(PAGE) == PAGE, "docs/policies.md is out of date: run `slipstream config docs`"


def test_docs_policy_schema_is_current() -> None:
    """The published JSON Schema is what the settings models make."""
    published = (DOCS / "policy.schema.json").read_text(encoding="utf-8")

    assert published == schema_text(), "docs/policy.schema.json is out of date: run `slipstream config docs`"


@pytest.mark.parametrize("example", EXAMPLES)
def test_docs_policies_example_loads(example: str, tmp_path: Path) -> None:
    """Every example of the page is a whole file that loads without a warning and passes the published schema."""
    path = tmp_path / "policy.yaml"
    path.write_text(example, encoding="utf-8")
    schema = json.loads((DOCS / "policy.schema.json").read_text(encoding="utf-8"))

    assert read_policy(path, no_env=True).warnings == ()
    Draft202012Validator(schema).validate(read_document(example.encode()).data)


def test_docs_policies_has_examples() -> None:
    """The page shows at least the least file, a fuller one and one for editors."""
    assert len(EXAMPLES) >= 3


def test_docs_policies_links_lead_somewhere() -> None:
    """Every link within the page has its heading."""
    titles = [line.strip("# ").lower() for line in PAGE.splitlines() if line.startswith("#")]
    anchors = {re.sub(r"[^a-z0-9_ -]", "", title).replace(" ", "-") for title in titles}

    assert set(re.findall(r"\]\(#([^)]*)\)", PAGE)) <= anchors
