"""The page on simulation: its tables are those of the code."""

from __future__ import annotations

from gateway.simulate.report import SimulationReport
from gateway.simulate.simulated_fleet import DEFAULT_PROFILE, PROFILES
from gateway.simulate.slo import slo_text
from policies.admission.settings import SloPolicy
from tests.support.docs import names, page, table


def test_docs_simulate_figures_are_those_of_a_report() -> None:
    """Every field of the report is described once, and no other."""
    described = [name for row in table("docs/simulate.md", "field") for name in names(row[0])]

    assert sorted(described) == sorted(SimulationReport.__struct_fields__)


def test_docs_simulate_defaults_are_those_of_the_code() -> None:
    """The limits, the profiles and the host tier that the page names."""
    text = page("docs/simulate.md")

    assert f"--slo {slo_text(SloPolicy())}" in text
    assert all(f"`{name}:8`" in text for name in PROFILES)
    assert f"`{DEFAULT_PROFILE}:8`, or `8` for short" in text
    assert PROFILES["h200-8b-host"].host_kv_tokens == 4_000_000
