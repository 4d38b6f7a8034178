"""Whatever is kept of plans says what the rules say, and stays bounded however many there are of them."""

from __future__ import annotations

import time
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.limits.plan import AskPlan, UsageRules
from policies.limits.rules import Asker, UsageRule
from policies.limits.settings import BudgetPolicy, LimitPolicy

_WORDS = st.sampled_from(["a", "b", "ab"])
_GLOBS = st.sampled_from([("*",), ("a",), ("a*",), ("b", "ab"), ("nobody",)])
_PER = st.sampled_from(["all", "tenant", "team", "key", "tag", "user", "session", "agent", "model", "route"])
_WHOM = st.fixed_dictionaries(
    {"per": _PER},
    optional=dict.fromkeys(("tenants", "teams", "keys", "tags", "agents", "models", "routes"), _GLOBS),
)
_CALLERS = st.fixed_dictionaries(dict.fromkeys(("tenant", "key"), _WORDS))
_CALLS = st.fixed_dictionaries(dict.fromkeys(("user", "session", "agent", "model", "route"), _WORDS))


def asker(caller: dict[str, str], call: dict[str, str]) -> Asker:
    """Of a key, whose team and tags follow from its name."""
    return Asker(team=caller["key"], tags=f"{caller['key']},b", **caller, **call)


def asked(plan: AskPlan) -> list[tuple[UsageRule, str]]:
    """By which rules, and for what."""
    return sorted(((ask.rule, ask.kind) for ask in plan.asks), key=lambda each: (each[0].name, each[1]))


@given(st.lists(_WHOM, max_size=6), st.lists(st.tuples(_CALLERS, _CALLS), max_size=20))
def test_a_plan_that_was_kept_is_that_of_all_rules(
    whom: list[dict[str, object]], calls: list[tuple[dict[str, str], dict[str, str]]]
) -> None:
    """In whichever order callers and names come."""
    limits = [LimitPolicy.model_validate({"name": f"l{n}", "rpm": 60, **each}) for n, each in enumerate(whom)]
    budgets = [BudgetPolicy.model_validate({"name": f"b{n}", "usd": 1, **each}) for n, each in enumerate(whom)]
    rules = UsageRules(limits, budgets, "UTC")

    for caller, call in calls:
        who = asker(caller, call)
        wanted = [rule for rule in rules.all for _ in rule.whom(who)]
        found = [rule for rule, _ in asked(rules.plan(who, ()))]
        assert sorted(found, key=lambda rule: rule.name) == sorted(wanted, key=lambda rule: rule.name)


@pytest.mark.timed
def test_of_ten_thousand_limits_only_those_of_the_caller_are_looked_at_for_a_new_name() -> None:
    """Clients invent models: they all are looked through once for a caller, and for none of its names again."""
    limits = [LimitPolicy(name=f"l{n}", keys=(f"key-{n}",), rpm=60) for n in range(10_000)]
    rules = UsageRules(limits, (), "UTC")
    took_s = []
    for number in range(20):
        who = Asker("t", "key-77", "", "", "", "", "curl", f"m{number}", "r")
        began_at = time.process_time()
        (ask,) = rules.plan(who, ()).asks
        took_s.append(time.process_time() - began_at)
        assert ask.rule.name == "l77"

    assert sum(took_s[1:]) < took_s[0]


def test_plans_of_many_rules_for_many_names_stay_bounded() -> None:
    """A thousand limits that concern everybody, three hundred sessions: 300,000 asks, were they all kept."""
    rules = UsageRules([LimitPolicy(name=f"l{n}", per="session", rpm=60) for n in range(1000)], (), "UTC")
    tracemalloc.start()
    for number in range(300):
        who = Asker("t", "k", "", "", "u", f"session-{number}", "curl", "m", "r")
        assert len(rules.plan(who, ()).asks) == 1000
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 150 * 2**20
