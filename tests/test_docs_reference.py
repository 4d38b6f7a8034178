"""The reference tables: what they list is what the code has, and nothing else."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from backends.errors import GatewayError, RequestError, SlipstreamError
from backends.headers import _DROPPED_FROM_ANSWERS, ENDS_HERE
from backends.http.openai import _OF_CONTENT
from backends.http.openai_settings import OpenAIConfig
from backends.operations import Operation
from backends.protocol import CacheOutcome, Timeouts
from backends.stream import StreamEnd
from gateway.metrics.backend import BackendMetrics
from gateway.metrics.metrics import GROUPS
from gateway.metrics.process import ProcessMetrics
from gateway.metrics.requests import RequestMetrics
from gateway.metrics.store import StoreMetrics
from gateway.record.access_log import LogLine
from gateway.settings import Settings
from policies.objects.names import COLLECTIONS
from policies.passthrough.rules import WITHOUT_STATE
from policies.policy_file.units import unit_of, with_unit
from policies.pool.attempts.patience import CEILING_S, FLOOR_S
from policies.pool.attempts.settings import FallbacksPolicy, RetryPolicy, TimeoutsPolicy
from tests.support.docs import ROOT, blocks, names, page, table

COMMON = (RequestMetrics, ProcessMetrics, BackendMetrics, StoreMetrics)
"""Groups of which every gateway has something: they share the first table, which says more than the code."""
SECTIONS = {group.__name__.removesuffix("Metrics").lower(): group for group in GROUPS if group not in COMMON}


def test_docs_metrics_are_those_of_the_registry() -> None:
    """Every metric is described with its name, type and labels."""
    metrics = [metric for group in COMMON for metric in group(CollectorRegistry()).metrics]
    described = {row[0].strip("`"): (row[1], tuple(names(row[2]))) for row in table("docs/metrics.md", "metric")}

    assert described == {
        metric._name + "_total" * (metric._type == "counter"): (metric._type, metric._labelnames) for metric in metrics
    }


@pytest.mark.parametrize("kind", SECTIONS)
def test_docs_metrics_of_a_group_are_those_of_the_registry(kind: str) -> None:
    """Every metric of a group is described with its name, type and labels, in the words of the code."""
    described = [
        [row[0].strip("`"), row[1], names(row[2]), row[3]] for row in table("docs/metrics.md", f"{kind} metric")
    ]

    assert described == [
        [
            metric._name + "_total" * (metric._type == "counter"),
            metric._type,
            # Those of the engine are the same for all of its metrics.
            [name for name in metric._labelnames if name not in ("model_name", "engine")],
            metric._documentation,
        ]
        for metric in SECTIONS[kind](CollectorRegistry()).metrics
    ]


def test_docs_metrics_queries_use_metrics_that_exist() -> None:
    """Every query asks for described metrics and labels only; there are at least five."""
    described = {row[0].strip("`"): names(row[2]) for row in table("docs/metrics.md", "metric")}
    for kind in SECTIONS:
        described |= {row[0].strip("`"): names(row[2]) for row in table("docs/metrics.md", f"{kind} metric")}
    queries = [block.text for block in blocks("promql")]

    assert len(queries) >= 5
    for query in queries:
        for name, selected in re.findall(r"(slipstream_\w+)(\{[^}]*\})?", query):
            metric = re.sub("_(bucket|sum|count)$", "", name)
            assert metric in described
            assert set(re.findall(r"(\w+)[=!]", selected)) <= set(described[metric])


def test_docs_metrics_label_values_are_those_of_the_code() -> None:
    """The closed vocabularies that labels take their values from are written out."""
    meanings = {row[0].strip("`"): row[3] for row in table("docs/metrics.md", "metric")}

    assert {*CacheOutcome, "layer", "outcome", "exact"} == set(names(meanings["slipstream_cache_lookups_total"]))
    assert {*StreamEnd, "how"} == set(names(meanings["slipstream_stream_end_total"]))


def test_docs_errors_are_those_of_the_tree() -> None:
    """Every class of the tree is described, with its status, type and code."""
    roots = (SlipstreamError, RequestError, GatewayError)
    described = {
        row[0].strip("`"): tuple(cell.strip("`") for cell in row[1:4]) for row in table("docs/errors.md", "class")
    }

    assert described == {
        error.__name__: (str(error.status), error.type, error.code or "")
        for error in descendants(SlipstreamError)
        if error not in roots
    }


def test_docs_errors_say_when_they_come() -> None:
    """Every error has its cause, and a class that is raised has what to do."""
    for row in table("docs/errors.md", "class"):
        assert row[4], f"{row[0]}: when does it come?"
        assert row[5] or row[4].startswith("Stands for"), f"{row[0]}: what is there to do?"


def test_docs_settings_are_those_of_the_code() -> None:
    """Every variable is described with its default, in the words of the code."""
    expected = []
    for name, field in Settings.model_fields.items():
        unit = unit_of(field.annotation, field.metadata)
        default = with_unit(field.default, unit) if unit else field.default
        shown = "none" if default in (None, ()) else f"`{str(default).lower()}`" if not unit else f"`{default}`"
        expected.append([f"`SLIPSTREAM_{name.upper()}`", shown, field.description])

    assert table("docs/settings.md", "variable")[: len(expected)] == expected


def test_docs_log_fields_are_those_of_a_line() -> None:
    """Every field of the access log is described, in its order; closed vocabularies are written out."""
    rows = table("docs/logging.md", "field")
    meanings = {row[0].strip("`"): row[1] for row in rows}

    assert list(meanings) == list(LogLine.__struct_fields__)
    assert set(names(meanings["operation"])) == set(Operation)
    assert set(names(meanings["cache"])) == set(CacheOutcome)
    assert set(names(meanings["stream_end"])) == set(StreamEnd)


def test_docs_log_example_is_a_line() -> None:
    """The example has only fields that there are."""
    [example] = [block.text for block in blocks("json") if block.place.startswith("docs/logging.md")]

    assert set(json.loads(example)) <= set(LogLine.__struct_fields__)


def test_docs_headers_that_end_here_are_those_of_the_code() -> None:
    """Every header of a client that is not sent on is listed, and every header of an upstream that is not passed on."""
    requests, _, answers = page("docs/headers.md").partition("## Of answers")
    answers = answers.partition("\n\nThe Messages API")[0]
    ending = requests.partition("These end here")[2].partition("\n\n")[0]
    travelling = {name for row in table("docs/headers.md", "header") for name in names(row[0])}

    assert set(names(ending)) - {"connection"} == {name.decode() for name in ENDS_HERE} - {"connection"}
    assert {*OpenAIConfig.model_fields["forward_headers"].default, *_OF_CONTENT} <= travelling
    assert set(names(answers.partition("but for these:")[2])) == {name.decode() for name in _DROPPED_FROM_ANSWERS}


def test_docs_passthrough_defaults_are_those_of_the_code() -> None:
    """Every call that passes by default, and every collection of objects."""
    calls, objects, _ = (set(names(row[1])) for row in table("docs/passthrough.md", "calls"))

    assert calls == set(WITHOUT_STATE)
    assert objects == {*COLLECTIONS, "/threads/runs"}


def test_docs_resilience_defaults_are_those_of_the_schema() -> None:
    """The time limits with their defaults, and every word of `retry.on` and `fallbacks.on`, are there."""
    limits = {row[0].strip("`"): row[1] for row in table("docs/resilience.md", "limit")}
    asked_for = {word.strip('"') for row in table("docs/resilience.md", "`retry.on`") for word in names(row[0])}
    sent_on = {row[0].strip("`") for row in table("docs/resilience.md", "`fallbacks.on`")}

    fields = {name: field.default for name, field in TimeoutsPolicy.model_fields.items()}
    alone, elsewhere = Timeouts().first_token_s, f"{FLOOR_S:g}s to {CEILING_S:g}s where the call can go on"
    stated = {name: with_unit(default, "duration") for name, default in fields.items() if default is not None}

    assert limits == {**stated, "first_token": f"{with_unit(alone, 'duration')}; {elsewhere}"}
    assert asked_for == set(words(RetryPolicy, "on"))
    assert sent_on == set(words(FallbacksPolicy, "on"))


@pytest.mark.parametrize("path", sorted((ROOT / "docs" / "decisions").glob("*.md")), ids=lambda path: path.stem)
def test_docs_decision_has_its_parts(path: Path) -> None:
    """A decision says why, what, what not, and what follows; the modules that it names exist."""
    text = path.read_text(encoding="utf-8")

    assert [part for part in ("Context", "Decision", "Rejected", "Consequence") if f"**{part}.**" not in text] == []
    named = re.findall(r"`((?:gateway|policies|backends|tests)/[\w/]+\.(?:py|yaml))`", text)
    assert [name for name in named if not (ROOT / name).exists()] == []
    assert text.startswith(f"# {path.name[:3]}: ")


def descendants(error: type[SlipstreamError]) -> set[type[SlipstreamError]]:
    """Every class of ours below this one, and itself."""
    found = {error}
    for child in error.__subclasses__():
        if child.__module__ == "backends.errors":
            found |= descendants(child)
    return found


def words(section: type, name: str) -> list[str]:
    """The closed vocabulary of a list in a section of the policy file."""
    field = section.model_json_schema()["properties"][name]
    return field.get("anyOf", [field])[0]["items"]["enum"]
